"""LoRA adapters against PEFT itself: every tensor of `merge_and_unload`, and every slice."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.lora import LoraCheckpoint, NameMatcher
from lexray.checkpoint.opening import open_checkpoint
from lexray.errors import LexrayError

pytestmark = pytest.mark.filterwarnings("ignore")


def tiny(family: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    torch.manual_seed(0)
    if family == "gpt2":
        ids = {"bos_token_id": 0, "eos_token_id": 0}
        config = GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=13, n_positions=9, **ids)
        return GPT2LMHeadModel(config).to(dtype)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "vocab_size": 13}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    options = {"tie_word_embeddings": False, "attention_bias": True} | options
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **options)).to(dtype)


def adapted(
    folder: Path, family: str = "llama", dtype: torch.dtype = torch.float32, **lora: Any
) -> tuple[Path, Path, PeftModel]:
    """A base folder, an adapter folder, and PEFT's model of the two, with random weights."""
    model = tiny(family, dtype)
    model.save_pretrained(folder / "base")
    model.name_or_path = str(folder / "base")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft = get_peft_model(model, LoraConfig(**{"r": 3, "lora_alpha": 5} | lora))
        shake(peft)
        peft.save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter", peft


def shake(peft: torch.nn.Module) -> None:
    """Trained-looking values for all that an adapter holds."""
    torch.manual_seed(1)
    for name, parameter in peft.named_parameters():
        if parameter.requires_grad or "modules_to_save" in name:
            parameter.data = parameter.data + torch.randn_like(parameter) / 3


def assert_merged(ours: Checkpoint, peft: PeftModel, tolerance: float = 1e-5) -> None:
    """Each tensor of the merged model, under its own name or without its prefix."""
    merged = deepcopy(peft).merge_and_unload()
    for name, tensor in merged.state_dict().items():
        if name not in ours.names():
            assert name == "lm_head.weight"  # tied, not on disk
            continue
        found = ours.read(name)
        assert found.dtype == ours.info(name).dtype
        torch.testing.assert_close(found, tensor.to(found.dtype), atol=tolerance, rtol=tolerance)
        if tensor.ndim == 2:
            rows, columns = slice(1, 3), slice(2, 5)
            assert torch.allclose(ours.read(name, rows), found[rows], atol=1e-6)
            assert torch.allclose(ours.read(name, rows, columns), found[rows, columns], atol=1e-6)
        else:
            assert torch.allclose(ours.read(name, slice(1, 3)), found[1:3], atol=1e-6)


ATTENTION = {"llama": ["q_proj", "o_proj", "down_proj"], "gpt2": ["c_attn", "c_proj", "c_fc"]}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "patterns": {"rank_pattern": {r".*\.1\..*": 2}, "alpha_pattern": {"(o|c)_proj": 7}},
    "dora": {"use_dora": True},
    "biases": {"bias": "all"},
    "biases of layers": {"bias": "lora_only"},
    "saved head": {"modules_to_save": ["lm_head"]},
}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_peft(tmp_path: Path, family: str, variant: str) -> None:
    options = {"target_modules": ATTENTION[family]} | VARIANTS[variant]
    base, adapter, peft = adapted(tmp_path, family, **options)
    ours = LoraCheckpoint(adapter, open_checkpoint(base))
    assert_merged(ours, peft)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_embeddings(tmp_path: Path, family: str, dora: bool) -> None:
    target = "embed_tokens" if family == "llama" else "wpe"
    options = {"target_modules": [target], "use_dora": dora}
    base, adapter, peft = adapted(tmp_path, family, **options)
    assert_merged(LoraCheckpoint(adapter, open_checkpoint(base)), peft)


def test_biases_of_lora_itself(tmp_path: Path) -> None:
    options = {"target_modules": ["q_proj", "v_proj"], "lora_bias": True}
    base, adapter, peft = adapted(tmp_path, **options)
    assert_merged(LoraCheckpoint(adapter, open_checkpoint(base)), peft)


def test_half_precision_is_computed_in_full(tmp_path: Path) -> None:
    options = {"target_modules": ATTENTION["llama"]}
    base, adapter, peft = adapted(tmp_path, "llama", torch.bfloat16, **options)
    ours = LoraCheckpoint(adapter, open_checkpoint(base))
    assert ours.info("model.norm.weight").dtype == torch.bfloat16
    assert_merged(ours, peft, tolerance=1e-2)


def test_square_conv1d_beside_a_linear_head(tmp_path: Path) -> None:
    """PEFT then saves `fan_in_fan_out: false`, although the square c_proj is stored in×out."""
    options = {"target_modules": ["attn.c_attn", "attn.c_proj", "lm_head"]}
    base, adapter, peft = adapted(tmp_path, "gpt2", **options)
    assert not json.loads((adapter / "adapter_config.json").read_text())["fan_in_fan_out"]
    weights = load_file(base / "model.safetensors")
    weights["lm_head.weight"] = weights["transformer.wte.weight"].clone()
    save_file(weights, base / "model.safetensors")
    ours = LoraCheckpoint(adapter, open_checkpoint(base))
    found = ours.read("transformer.h.1.attn.c_proj.weight")
    merged = peft.merge_and_unload().transformer.h[1].attn.c_proj.weight
    assert torch.allclose(found, merged, atol=1e-5)


