"""GGUF files under Hugging Face names: what llama.cpp's converter did is undone, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError
from lexray.families.gguf.names import ARCHITECTURES, GGUFModel, hf_named
from lexray.families.linear import ALL, Linear
from lexray.model.model import Model
from lexray.model.open import shipped_path
from tests.families import oracles, zoo
from tests.families.gguf.writer import Converted, add, convert, quantisable
from tests.families.oracles import IDS, ORACLES, check_all, parameters
from tests.families.zoo import Variant
from tests.families.zoo.options import YARN

Q8_0 = GGMLQuantizationType.Q8_0


def stored(name: str, rename: str | None = None, **options: Any) -> Variant:
    """A variant of the zoo, with options that a GGUF file cannot carry replaced."""
    variant = zoo.find(name)
    return replace(variant, name=rename or name, options=variant.options | options)


GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
EVEN = {"mscale": 0.9, "mscale_all_dim": 0.9}
GPT_OSS_ROPE = {key: value for key, value in YARN.items() if "mscale" not in key}
GPT_OSS_ROPE |= {"truncate": False}
FACTORS = (
    *("lm_head_multiplier", "embedding_multiplier", "key_multiplier"),
    *("attention_in_multiplier", "attention_out_multiplier"),
    *("ssm_in_multiplier", "ssm_out_multiplier"),
)
EACH = {"mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1.0] * 5}
VARIANTS = [
    stored("llama"),
    stored("llama-biased-tied"),
    stored("llama-free-head"),
    stored("llama3-rope"),
    stored("llama-linear-rope"),
    stored("llama-yarn"),
    stored("mistral", sliding_window=None),
    stored("mixtral"),
    stored("qwen2"),
    stored("qwen2-moe", mlp_only_layers=[]),
    stored("qwen3"),
    stored("qwen3-biased-tied"),
    stored("qwen3-moe"),
    stored("gemma"),
    stored("gemma2", query_pre_attn_scalar=10),
    stored(
        "gemma3",
        query_pre_attn_scalar=10,
        num_hidden_layers=7,
        layer_types=None,
        rope_parameters=GEMMA3_ROPE,
    ),
    stored("phi"),
    stored("phi3"),
    stored("phi3", "phi4", hidden_size=32, sliding_window=None, partial_rotary_factor=0.75),
    stored("phi3-longrope"),
    stored("gpt2"),
    stored("gpt2-untied-wide"),
    stored("neox"),
    stored("neox-sequential"),
    stored("bloom"),
    stored("falcon-7b"),
    stored("falcon-new"),
    stored("falcon-new-one-norm"),
    stored("stablelm"),
    stored("stablelm-parallel"),
    stored("olmo"),
    stored("olmo-clipped"),
    stored("olmo2"),
    stored("smollm3"),
    stored("cohere"),
    stored("cohere-qk-norm"),
    stored("cohere2"),
    stored("granite"),
    stored("starcoder2"),
    stored("ernie"),
    stored("mpt"),
    stored("gpt-bigcode"),
    stored("seed-oss"),
    stored("ministral3"),
    stored("minimax-m2"),
    stored("phimoe", router_jitter_noise=0.01, sliding_window=None),
    stored("granite-moe"),
    stored("granite-moe-shared"),
    stored("granite4"),
    stored("granite4-dense", position_embedding_type=None),
    stored("bamba", hidden_size=32, mamba_n_heads=8),
    stored("glm", hidden_size=32, rms_norm_eps=1e-5, max_position_embeddings=32),
    stored("glm4"),
    stored("glm4-moe"),
    stored("solar-open", rope_parameters={"rope_theta": 1e6, "partial_rotary_factor": 1.0}),
    stored("dots1"),
    stored("arcee"),
    stored("nemotron", hidden_size=32),
    stored("jais2"),
    stored("apertus"),
    stored("exaone4"),
    stored("exaone4-global"),
    stored("ernie-moe"),
    stored("hunyuan"),
    stored("hunyuan-moe"),
    stored("olmo3"),
    stored("olmo3", "olmo3-yarn", rope_parameters=YARN),
    stored("olmoe"),
    stored("deepseek-v2"),
    stored("deepseek-v2-lite", rope_parameters=YARN | EVEN, n_group=1, topk_group=1),
    stored("deepseek-v3", rope_parameters=YARN | EVEN),
    stored("glm4-moe-lite"),
    stored("youtu"),
    stored("gpt-oss", rope_parameters=GPT_OSS_ROPE),
    stored(
        "llama4",
        num_hidden_layers=4,
        moe_layers=None,
        interleave_moe_layer_step=2,
        no_rope_layers=None,
        floor_scale=8192,
        attn_scale=0.1,
        attention_chunk_size=8192,
    ),
    stored("qwen3-next"),
    stored("qwen3.5"),
    stored("qwen3.5-moe"),
    stored("jamba"),
    stored("falcon-h1", **dict.fromkeys(FACTORS, 1.0), **EACH),
    stored("lfm2"),
    stored("lfm2-moe"),
    stored("nemotron-h", head_dim=8),
]
BY_NAME = {variant.name: variant for variant in VARIANTS}


@cache
def build(name: str) -> PreTrainedModel:
    return zoo.make(BY_NAME[name])


def converted(name: str) -> Converted:
    return convert(build(name))


def opened(file: Path) -> Model:
    return Model(hf_named(GGUFCheckpoint(file))).view("raw")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


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


ALSO = {"qwen2vl", "qwen3vl", "nemotron_h"}
"""Written as others are, and read as these: tested below."""


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


def squeezed(whole: Converted) -> Converted:
    """As older converters wrote it: matrices of one row became vectors."""
    tensors = {
        name: tensor[0] if len(tensor) == 1 else tensor for name, tensor in whole.tensors.items()
    }
    return replace(whole, tensors=tensors)


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


def wide(name: str, **options: Any) -> PreTrainedModel:
    """A model whose rows fill whole blocks of 32 weights."""
    return zoo.make(stored(name, **options))


LLAMA = {"hidden_size": 128, "intermediate_size": 64, "num_key_value_heads": 2}
MOE = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "mlp_only_layers": [],
}
QUANTISED: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: wide("llama-biased-tied", **LLAMA),
    "mixtral": lambda: wide("mixtral", **LLAMA),
    "qwen2-moe": lambda: wide("qwen2-moe", **LLAMA, **MOE),
    "gemma3": lambda: wide("gemma3", **LLAMA, head_dim=32),
    "phi3": lambda: wide("phi3", **LLAMA),
    "gpt2": lambda: wide("gpt2", n_embd=96),
    "bloom": lambda: wide("bloom", hidden_size=96),
    "falcon": lambda: wide("falcon-new", hidden_size=192, ffn_hidden_size=64),
    "stablelm": lambda: wide("stablelm-parallel", **LLAMA),
}


@pytest.fixture(scope="module", params=QUANTISED)
def small(request: pytest.FixtureRequest) -> Converted:
    return convert(QUANTISED[request.param]())


def test_quantised_parameters_are_gguf_s_own(small: Converted, tmp_path: Path) -> None:
    """Q8_0 read by us equals Q8_0 unpacked by the `gguf` package, then read as F32."""
    model = opened(small.save(tmp_path / "q8_0.gguf", Q8_0))
    unpacked = {
        name: torch.from_numpy(
            gguf.quants.dequantize(gguf.quants.quantize(tensor.contiguous().numpy(), Q8_0), Q8_0)
        )
        if quantisable(tensor, Q8_0)
        else tensor
        for name, tensor in small.tensors.items()
    }
    assert sum(not torch.equal(unpacked[n], small.tensors[n]) for n in unpacked) > 5
    expected = opened(replace(small, tensors=unpacked).save(tmp_path / "f32.gguf"))
    for (name, ours), (_, theirs) in zip(parameters(model), parameters(expected), strict=True):
        assert (ours is None) == (theirs is None), name
        assert ours is None or torch.equal(ours, theirs), name


@pytest.mark.parametrize("kind", [None, Q8_0], ids=["F32", "Q8_0"])
def test_a_head_costs_its_own_bytes(
    small: Converted, kind: GGMLQuantizationType | None, path: Path
) -> None:
    model = opened(small.save(path, kind))
    head_rows = model.d_head * size(model.d_model, kind)
    head_columns = model.d_model * size(model.d_head, kind)
    for head in (model.layers[1].heads[0], model.layers[1].heads[-1]):
        for name, heads, index in (
            ("W_Q", head.spec.q, head.index),
            ("W_K", head.spec.k, head.kv_index),
            ("W_V", head.spec.v, head.kv_index),
        ):
            assert heads.linear.cost(model.checkpoint, outputs=heads.outputs(index)) == head_rows
            assert spent(model, partial(getattr, head, name)) == head_rows
        inputs = slice(head.index * model.d_head, (head.index + 1) * model.d_head)
        assert head.spec.o.cost(model.checkpoint, inputs=inputs) == head_columns
        assert spent(model, partial(getattr, head, "W_O")) == head_columns


def size(n: int, kind: GGMLQuantizationType | None) -> int:
    """The bytes of n weights: four each, or 34 for a block of 32."""
    return n * 4 if kind is None else n // 32 * 34


def spent(model: Model, read: Callable[[], Any]) -> int:
    before = model.checkpoint.bytes_read
    read()
    return model.checkpoint.bytes_read - before


def test_an_expert_costs_its_own_bytes(path: Path) -> None:
    model = opened(convert(QUANTISED["mixtral"]()).save(path, Q8_0))
    expert = model.layers[1].ff.experts[3]
    one, block = 34, 32
    assert spent(model, lambda: expert.W_in) == 64 * 128 // block * one
    assert spent(model, lambda: expert.W_out) == 64 * 128 // block * one
    neuron = expert.neurons[40]
    assert spent(model, lambda: neuron.W_gate) == 128 // block * one
    assert spent(model, lambda: neuron.W_out) == 128 * one
    w_out: Linear = expert.spec.w_out
    assert w_out.cost(model.checkpoint, inputs=slice(40, 41)) == 128 * one


GEMMA = {"head_dim": 256, "query_pre_attn_scalar": 256}
TRANSFORMERS = {
    "gpt2": stored("gpt2", n_positions=1024),
    "bloom": stored("bloom"),
    "llama": stored("llama"),
    "llama-free-head": stored("llama-free-head"),
    "qwen2": stored("qwen2"),
    "qwen3": stored("qwen3", head_dim=128),
    "qwen2-moe": stored(
        "qwen2-moe",
        mlp_only_layers=[],
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
    ),
    "qwen3-moe": stored("qwen3-moe", moe_intermediate_size=768),
    "gemma2": stored("gemma2", **GEMMA, final_logit_softcapping=30.0, attn_logit_softcapping=50.0),
    "gemma3": stored("gemma3", **GEMMA, num_hidden_layers=7, layer_types=None),
    "falcon-7b": stored("falcon-7b", ffn_hidden_size=96),
    "stablelm": stored("stablelm"),
}
"""Where the GGUF loader of transformers 5.22 and 5.23 gives the model back that was written.

