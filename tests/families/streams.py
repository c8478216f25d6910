"""Tiny random models of several residual streams, with awkward sizes."""

from __future__ import annotations

from functools import cache
from typing import Any

from transformers import PreTrainedModel

from tests.families import zoo
from tests.families.zoo import LLAMA, Variant

GEMMA3N: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "full", "full")],
    "sliding_window": 3,
    "head_dim": 6,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 5,
    "vocab_size_per_layer_input": 37,
    "laurel_rank": 7,
    "altup_num_inputs": 3,
    "intermediate_size": [20, 20, 18, 22, 20],
    "activation_sparsity_pattern": [0.8, 0.6, 0.0, 0.0, 0.0],
}
STREAMS = [
    Variant("gemma3n", "gemma3n_text", LLAMA | GEMMA3N),
    Variant(
        "gemma3n-even",
        "gemma3n_text",
        LLAMA
        | GEMMA3N
        | {"intermediate_size": 20, "activation_sparsity_pattern": None}
        | {"num_kv_shared_layers": 0, "altup_active_idx": 0},
    ),
]


@cache
def build_streams(name: str) -> PreTrainedModel:
    """The model of the variant of this name."""
    return zoo.make(next(v for v in STREAMS if v.name == name))
