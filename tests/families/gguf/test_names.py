"""GGUF files under Hugging Face names: what llama.cpp's converter did is undone, or refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from transformers import PreTrainedModel

from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError
from lexray.families.gguf.names import ARCHITECTURES, GGUFModel, hf_named
from lexray.families.linear import ALL
from lexray.model.model import Model
from tests.families import oracles, zoo
from tests.families.gguf.variants import (
    LLAMA,
    VARIANTS,
    build,
    called,
    converted,
    opened,
    squeezed,
    stored,
    wide,
)
from tests.families.gguf.writer import add, convert
from tests.families.oracles import IDS, ORACLES, check_all, parameters
from tests.families.zoo import Variant


@pytest.fixture(scope="module", params=VARIANTS, ids=str)
def variant(request: pytest.FixtureRequest) -> Variant:
    found: Variant = request.param
    return found


@pytest.fixture(scope="module")
def file(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(variant.name).save(tmp_path_factory.mktemp("gguf") / "model.gguf")


def test_oracles(
    variant: Variant, file: Path, oracle_log: dict[str, list[str]], subtests: pytest.Subtests
) -> None:
    module = build(variant.name)
    log = oracle_log.setdefault(f"{variant} as GGUF", [])
    check_all(subtests, log, module, Model.from_module(module).view("raw"), opened(file))


def test_tensors_are_those_of_the_saved_folder(
    variant: Variant, file: Path, tmp_path: Path
) -> None:
    """Names, shapes and values, also of what no oracle looks at, and nothing else."""
    build(variant.name).save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    checkpoint = hf_named(GGUFCheckpoint(file))
    assert set(checkpoint.names()) == set(saved)
    for name, tensor in saved.items():
        assert checkpoint.info(name).shape == tensor.shape, name
        torch.testing.assert_close(checkpoint.read(name), tensor, atol=1e-6, rtol=0)


def test_passes_are_those_of_the_model(variant: Variant, file: Path) -> None:
    """What is built from the file's own config computes the same logits."""
    check_logits(build(variant.name), file)


WRITTEN_AS = {
    "qwen2vl": "qwen2",
    "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3-moe",
    "paddleocr": "ernie",
    "hunyuan_vl": "hunyuan",
    "nemotron_h": "nemotron-h",
}
STACKS = {"bert", "eurobert", "modern-bert", "nomic-bert", "gemma-embedding", "t5"}
ALSO = {*WRITTEN_AS, *STACKS}
"""Written as others are: tested below; or tested in test_stacks."""


@pytest.mark.slow
def test_every_architecture_is_tested() -> None:
    tested = {converted(variant.name).architecture for variant in VARIANTS}
    assert tested | ALSO == set(ARCHITECTURES)


def run_oracle(oracle: str, name: str, file: Path) -> None:
    module = build(name)
    ORACLES[oracle](module, Model.from_module(module).view("raw"), opened(file))


@pytest.mark.parametrize("name", ["llama", "llama-biased-tied", "olmo", "smollm3"])
def test_rows_left_unpermuted_are_noticed(name: str, path: Path) -> None:
    """At offset 0 a wrong order cancels between queries and keys; at others it must not."""
    wrong = converted(name)
    for ours, tensor in build(name).state_dict().items():
        for x in "qk":
            theirs = ours.replace("model.layers", "blk").replace(f"self_attn.{x}_proj", f"attn_{x}")
            if theirs in wrong.tensors:
                wrong.tensors[theirs] = tensor
    wrong.save(path)
    run_oracle("QK", name, path)
    with pytest.raises(AssertionError, match="not close"):
        run_oracle("rotation", name, path)


def test_shared_expert_gate_may_be_a_vector(path: Path) -> None:
    old = squeezed(converted("qwen2-moe"))
    vector = old.tensors["blk.1.ffn_gate_inp_shexp.weight"]
    assert vector.shape == (24,)
    old.save(path)
    run_oracle("FF", "qwen2-moe", path)
    gate = "model.layers.1.mlp.shared_expert_gate.weight"
    checkpoint = hf_named(GGUFCheckpoint(path))
    assert checkpoint.info(gate).shape == (1, 24)
    assert torch.equal(checkpoint.read(gate, ALL, slice(3, 9))[0], vector[3:9])
    assert checkpoint.cost(gate, ALL, slice(3, 9)) == 6 * 4


