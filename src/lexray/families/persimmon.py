"""Persimmon: GPT-NeoX's fused queries, keys and values, of which the first two have LayerNorms;
squared ReLU, half of each head rotary, all biases."""

from __future__ import annotations

from functools import partial

from lexray.families.gpt_neox import plain_sizes
from lexray.families.linear import interleaved
from lexray.families.parts import attention, decoder, same_for_all
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, FeedForward

DEFAULTS = {
    "tie_word_embeddings": False,
    "layer_norm_eps": 1e-5,
    "hidden_act": "relu2",
    "qk_layernorm": True,
    "rope_theta": 10_000.0,
    "partial_rotary_factor": 0.5,
}


@family("persimmon", title="Persimmon", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    norm = partial(t.norm, "layer", eps=c["layer_norm_eps"])
    return decoder(c, t, block, norm, last="final_layernorm")


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, norm = plain_sizes(c), partial(t.norm, "layer", eps=c["layer_norm_eps"])
    qkv, inner = t.linear(f"{stem}self_attn.query_key_value"), f"{stem}self_attn."
    q, k, v = (interleaved(qkv, s["n_heads"], s["d_head"], part) for part in range(3))
    q_norm, k_norm = (
        same_for_all(norm(f"{inner}{x}_layernorm"), s["n_heads"]) if c["qk_layernorm"] else None
        for x in "qk"
    )
    return Block(
        attention(
            {"q": q, "k": k, "v": v, "o": t.linear(f"{inner}dense")},
            s,
            rotary(c, s["d_head"], theta=c["rope_theta"], partial=c["partial_rotary_factor"]),
            pre_norm=norm(f"{stem}input_layernorm"),
            q_norm=q_norm,
            k_norm=k_norm,
        ),
        FeedForward(
            w_in=t.linear(f"{stem}mlp.dense_h_to_4h"),
            w_out=t.linear(f"{stem}mlp.dense_4h_to_h"),
            activation=c["hidden_act"],
            d_mlp=s["d_mlp"],
            pre_norm=norm(f"{stem}post_attention_layernorm"),
        ),
    )
