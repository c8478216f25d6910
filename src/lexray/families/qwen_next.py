"""Qwen3-Next and Qwen 3.5: three layers of gated linear attention (DeltaNet) to one of attention.

Heads have a gate: half of what the query's map gives multiplies, as a sigmoid, what a head writes.
Norms are stored as w and used as 1 + w; a quarter of each head is rotary.
"""

from __future__ import annotations

from lexray.families import qwen
from lexray.families.linear import Heads, Norm
from lexray.families.mixers import DELTA, attends, mixer, no_attention
from lexray.families.parts import attention, decoder, projections, qk_norms, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Attention, Block, Mixer

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
MOE = DEFAULTS | {"norm_topk_prob": True}


@family("qwen3_next", title="Qwen3-Next", defaults=MOE | {"num_experts_per_tok": 10})
@family("qwen3_5_text", "qwen3_5", title="Qwen 3.5", defaults=DEFAULTS)
@family(
    "qwen3_5_moe_text",
    "qwen3_5_moe",
    title="Qwen 3.5 (MoE)",
    defaults=MOE | {"num_experts_per_tok": 8},
)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, block, lambda stem: norm(c, t, stem))


def norm(c: Config, t: Names, stem: str) -> Norm:
    return t.norm("rms", stem, c["rms_norm_eps"], plus_one=True)


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    before = norm(c, t, f"{stem}input_layernorm")
    ff = qwen.feed_forward(c, t, stem, n, norm(c, t, f"{stem}post_attention_layernorm"))
    if attends(t, stem):
        return Block(gated_heads(c, t, f"{stem}self_attn.", before), ff)
    return Block(no_attention(sizes(c)), ff, mixer=delta_net(c, t, f"{stem}linear_attn.", before))


def gated_heads(c: Config, t: Names, stem: str, before: Norm) -> Attention:
    """Each head's query and, beside it, its gate."""
    s = sizes(c)
    p, width = projections(t, stem, s), s["d_head"]
    query, gate = (
        Heads(p["q"].linear, tuple((2 * h + i) * width for h in range(s["n_heads"])), width)
        for i in (0, 1)
    )
    p["q"] = query
    normed = qk_norms(t, s, stem, c["rms_norm_eps"], plus_one=True)
    return attention(p, s, rotary(c, width, partial=0.25), pre_norm=before, gate=gate, **normed)


def delta_net(c: Config, t: Names, stem: str, before: Norm) -> Mixer:
    """Queries, keys, values and gates (z) in one map or two, decays and rates (b, a) likewise."""
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    n_values = c["linear_num_value_heads"]
    values = n_values * c["linear_value_head_dim"]
    if f"{stem}in_proj_qkvz.weight" in t:
        inputs = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * n_values}
    else:
        inputs = {
            "in_proj_qkv": 2 * keys + values,
            "in_proj_z": values,
            "in_proj_b": n_values,
            "in_proj_a": n_values,
        }
    return mixer(t, stem, inputs, values, "linear attention", DELTA, pre_norm=before)