def test_first_qwen2_moe_files_had_no_widths(path: Path) -> None:
    early = converted("qwen2-moe")
    for key in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        del early.metadata[early.key(key)]
    early.save(path)
    assert opened(path).layers[0].ff.shared.d_mlp == 14
    run_oracle("FF", "qwen2-moe", path)


@pytest.mark.parametrize("oracle", ["FF", "disk=memory"])
def test_old_mixtral_files_have_a_tensor_per_expert(oracle: str, path: Path) -> None:
    old = converted("mixtral")
    for name in [name for name in old.tensors if "_exps." in name]:
        for i, expert in enumerate(old.tensors.pop(name)):
            old.tensors[name.replace("_exps.", f".{i}.")] = expert
    assert "blk.1.ffn_down.4.weight" in old.tensors
    old.save(path)
    run_oracle(oracle, "mixtral", path)


@pytest.mark.slow
def test_gemma2_27b_scales_its_queries_otherwise(path: Path) -> None:
    """By d_model / n_heads, here 6, instead of by the head's width, 10; told by its 46 layers."""
    module = zoo.make(stored("gemma2", query_pre_attn_scalar=6, num_hidden_layers=46))
    convert(module).save(path)
    oracles.qk(module, Model.from_module(module).view("raw"), opened(path))


def test_old_gemma3_files_lack_the_local_frequency(path: Path) -> None:
    old = converted("gemma3")
    del old.metadata["gemma3.rope.freq_base_swa"]
    run_oracle("rotation", "gemma3", old.save(path))


def test_gemma3_without_windows_has_none(path: Path) -> None:
    plain = converted("gemma3")
    del plain.metadata["gemma3.attention.sliding_window"]
    attentions = [layer.spec.attention for layer in opened(plain.save(path)).layers]
    assert {attention.window for attention in attentions} == {None}
    assert len({attention.rotary for attention in attentions}) == 1


def test_old_key_of_linear_scaling(path: Path) -> None:
    old = converted("llama-linear-rope")
    del old.metadata["llama.rope.scaling.type"]
    old.metadata["llama.rope.scale_linear"] = old.metadata.pop("llama.rope.scaling.factor")
    run_oracle("rotation", "llama-linear-rope", old.save(path))


def test_share_of_rotary_dimensions_survives_the_way_through_a_fraction(path: Path) -> None:
    """In floating point 44 · (30 / 44) is less than 30."""
    wide = stored("stablelm", hidden_size=88, num_attention_heads=2, num_key_value_heads=2)
    odd = convert(zoo.make(wide))
    odd.metadata["stablelm.rope.dimension_count"] = 30
    rotary = opened(odd.save(path)).layers[0].spec.attention.rotary
    assert rotary is not None
    assert len(rotary.frequencies) == 15


@pytest.mark.parametrize(("architecture", "name"), WRITTEN_AS.items())
def test_architectures_that_are_written_as_others(architecture: str, name: str, path: Path) -> None:
    called(converted(name), architecture).save(path)
    for oracle in ("OV", "FF", "unembedding", "disk=memory"):
        run_oracle(oracle, name, path)


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt2"])
def test_scales_beside_weights_multiply_them(name: str, path: Path) -> None:
    """As of NVFP4: one for a matrix, or one for each expert; what rounds inputs says nothing."""
    whole, beside = converted(name), {}
    for stem in ("attn_q", "attn_qkv", "ffn_down", "ffn_gate_exps"):
        weight = f"blk.1.{stem}.weight"
        if weight in whole.tensors:
            tensor = whole.tensors[weight]
            factors = 2.0 ** torch.arange(1, (len(tensor) if tensor.ndim == 3 else 1) + 1)
            beside[f"blk.1.{stem}.scale"] = factors
            beside[f"blk.1.{stem}.input_scale"] = factors * 3
            whole.tensors[weight] = tensor / factors.view(-1, *[1] * (tensor.ndim - 1))
    assert len(beside) >= 4
    whole.tensors |= beside
    whole.save(path)
    for oracle in ("OV", "FF", "disk=memory"):
        run_oracle(oracle, name, path)


