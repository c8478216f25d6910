"""Phi-3 and Phi-4: Llama with fused qkv_proj (q | k | v) and gate_up_proj (gate | up), LongRoPE."""

from __future__ import annotations

from typing import Any

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, decoder, fused, gated_at_once, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}


@family("phi3", "phi4_multimodal", title="Phi-3", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    return Block(
        attention(
            fused(t, f"{stem}self_attn.qkv_proj", f"{stem}self_attn.o_proj", s),
            s,
            rotary(c, s["d_head"]),
            pre_norm=t.norm("rms", f"{stem}input_layernorm", eps),
            window=c.get("sliding_window"),
        ),
        gated_at_once(
            t,
            f"{stem}mlp.",
            s["d_mlp"],
            c["hidden_act"],
            pre_norm=t.norm("rms", f"{stem}post_attention_layernorm", eps),
        ),
    )


def phi3_gguf(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    return {
        "original_max_position_embeddings": m.length("rope.scaling.original_context_length"),
        "sliding_window": m.length("attention.sliding_window"),
    }


gguf.declare(
    "phi3",
    gguf.Naming(
        "phi3",
        {
            **gguf.EMBEDDINGS,
            **gguf.NORMS,
            f"{gguf.LAYER}self_attn.qkv_proj": "blk.{n}.attn_qkv",
            f"{gguf.LAYER}self_attn.o_proj": "blk.{n}.attn_output",
            f"{gguf.LAYER}mlp.gate_up_proj": "blk.{n}.ffn_up",
            f"{gguf.LAYER}mlp.down_proj": "blk.{n}.ffn_down",
        },
        phi3_gguf,
    ),
)
