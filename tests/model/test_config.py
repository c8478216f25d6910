"""What a multimodal config says of its language model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING

from lexray.model.config import LEFT_OUT, text_config
from lexray.model.model import Model
from tests.families.test_multimodal import make
from tests.families.zoo import build


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_is_left_out_is_as_transformers_has_it(kind: str) -> None:
    usual = CONFIG_MAPPING[kind]()
    assert {key: getattr(usual, key) for key in LEFT_OUT[kind]} == LEFT_OUT[kind]


def test_an_inner_config_without_its_usual_sizes() -> None:
    """As LLaVA 1.5 has it."""
    inner = {"model_type": "llama", "vocab_size": 32_064, "rms_norm_eps": 1e-5}
    whole = text_config({"model_type": "llava", "text_config": inner})
    assert whole["model_type"] == "llama"
    assert (whole["vocab_size"], whole["hidden_size"]) == (32_064, 4096)


def test_sizes_of_another_sense_are_not_the_language_models() -> None:
    inner = {"model_type": "qwen2", "hidden_size": 24, "num_attention_heads": 4}
    outer = {"head_dim": 128, "rope_parameters": {"rope_theta": 7.0}, "vocab_size": 37}
    whole = text_config({"model_type": "musicflamingo", "text_config": inner} | outer)
    assert "head_dim" not in whole
    assert "rope_parameters" not in whole
    assert whole["vocab_size"] == 37


def test_an_inner_config_that_says_nothing_is_no_language_model() -> None:
    config = {"model_type": "odd", "text_config": {"model_type": "unheard_of"}}
    assert text_config(config) == config


def test_the_thinker_of_an_omni_model_opens(tmp_path: Path) -> None:
    """Names and config stand one step further in, beside those of the part that speaks."""
    thinker = make("qwen2_5_omni_thinker")
    named = {f"thinker.{name}": x.clone() for name, x in thinker.state_dict().items()}
    spoken = {"talker.model.embed_tokens.weight": torch.zeros(5, 3)}
    save_file(named | spoken, tmp_path / "model.safetensors")
    config = {"model_type": "qwen2_5_omni", "thinker_config": thinker.config.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    model, ids = Model.from_pretrained(tmp_path), torch.tensor([[5, 11, 3]])
    assert model.family.name == "qwen2"
    with torch.no_grad():
        expected = thinker(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    assert torch.allclose(model.trace([5, 11, 3]).logits, expected, atol=1e-4)


def test_a_mixture_without_dense_layers_needs_no_width_of_them(tmp_path: Path) -> None:
    """Configs of Solar Open and Qwen 3.5 do not say one."""
    module = build("solar-open")
    module.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in config.items() if k != "intermediate_size"}))
    assert Model.from_pretrained(tmp_path).d_mlp == config["moe_intermediate_size"]