def test_only_square_conv1d(tmp_path: Path) -> None:
    base, adapter, peft = adapted(tmp_path, "gpt2", target_modules=["attn.c_proj"])
    assert_merged(LoraCheckpoint(adapter, open_checkpoint(base)), peft)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_factors_are_oriented_as_stored(tmp_path: Path, family: str) -> None:
    base, adapter, _ = adapted(tmp_path, family, target_modules=ATTENTION[family])
    below = open_checkpoint(base)
    ours = LoraCheckpoint(adapter, below)
    changed = 0
    for name in ours.names():
        factors = ours.factors(name)
        before, after = below.read(name), ours.read(name)
        if factors is None:
            assert before.equal(after)
            continue
        changed += 1
        A, B, scale = factors
        assert (A.shape[0], B.shape[1]) == (3, 3)
        assert torch.allclose(before + scale * B @ A, after, atol=1e-6)
    assert changed == 2 * len(ATTENTION[family]) + 2 * (family == "gpt2")


def test_stretched_matrices_have_no_factors(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"], use_dora=True)
    ours = LoraCheckpoint(adapter, open_checkpoint(base))
    assert ours.factors("model.layers.0.self_attn.q_proj.weight") is None


def test_only_the_needed_parts_are_read(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["down_proj"])
    ours = LoraCheckpoint(adapter, open_checkpoint(base))
    name = "model.layers.0.mlp.down_proj.weight"  # 8×12, r = 3, four bytes each
    for index, needed in [
        ((slice(0, 2),), 2 * 12 + 2 * 3 + 3 * 12),
        ((slice(None), slice(5, 6)), 8 + 8 * 3 + 3),
        ((), 8 * 12 + 8 * 3 + 3 * 12),
    ]:
        before = ours.bytes_read
        assert ours.cost(name, *index) == 4 * needed
        ours.read(name, *index)
        assert ours.bytes_read - before == 4 * needed


@pytest.mark.parametrize("dora", [False, True])
def test_gpt2_files_without_their_prefix(tmp_path: Path, dora: bool) -> None:
    options = {"target_modules": ["c_attn", "c_proj"], "use_dora": dora}
    base, adapter, peft = adapted(tmp_path, "gpt2", **options)
    weights = load_file(base / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    save_file(bare, base / "model.safetensors")
    ours = LoraCheckpoint(adapter, open_checkpoint(base))
    merged = peft.merge_and_unload().transformer.state_dict()
    for name in ours.names():
        assert torch.allclose(ours.read(name), merged[name], atol=1e-5)


def test_partners() -> None:
    names = [
        "model.layers.0.q.weight",
        "model.layers.1.q.weight",
        "v.layers.1.q.weight",
        "a.e.weight",
    ]
    find = NameMatcher(names).find
    assert find("model.layers.0.q.weight") == "model.layers.0.q.weight"
    assert find("layers.0.q.weight") == "model.layers.0.q.weight"
    assert find("x.y.layers.0.q.weight") == "model.layers.0.q.weight"
    assert find("layers.1.q.weight") is None  # two of them
    assert find("model.layers.2.q.weight") is None
    assert find("h.0.q.weight") is None
    assert find("b.e.weight") == "a.e.weight"
    assert find("weight") is None


def test_adapters_in_bin_files(tmp_path: Path) -> None:
    base, adapter, peft = adapted(tmp_path, target_modules=["q_proj"])
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    assert_merged(LoraCheckpoint(adapter, open_checkpoint(base)), peft)


def test_a_saved_head_unties(tmp_path: Path) -> None:
    options = {"target_modules": ["c_attn"], "modules_to_save": ["lm_head", "wte"]}
    base, adapter, peft = adapted(tmp_path, "gpt2", **options)
    below = open_checkpoint(base)
    assert "lm_head.weight" not in below.names()
    ours = LoraCheckpoint(adapter, below)
    assert ours.config["tie_word_embeddings"] is False
    merged = peft.merge_and_unload()
    assert ours.read("lm_head.weight").equal(merged.lm_head.weight)
    assert ours.read("transformer.wte.weight").equal(merged.transformer.wte.weight)


def test_grown_vocabularies(tmp_path: Path) -> None:
    model = tiny("llama")
    model.save_pretrained(tmp_path / "base")
    model.name_or_path = str(tmp_path / "base")
    model.resize_token_embeddings(17)
    peft = get_peft_model(model, LoraConfig(target_modules=["q_proj"], r=2))
    peft.save_pretrained(tmp_path / "adapter")
    ours = open_checkpoint(tmp_path / "adapter", base=tmp_path / "base")
    assert ours.info("model.embed_tokens.weight").shape == (17, 8)
    assert ours.read("lm_head.weight").equal(model.lm_head.weight)


def test_the_tokenizer_beside_the_adapter_wins(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    (base / "tokenizer.json").write_text("{}")
    ours = LoraCheckpoint(adapter, open_checkpoint(base))
    assert ours.asset("tokenizer.json") == base / "tokenizer.json"
    (adapter / "tokenizer.json").write_text("{}")
    assert ours.asset("tokenizer.json") == adapter / "tokenizer.json"
    assert ours.asset("vocab.json") is None
    assert ours.config["model_type"] == "llama"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"peft_type": "IA3"}, "adapter of type 'IA3'"),
        ({"peft_type": "PROMPT_TUNING"}, "PROMPT_TUNING"),
        ({"peft_type": None}, "None"),
        ({"target_parameters": ["experts.w"]}, "uses target_parameters"),
        ({"trainable_token_indices": [1]}, "uses trainable_token_indices"),
        ({"alora_invocation_tokens": [1]}, "uses alora_invocation_tokens"),
        ({"init_lora_weights": "pissa_niter_4"}, "initialised with 'pissa_niter_4'"),
        ({"lora_alpha": "many"}, "no usable lora_alpha"),
        ({"lora_alpha": None}, "no usable lora_alpha"),
        ({"alpha_pattern": {"(": 3}}, "no usable lora_alpha"),
        ({"alpha_pattern": [1]}, "no usable lora_alpha"),
        ({"alpha_pattern": {"(?=x)": 3}}, "no usable lora_alpha"),
        ({"alpha_pattern": {"a" * 10**6: 3, "b{1000}" * 1000: 3}}, "no usable lora_alpha"),
        ({"use_rslora": "no"}, "use_rslora should be true or false"),
        ({"modules_to_save": {"a": 1}}, "modules_to_save should be a list"),
    ],
)
def test_what_cannot_be_merged(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LexrayError, match=complaint) as caught:
        LoraCheckpoint(adapter, open_checkpoint(base))
    assert str(path) in str(caught.value)