def test_nvfp4_with_its_scale(tmp_path: Path) -> None:
    """Random codes, as `gguf` cannot make them; read by it, times the factor, they are F32."""
    small = convert(wide("llama", **LLAMA))
    kind, plain = GGMLQuantizationType.NVFP4, {}
    block, size = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(tmp_path / "nvfp4.gguf", small.architecture)
    for key, value in small.metadata.items():
        add(writer, key, value)
    for name, tensor in small.tensors.items():
        if not name.startswith("blk.") or tensor.ndim == 1 or tensor.shape[-1] % block:
            plain[name] = tensor
            writer.add_tensor(name, tensor.contiguous().numpy())
            continue
        seed = torch.manual_seed(len(plain))
        shape = (len(tensor), tensor.shape[-1] // block * size)
        codes = torch.randint(0, 120, shape, dtype=torch.uint8, generator=seed).numpy()
        plain[name] = torch.from_numpy(gguf.quants.dequantize(codes, kind)) * 0.25
        writer.add_tensor(name, codes, raw_dtype=kind)
        writer.add_tensor(name.replace(".weight", ".scale"), torch.tensor([0.25]).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = opened(tmp_path / "nvfp4.gguf")
    assert model.checkpoint.info("model.layers.0.mlp.up_proj.weight").stored == "NVFP4"
    expected = opened(replace(small, tensors=plain).save(tmp_path / "f32.gguf"))
    for (name, ours), (_, theirs) in zip(parameters(model), parameters(expected), strict=True):
        assert (ours is None) == (theirs is None), name
        assert ours is None or torch.equal(ours, theirs), name


def test_stored_rotary_embeddings_are_passed_over(path: Path) -> None:
    """They follow from the metadata; llama.cpp does not read them either."""
    old = converted("llama")
    old.tensors["blk.0.attn_rot_embd.weight"] = torch.ones(3)
    assert opened(old.save(path)).n_layers == 2


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("llama", "token_embd.weight"),
        ("llama", "blk.0.attn_output.weight"),
        ("mixtral", "blk.0.ffn_gate_inp.weight"),
        ("llama3-rope", "rope_freqs.weight"),
    ],
)
def test_sizes_that_tensors_contradict_are_refused(name: str, tensor: str, path: Path) -> None:
    odd = converted(name)
    odd.tensors[tensor] = torch.zeros(7, 5)
    odd.save(path)
    with pytest.raises(LexrayError, match=rf"{tensor}.*\(7, 5\)"):
        opened(path)


def test_a_missing_tensor_is_named_when_the_model_is_opened(path: Path) -> None:
    lacking = converted("llama")
    del lacking.tensors["blk.1.attn_q.weight"]
    lacking.save(path)
    with pytest.raises(LexrayError, match=r"no tensor 'model.layers.1.self_attn.q_proj.weight'"):
        opened(path)


@pytest.mark.parametrize("name", ["qwen3-moe", "glm4-moe", "minimax-m2"])
def test_gates_and_keys_of_experts_may_lie_in_one_stack(name: str, path: Path) -> None:
    fused = converted(name)
    for gate in [key for key in fused.tensors if key.endswith("ffn_gate_exps.weight")]:
        parts = fused.tensors.pop(gate), fused.tensors.pop(gate.replace("gate", "up"))
        fused.tensors[gate.replace("gate", "gate_up")] = torch.cat(parts, dim=1)
    fused.save(path)
    for oracle in ("FF", "disk=memory"):
        run_oracle(oracle, name, path)


@pytest.mark.parametrize("name", ["glm4-moe", "llama", "qwen3.5"])
def test_layers_that_guess_further_tokens_are_passed_over(name: str, path: Path) -> None:
    more = converted(name)
    count = more.metadata[more.key("block_count")]
    more.metadata |= {more.key("block_count"): count + 1, more.key("nextn_predict_layers"): 1}
    for key in [key for key in more.tensors if key.startswith("blk.0.")]:
        more.tensors[key.replace("blk.0.", f"blk.{count}.")] = more.tensors[key]
    more.tensors[f"blk.{count}.nextn.eh_proj.weight"] = torch.ones(24, 48)
    assert opened(more.save(path)).n_layers == count
    run_oracle("unembedding", name, path)