The later one passes over GPT-2's number of positions and the widths of experts, so these are its
own defaults. Both pass over Llama's biases, rotary scaling, Mixtral's experts, Gemma 2's caps,
StableLM's QK-norms and Falcon's new architecture, and does not know the other architectures.
"""


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_agrees_with_transformers_own_reader(name: str, path: Path) -> None:
    written = zoo.make(TRANSFORMERS[name])
    squeezed(convert(written)).save(path)
    module = read_by_transformers(path)
    with torch.no_grad():
        torch.testing.assert_close(module(IDS).logits, written(IDS).logits)
    model, live = opened(path), Model.from_module(module).view("raw")
    for oracle in ("rotation", "unembedding"):
        ORACLES[oracle](module, live, model)


def read_by_transformers(path: Path) -> PreTrainedModel:
    module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    del module.config.quantization_config  # it was: the weights in memory are plain
    return module.eval()


@pytest.mark.slow
def test_smollm2_agrees_with_transformers_own_reader() -> None:
    try:
        path = shipped_path("smollm2")
    except LexrayError as error:
        pytest.skip(str(error))
    assert path is not None
    model = Model.from_pretrained("smollm2").view("raw")
    header = GGUFCheckpoint(path).bytes_read
    assert model.checkpoint.bytes_read == header, "opening read more than the header"
    module = read_by_transformers(path)
    oracles.unembedding(module, Model.from_module(module).view("raw"), model)
    stems = [f"model.layers.{n}.self_attn" for n in (3, 17)]
    names = [f"{stem}.{x}_proj" for stem in stems for x in "qo"]
    with oracles.recorded(module, *names) as seen:
        weights = oracles.run(module, IDS, output_attentions=True).attentions
    for n, stem in zip((3, 17), stems, strict=True):
        x = seen[f"{stem}.q_proj"][0]
        scores = oracles.attention_scores(model, n, x, list(range(len(x))))
        ours = scores.masked_fill(~oracles.allowed(model, n, len(x)), -torch.inf).softmax(-1)
        oracles.close(ours, weights[n][0])
        oracles.close(oracles.attention_output(model, n, x, ours), seen[f"{stem}.o_proj"][1])


def called(whole: Converted, architecture: str) -> Converted:
    """The same file under another architecture's name."""
    prefix, keys = f"{whole.architecture}.", whole.metadata.items()
    renamed = {key.replace(prefix, f"{architecture}.", 1): value for key, value in keys}
    return Converted(architecture, renamed, whole.tensors)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("qwen2vl", "qwen2"), ("qwen3vl", "qwen3"), ("nemotron_h", "nemotron-h")],
)
def test_architectures_that_are_written_as_others(architecture: str, name: str, path: Path) -> None:
    called(converted(name), architecture).save(path)
    for oracle in ("OV", "FF", "unembedding", "disk=memory"):
        run_oracle(oracle, name, path)


