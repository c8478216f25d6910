"""Phi-1, 1.5 and 2: parallel block behind one LayerNorm, half of each head rotary, all biases."""

from __future__ import annotations

from typing import Any

from lexray.families.gguf import names as gguf
from lexray.families.parts import attention, projections, same_for_all, sizes, unembedding
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {"tie_word_embeddings": False, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new"}
NAMES = ("q_proj", "k_proj", "v_proj", "dense")


@family("phi", title="Phi", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    body = t.prefix("embed_tokens.weight", "model.", "")
    return Architecture(
        **sizes(c),
        blocks=tuple(block(c, t, f"{body}layers.{n}.") for n in range(c["num_hidden_layers"])),
        final_norm=t.norm("layer", f"{body}final_layernorm", c["layer_norm_eps"]),
        **unembedding(c, t, f"{body}embed_tokens.weight", "lm_head.weight"),
    )


def block(c: Config, t: Names, stem: str) -> Block:
    s, eps = sizes(c), c["layer_norm_eps"]
    norm = t.norm("layer", f"{stem}input_layernorm", eps)
    q_norm, k_norm = (t.norm("layer", f"{stem}self_attn.{x}_layernorm", eps) for x in "qk")
    qk = c.get("qk_layernorm")
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s, NAMES),
            s,
            rotary(c, s["d_head"], partial=0.5),
            pre_norm=norm,
            q_norm=same_for_all(q_norm, s["n_heads"]) if qk else None,
            k_norm=same_for_all(k_norm, s["n_kv_heads"]) if qk else None,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.fc1"),
            w_out=t.linear(f"{stem}mlp.fc2"),
            activation=c["hidden_act"],
            d_mlp=s["d_mlp"],
            pre_norm=norm,
        ),
        parallel=True,
    )


def phi2_gguf(m: gguf.Keys, c: dict[str, Any]) -> dict[str, Any]:
    m.need("rope.dimension_count")
    return {}


gguf.declare(
    "phi2",
    gguf.Naming(
        "phi",
        {
            "model.embed_tokens": "token_embd",
            "model.final_layernorm": "output_norm",
            "lm_head": "output",
            f"{gguf.LAYER}self_attn.q_proj": "blk.{n}.attn_q",
            f"{gguf.LAYER}self_attn.k_proj": "blk.{n}.attn_k",
            f"{gguf.LAYER}self_attn.v_proj": "blk.{n}.attn_v",
            f"{gguf.LAYER}self_attn.dense": "blk.{n}.attn_output",
            f"{gguf.LAYER}input_layernorm": "blk.{n}.attn_norm",
            f"{gguf.LAYER}mlp.fc1": "blk.{n}.ffn_up",
            f"{gguf.LAYER}mlp.fc2": "blk.{n}.ffn_down",
        },
        phi2_gguf,
    ),
)