def test_falcon_h1_s_factors_lie_in_its_weights(path: Path) -> None:
    """The file does not say them: they are read as part of each matrix, as in the model."""
    module = zoo.make(zoo.find("falcon-h1"))
    convert(module).save(path)
    ORACLES["unembedding"](module, Model.from_module(module).view("raw"), opened(path))
    check_logits(module, path)


def check_logits(module: PreTrainedModel, file: Path) -> None:
    with torch.no_grad():
        ours, theirs = opened(file).module()(IDS).logits, module(IDS).logits
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_mistral_large_3_is_called_deepseek_and_built_as_mistral_4(path: Path) -> None:
    """From Mistral's own format: how queries grow is kept, and gates and keys are two stacks."""
    module = zoo.make(zoo.find("mistral4"))
    whole = called(convert(module), "deepseek2")
    for both in [name for name in whole.tensors if "ffn_gate_up_exps" in name]:
        gate, up = whole.tensors.pop(both).chunk(2, dim=1)
        whole.tensors |= {both.replace("gate_up", "gate"): gate, both.replace("gate_up", "up"): up}
    whole.metadata["deepseek2.attention.temperature_scale"] = 0.5
    whole.save(path)
    assert opened(path).family.name == "mistral4"
    check_logits(module, path)


def test_first_files_of_mimo_do_not_tell_the_factor_on_values(path: Path) -> None:
    module = zoo.make(stored("mimo2", routed_scaling_factor=1.0))
    old = convert(module)
    del old.metadata["mimo2.attention.value_scale"]
    check_logits(module, old.save(path))


@pytest.mark.parametrize(
    ("name", "old"),
    [("deepseek-v3", "attn_kv_b"), ("qwen3-next", "ssm_in"), ("glm", "attn_qkv")],
)
def test_what_other_files_hold_in_one_tensor(name: str, old: str, path: Path) -> None:
    """As first converters wrote it, or as the first release of a model had it."""
    whole, ours = converted(name), build(name).state_dict()
    split = {
        "attn_kv_b": ("attn_k_b", "attn_v_b"),
        "ssm_in": ("attn_qkv", "attn_gate"),
        "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    }[old]
    joined = {"attn_kv_b": "self_attn.kv_b_proj", "ssm_in": "linear_attn.in_proj_qkvz"}
    for n in range(whole.metadata[whole.key("block_count")]):
        parts = [whole.tensors.pop(f"blk.{n}.{part}.weight", None) for part in split]
        if parts[0] is None:
            continue
        stem = joined.get(old)
        whole.tensors[f"blk.{n}.{old}.weight"] = (
            torch.cat([part for part in parts if part is not None])
            if stem is None
            else ours[f"model.layers.{n}.{stem}.weight"]
        )
        biases = [whole.tensors.pop(f"blk.{n}.{part}.bias", None) for part in split]
        if biases[0] is not None:
            whole.tensors[f"blk.{n}.{old}.bias"] = torch.cat([b for b in biases if b is not None])
    whole.save(path)
    for oracle in ("OV", "QK", "disk=memory"):
        run_oracle(oracle, name, path)


def test_other_checkpoints_pass_unchanged() -> None:
    live = Model.from_module(build("llama")).view("raw").checkpoint
    assert hf_named(live) is live


def test_rows_are_ordered_once(path: Path) -> None:
    checkpoint = hf_named(GGUFCheckpoint(converted("llama").save(path)))
    assert isinstance(checkpoint, GGUFModel)
    for n in range(2):
        checkpoint.read(f"model.layers.{n}.self_attn.q_proj.weight", slice(0, 6))
        checkpoint.read(f"model.layers.{n}.self_attn.q_proj.weight", slice(4, 4))
    assert len(checkpoint._side.orders) == 1
