"""Mixtral: Mistral's attention, eight experts called w1 (gate), w3 (up) and w2 (down) on disk."""

from __future__ import annotations

from dataclasses import replace

from lexray.families import llama
from lexray.families.experts import mixture
from lexray.families.parts import sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 1e6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
}


@family("mixtral", title="Mixtral", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embed_tokens.weight", "model.", "")
    return Architecture(
        **sizes(c),
        blocks=tuple(block(c, t, f"{body}layers.{n}.") for n in range(c["num_hidden_layers"])),
        final_norm=t.norm("rms", f"{body}norm", c["rms_norm_eps"]),
        **unembedding(c, t, f"{body}embed_tokens.weight", "lm_head.weight"),
    )


def block(c: Config, t: Names, stem: str) -> Block:
    moe = t.prefix("gate.weight", f"{stem}block_sparse_moe.", f"{stem}mlp.")
    experts = mixture(
        t,
        moe,
        c["num_local_experts"],
        c["intermediate_size"],
        c["hidden_act"],
        ("w1", "w3", "w2"),
        top_k=c["num_experts_per_tok"],
        normalise=True,
        pre_norm=t.norm("rms", f"{stem}post_attention_layernorm", c["rms_norm_eps"]),
    )
    return replace(llama.block(c, t, stem), ff=experts)