LAYER = "base_model.model.model.layers.0.self_attn.q_proj."


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({LAYER + "lora_A.weight": None}, "has only"),
        ({LAYER + "lora_A.weight": torch.ones(())}, "no factors"),
        ({LAYER + "lora_A.weight": torch.ones(2, 8)}, "no factors"),
        ({LAYER + "lora_A.weight": torch.ones(3, 9)}, "cannot change"),
        ({LAYER + "lora_magnitude_vector": torch.ones(9)}, "no factors"),
        ({LAYER + "lora_C.weight": torch.ones(2)}, r"does not know.*lora_C"),
        ({"base_model.model.extra.weight": torch.ones(2)}, r"extra\.weight"),
        ({LAYER.replace(".0.", ".7.") + f"lora_{x}.weight": torch.ones(3, 3) for x in "AB"}, "7"),
    ],
)
def test_adapters_that_do_not_fit(
    tmp_path: Path, change: dict[str, torch.Tensor | None], complaint: str
) -> None:
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    path = adapter / "adapter_model.safetensors"
    weights = load_file(path) | change
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, path)
    with pytest.raises(LexrayError, match=complaint):
        LoraCheckpoint(adapter, open_checkpoint(base))


def test_another_base_is_refused_with_the_names(tmp_path: Path) -> None:
    _, adapter, _ = adapted(tmp_path, "gpt2", target_modules=["c_attn"])
    tiny("llama").save_pretrained(tmp_path / "llama")
    with pytest.raises(LexrayError, match=r"transformer\.h\.0\.attn\.c_attn\.weight.*trained on"):
        LoraCheckpoint(adapter, open_checkpoint(tmp_path / "llama"))


def test_a_changed_tied_head_is_refused(tmp_path: Path) -> None:
    base, adapter, _ = adapted(tmp_path, "gpt2", target_modules=["c_attn", "lm_head"])
    with pytest.raises(LexrayError, match="tied"):
        LoraCheckpoint(adapter, open_checkpoint(base))


def test_patterns_that_would_take_for_ever(tmp_path: Path) -> None:
    """Python's own engine tries 2⁶⁰ ways to cut these names; this test would not end."""
    base, adapter, _ = adapted(tmp_path, target_modules=["q_proj"])
    path = adapter / "adapter_config.json"
    patterns = {r"(([a-z_]+)+\.?)+!": 2, r"(.*)*(.*)*(.*)*x": 3, "q_proj": 7}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"alpha_pattern": patterns}))
    ours = LoraCheckpoint(adapter, open_checkpoint(base))
    factors = ours.factors("model.layers.0.self_attn.q_proj.weight")
    assert factors is not None
    assert factors[2] == 7 / 3