@pytest.mark.parametrize(
    ("architecture", "kind", "says"),
    [
        ("clip", "mmproj", "turns pictures or sounds into vectors"),
        ("clip", "model", "turns pictures into vectors"),
        ("llama", "adapter", "a LoRA adapter in llama.cpp's format"),
        ("llama", "imatrix", "a list of how much each weight mattered"),
    ],
)
def test_files_that_are_no_models_say_what_they_are(
    architecture: str, kind: str, says: str, path: Path
) -> None:
    Converted(architecture, {"general.type": kind}, {"v.blk.0.ln1.bias": torch.ones(3)}).save(path)
    with pytest.raises(LexrayError, match=f"{says}.*open the GGUF file of the model itself"):
        opened(path)


def test_companions_in_a_folder_are_named_and_left(tmp_path: Path) -> None:
    converted("llama").save(tmp_path / "tiny-Q8_0.gguf")
    converted("gpt2").save(tmp_path / "mmproj-tiny-f16.gguf")
    converted("gpt2").save(tmp_path / "tiny.imatrix.gguf")
    model = Model.from_pretrained(tmp_path)
    assert model.family.name == "llama"
    assert "mmproj-tiny-f16.gguf, tiny.imatrix.gguf" in " ".join(model.checkpoint.notes)
    for part in (1, 2):
        converted("gpt2").save(tmp_path / f"tiny-F16-{part:05}-of-00002.gguf")
    with pytest.raises(LexrayError) as error:
        Model.from_pretrained(tmp_path)
    assert "2 GGUF models (tiny-F16-00001-of-00002.gguf in 2 parts, tiny-Q8_0.gguf)" in str(
        error.value
    )


