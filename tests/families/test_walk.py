"""The walk names what the checkpoint holds: nothing is passed over, nothing made up."""

from __future__ import annotations

import pytest

from lexray.families import Linear, Norm
from lexray.families.walk import linears, tensor_names, tensors, walk
from lexray.model.info import LABELS, parameters
from lexray.model.model import Model
from tests.families.zoo import build

NAMES = ["gpt2", "llama", "gemma2", "bert", "opt-350m", "qwen2-moe", "mixtral", "olmo2", "phi"]
UNREAD = ("rotary", "inv_freq", "position_ids", "pooler", "masked_bias", ".attn.bias")
ALIASES = {"lm_head.weight", *(f"cls.predictions.decoder.{x}" for x in ("weight", "bias"))}
"""Second names of tensors that are tied."""


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_is_named_once_walked(name: str) -> None:
    model = Model.from_module(build(name))
    held = {n for n in model.checkpoint.names() if not any(part in n for part in UNREAD)}
    named = tensor_names(model.architecture)
    assert named <= set(model.checkpoint.names()) | {model.architecture.unembed}
    assert not held - named - ALIASES


@pytest.mark.parametrize("name", NAMES)
def test_info_has_a_row_for_every_tensor(name: str) -> None:
    model = Model.from_module(build(name))
    listed = sum(row["count"] for row in parameters(model))
    tied = {model.architecture.unembed} if model.architecture.tied else set()
    there = tensor_names(model.architecture) & set(model.checkpoint.names())
    shared = tied - {model.architecture.embed}
    assert listed >= len(there - shared), "fused tensors stand in a row for each of their parts"


def test_parts_of_a_description() -> None:
    block = Model.from_module(build("llama")).architecture.blocks[1]
    found = dict(walk(block))
    query, norm = found["attention.q.linear"], found["ff.pre_norm"]
    assert isinstance(query, Linear)
    assert isinstance(norm, Norm)
    assert tensors(query) == ("model.layers.1.self_attn.q_proj.weight", None)
    assert tensors(norm) == ("model.layers.1.post_attention_layernorm.weight", None)
    assert len(list(linears(block))) == 7
    assert all(f"blocks.{path}" in LABELS for path in found)
