"""Phi-3 and Phi-4: Llama with fused qkv_proj (q | k | v) and gate_up_proj (gate | up), LongRoPE."""

from __future__ import annotations

from typing import Any

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, fused, sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}


@family("phi3", title="Phi-3", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embed_tokens.weight", "model.", "")
    return Architecture(
        **sizes(c),
        blocks=tuple(block(c, t, f"{body}layers.{n}.") for n in range(c["num_hidden_layers"])),
        final_norm=t.norm("rms", f"{body}norm", c["rms_norm_eps"]),
        **unembedding(c, t, f"{body}embed_tokens.weight", "lm_head.weight"),
    )


def block(c: Config, t: Names, stem: str) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    d_mlp, gate_up = s["d_mlp"], f"{stem}mlp.gate_up_proj"
    return Block(
        attention(
            fused(t, f"{stem}self_attn.qkv_proj", f"{stem}self_attn.o_proj", s),
            s,
            rotary(c, s["d_head"]),
            pre_norm=t.norm("rms", f"{stem}input_layernorm", eps),
            window=c.get("sliding_window"),
        ),
        FeedForward(
            w_in=t.linear(gate_up, start=d_mlp, size=d_mlp),
            w_gate=t.linear(gate_up, start=0, size=d_mlp),
            w_out=t.linear(f"{stem}mlp.down_proj"),
            activation=c["hidden_act"],
            d_mlp=d_mlp,
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