def test_an_unknown_architecture_is_told_whom_it_resembles(path: Path) -> None:
    called(converted("llama"), "brandnew").save(path)
    with pytest.raises(LexrayError) as error:
        opened(path)
    assert "'brandnew'" in str(error.value)
    assert "It resembles 'llama', whose names are those of 18 of its 18" in str(error.value)
    assert "family='llama' (--family llama)" in str(error.value)
    module = build("llama")
    tried = Model.from_pretrained(path, family="llama").view("raw")
    for oracle in ("OV", "rotation", "FF", "unembedding"):
        ORACLES[oracle](module, Model.from_module(module).view("raw"), tried)


def test_an_unknown_architecture_is_not_forced_into_a_family(path: Path) -> None:
    called(converted("olmo2"), "brandnew").save(path)
    with pytest.raises(LexrayError, match=r"nor as one of the family 'opt'.*It resembles"):
        Model.from_pretrained(path, family="opt")
    with pytest.raises(LexrayError, match="unknown family 'nonsense'"):
        Model.from_pretrained(path, family="nonsense")


@pytest.mark.parametrize("architecture", ["mamba", "gptj"])
def test_unknown_architectures_are_refused_by_name(architecture: str, path: Path) -> None:
    Converted(architecture, {}, {"token_embd.weight": torch.zeros(3, 4)}).save(path)
    with pytest.raises(LexrayError) as error:
        opened(path)
    assert repr(architecture) in str(error.value)
    assert "falcon, falcon-h1, gemma, gemma2" in str(error.value)
    assert "Try the model's safetensors" in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "llama-yarn",
        "mixtral",
        "qwen2-moe",
        "gemma2",
        "phi3",
        "gpt2",
        "neox",
        "falcon-7b",
        "cohere2",
        "deepseek-v3",
        "qwen3.5",
        "qwen3-next",
        "granite4",
        "jamba",
        "nemotron-h",
        "lfm2-moe",
        "falcon-h1",
        "gpt-oss",
        "exaone4",
        "glm",
        "ernie-moe",
    ],
)
def test_missing_or_senseless_metadata(name: str, path: Path) -> None:
    """Any key may be missing, of another type or absurd: it is refused by name, or does no harm."""
    whole = converted(name)
    keys = [key for key in whole.metadata if key.startswith(f"{whole.architecture}.")]
    for key in keys:
        for value in (None, "seven", 0, 2**32 - 1, [2, 2], -1.5):
            metadata = whole.metadata | {key: value}
            spoilt = {k: v for k, v in metadata.items() if v is not None}
            replace(whole, metadata=spoilt).save(path)
            said = refusal(path)
            assert said is None or key in said or "metadata" in said, f"{key} = {value}: {said}"


