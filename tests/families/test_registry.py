"""Configs: what null and missing mean, and which family knows them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from lexray.errors import LexrayError
from lexray.families import Config, Linear, Names, Norm, families, find_family, registry
from lexray.model.model import Model
from tests.families.oracles import close, run
from tests.families.zoo import LLAMA, MOE, VARIANTS, build


def test_kimi_is_deepseek_under_another_name(tmp_path: Path) -> None:
    """transformers knows its models by DeepSeek's type alone; checkpoints say `kimi_k2`."""
    module = build("deepseek-v3")
    module.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    kimi = {"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config | kimi))
    model = Model.from_pretrained(tmp_path)
    assert model.family.title == "DeepSeek V3"
    close(model.trace([5, 11, 3]).logits, run(module, torch.tensor([[5, 11, 3]])).logits[0])


def test_missing_and_null_fall_back_to_the_default() -> None:
    c = Config({"null": None, "given": 3, "no": False}, {"null": 1, "missing": 2, "given": 9})
    assert (c["null"], c["missing"], c["given"], c["no"]) == (1, 2, 3, False)


def test_get_leaves_null_as_it_is() -> None:
    c = Config({"null": None, "given": 3}, {"null": 1, "missing": 2, "given": 9})
    assert (c.get("null"), c.get("missing"), c.get("given")) == (None, 2, 3)
    assert (c.get("absent"), c.get("absent", 7), c.get("missing", 7)) == (None, 7, 2)


@pytest.mark.parametrize("raw", [{}, {"n_layer": None}])
def test_what_is_needed_and_absent_is_named(raw: dict[str, Any]) -> None:
    with pytest.raises(LexrayError, match=r"lacks 'n_layer', which models of type 'gpt2' need"):
        Config({"model_type": "gpt2", **raw})["n_layer"]


def test_first_of_several_words() -> None:
    c = Config({"n_embed": 8, "n_head": None, "num_attention_heads": 2})
    assert c.first("hidden_size", "n_embed") == 8
    assert c.first("n_head", "num_attention_heads") == 2
    with pytest.raises(LexrayError, match="lacks 'n_layer'"):
        c.first("n_layer", "num_hidden_layers")


def test_a_config_is_a_mapping() -> None:
    c = Config({"a": 1}, {"a": 0, "b": 2})
    assert (sorted(c), len(c), dict(c)) == (["a", "b"], 2, {"a": 1, "b": 2})


def test_names() -> None:
    t = Names({"model.x.weight", "model.x.bias", "model.y.gamma", "model.y.beta", "model.z.weight"})
    assert t.pick("nope", "model.z.weight") == "model.z.weight"
    assert t.pick("nope") is None
    assert t.prefix("x.weight", "", "model.") == "model."
    assert t.prefix("nope", "first.", "second.") == "first."
    assert t.linear("model.x") == Linear("model.x.weight", "model.x.bias")
    assert t.linear("model.z", in_first=True) == Linear("model.z.weight", None, in_first=True)
    assert t.norm("layer", "model.y", 1e-5) == Norm("layer", "model.y.gamma", "model.y.beta", 1e-5)
    assert t.norm("rms", "model.z", 1e-6).bias is None


def test_finding_a_family() -> None:
    assert find_family({"model_type": "mistral"}).title == "Mistral"
    assert find_family({"model_type": "xlm-roberta"}).title == "RoBERTa"
    assert find_family({"model_type": "mistral"}, "llama").title == "Llama"
    assert find_family({"model_type": "my_own"}, "gemma3").title == "Gemma 3"
    assert find_family({}, "gpt2").title == "GPT-2"


@pytest.mark.parametrize("model_type", sorted(registry.UNSUPPORTED))
def test_recognised_and_refused_by_name(model_type: str) -> None:
    with pytest.raises(LexrayError, match=f"'{model_type}' are recognised but not supported"):
        find_family({"model_type": model_type})


def test_nothing_is_both_supported_and_refused() -> None:
    supported = {kind for family in families().values() for kind in family.model_types}
    assert not supported & registry.UNSUPPORTED.keys()


@pytest.mark.parametrize("odd", [["llama"], 3, {"a": 1}])
def test_an_odd_model_type_is_unknown(odd: Any) -> None:
    with pytest.raises(LexrayError, match="unknown model type"):
        find_family({"model_type": odd})


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("qwen2", {}),
        ("qwen2_moe", MOE | {"num_hidden_layers": 4, "max_window_layers": 3}),
        ("qwen3_moe", MOE),
        ("smollm3", {"num_hidden_layers": 5, "no_rope_layer_interval": 3}),
        ("gemma2", {}),
        ("gemma3_text", {"num_hidden_layers": 7}),
        ("cohere2", {"num_hidden_layers": 5}),
    ],
    ids=str,
)
def test_windows_without_layer_types(model_type: str, options: dict[str, Any]) -> None:
    """Older configs do not list their layers' kinds: they follow from the other entries."""
    windows = {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
    options = LLAMA | windows | options
    new = AutoConfig.for_model(model_type, **options).to_dict()
    old = {key: value for key, value in new.items() if key != "layer_types"}
    found, family = [], find_family(new)
    for config in (new, old):
        blocks = family.architecture(config, set()).blocks
        found.append([(block.attention.window, block.attention.rotary) for block in blocks])
    assert found[0] == found[1]
    assert any(window == 3 for window, _ in found[0])


@pytest.mark.parametrize("own", [{"num_key_value_heads": -4}, {"num_key_value_heads": -2}])
def test_a_layer_of_its_own_without_heads(own: dict[str, int]) -> None:
    variant = next(v for v in VARIANTS if v.model_type == "gemma4_unified_text")
    model = build(variant.name)
    config = model.config.to_dict()
    each = {str(n): dict(said) for n, said in config["per_layer_config"].items()}
    spoiled = config | {"per_layer_config": each | {"1": each["1"] | own}}
    find_family(config).architecture(config, model.state_dict().keys())
    with pytest.raises(LexrayError, match="layer 1 has no heads"):
        find_family(config).architecture(spoiled, model.state_dict().keys())


@pytest.mark.parametrize(
    ("model_type", "entry"),
    [
        ("t5", "num_decoder_layers"),
        ("t5", "num_layers"),
        ("bart", "encoder_layers"),
        ("bart", "decoder_attention_heads"),
    ],
)
def test_a_stack_without_end_is_refused_before_it_is_described(model_type: str, entry: str) -> None:
    config = {"model_type": model_type, "d_model": 8, "vocab_size": 37, entry: 10**9}
    with pytest.raises(LexrayError, match="no model"):
        find_family(config).architecture(config, ["shared.weight"])
