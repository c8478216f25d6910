"""SmolLM3: Llama in which every fourth layer goes without rotary positions."""

from __future__ import annotations

from dataclasses import replace

from lexray.families import llama
from lexray.families.gguf import names as gguf
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture

DEFAULTS = {
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_theta": 2e6,
    "no_rope_layer_interval": 4,
    "num_key_value_heads": 4,
}


@family("smollm3", title="SmolLM3", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    plain = llama.describe(c, t)
    kinds = c.get("layer_types")
    blocks = []
    for n, block in enumerate(plain.blocks):
        rotary = block.attention.rotary if turns(c, n) else None
        slides = kinds[n] == "sliding_attention" if kinds else rotary is None
        window = c.get("sliding_window") if slides and c.get("use_sliding_window") else None
        blocks.append(
            replace(block, attention=replace(block.attention, rotary=rotary, window=window))
        )
    return replace(plain, blocks=tuple(blocks))


def turns(c: Config, n: int) -> bool:
    """Whether layer n is rotary: `no_rope_layers` has 1 for the rotary ones."""
    if listed := c.get("no_rope_layers"):
        return bool(listed[n])
    return bool((n + 1) % c["no_rope_layer_interval"])


gguf.declare("smollm3", gguf.Naming("smollm3", {**gguf.LLAMA, **gguf.TURNED}))