def refusal(path: Path) -> str | None:
    try:
        opened(path)
    except LexrayError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llama", "block_count"),
        ("llama", "embedding_length"),
        ("llama", "attention.head_count"),
        ("llama", "attention.layer_norm_rms_epsilon"),
        ("mixtral", "feed_forward_length"),
        ("mixtral", "expert_count"),
        ("mixtral", "expert_used_count"),
        ("neox", "rope.dimension_count"),
        ("phi", "rope.dimension_count"),
        ("stablelm", "rope.dimension_count"),
        ("cohere", "logit_scale"),
        ("cohere2", "attention.sliding_window"),
    ],
)
def test_needed_metadata_is_asked_for_by_name(name: str, key: str, path: Path) -> None:
    lacking = converted(name)
    del lacking.metadata[lacking.key(key)]
    lacking.save(path)
    with pytest.raises(LexrayError, match=f"lacks the metadata {lacking.key(key)}"):
        opened(path)


def test_sizes_per_layer_are_refused(path: Path) -> None:
    uneven = converted("llama")
    uneven.metadata["llama.attention.head_count_kv"] = [2, 1]
    uneven.save(path)
    with pytest.raises(LexrayError, match=r"llama\.attention\.head_count_kv differs from layer"):
        opened(path)


@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        ("llama", "blk.0.attn_q.scale", "blk.0.attn_q.scale has 24 factors"),
        ("llama", "blk.0.attn_norm_2.scale", "blk.0.attn_norm_2.scale, which lexray does not know"),
        ("qwen3-moe", "blk.0.ffn_up_shexp.weight", "ffn_up_shexp.weight should be a matrix"),
        ("qwen3-moe", "blk.0.ffn_down_shexp.weight", "ffn_down_shexp.weight, which.*qwen3moe"),
        ("llama", "blk.1.attn_sinks.weight", "blk.1.attn_sinks.weight, which lexray does not know"),
        ("llama", "blk.2.attn_q.weight", "blk.2.attn_q.weight, which lexray does not know"),
    ],
)
def test_unknown_tensors_are_refused(name: str, tensor: str, says: str, path: Path) -> None:
    strange = converted(name)
    strange.tensors[tensor] = torch.ones(24)
    strange.save(path)
    with pytest.raises(LexrayError, match=says):
        opened(path)


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
    live, model = Model.from_module(module).view("raw"), opened(path)
    ORACLES["unembedding"](module, live, model)
    with torch.no_grad():
        torch.testing.assert_close(
            model.module()(IDS).logits, module(IDS).logits, atol=1e-5, rtol=1e-4
        )


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
