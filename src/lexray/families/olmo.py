"""OLMo 1, 2 and 3, all with Llama's names.

OLMo 1 has LayerNorms without parameters and may clip queries, keys and values; OLMo 2 norms only
what the sub-blocks write, and queries and keys over all heads jointly. OLMo 3 adds windows, and
scales the rotary embedding in layers without one. The mixtures are OLMoE (before the sub-blocks, as
Llama) and FlexOlmo (behind them). OLMo Hybrid has three layers of linear attention, normed before
their sub-blocks, to one of attention, normed behind them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.families.experts import mixture
from lexray.families.gguf import layouts
from lexray.families.gguf import names as gguf
from lexray.families.linear import Norm
from lexray.families.mixers import DELTA, attends, mixer, no_attention
from lexray.families.parts import attention, decoder, gated, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import Rotary, rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward, QKNorm

DEFAULTS = {"tie_word_embeddings": False, "hidden_act": "silu", "max_position_embeddings": 2048}
BARE = Norm("layer", None, None, 1e-5)


OLMO2 = DEFAULTS | {"rms_norm_eps": 1e-5}
OLMO3 = OLMO2 | {"rope_theta": 500_000.0, "sliding_window": 4096}
HYBRID = OLMO2 | {"rms_norm_eps": 1e-6}
OLMOE = OLMO2 | {"num_experts_per_tok": 8, "norm_topk_prob": False}


@family("olmo", title="OLMo", defaults=DEFAULTS)
def describe(c: Config, t: Names) -> Architecture:
    return decoder(c, t, olmo1_block, lambda stem: BARE)


@family("olmo2", title="OLMo 2", defaults=OLMO2)
@family("olmo3", title="OLMo 3", defaults=OLMO3)
@family("olmoe", title="OLMoE", defaults=OLMOE)
@family("flex_olmo", title="FlexOlmo", defaults=OLMOE | {"num_experts_per_tok": 5})
def describe2(c: Config, t: Names) -> Architecture:
    return decoder(c, t, olmo2_block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


@family("olmo_hybrid", title="OLMo Hybrid", defaults=HYBRID)
def describe_hybrid(c: Config, t: Names) -> Architecture:
    return decoder(c, t, hybrid_block, lambda stem: t.norm("rms", stem, c["rms_norm_eps"]))


def hybrid_block(c: Config, t: Names, stem: str, n: int) -> Block:
    if attends(t, stem):
        plain = olmo2_block(c, t, stem, n)
        turns = c.get("rope_parameters") or c.get("rope_theta")
        rotated = plain.attention.rotary if turns else None
        heads = replace(plain.attention, rotary=rotated, post_norm=renamed(c, t, stem, False))
        return replace(plain, attention=heads)
    n_values = c["linear_num_value_heads"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    values = n_values * c["linear_value_head_dim"]
    inputs = {"q_proj": keys, "k_proj": keys, "v_proj": values}
    inputs |= {"a_proj": n_values, "b_proj": n_values, "g_proj": values}
    first, second = (renamed(c, t, stem, first) for first in (True, False))
    own, kind = f"{stem}linear_attn.", "linear attention"
    state = mixer(t, own, inputs, values, kind, DELTA, "o_proj", pre_norm=first)
    ff = gated(t, f"{stem}mlp.", c["intermediate_size"], c["hidden_act"], pre_norm=second)
    return Block(no_attention(sizes(c)), ff, mixer=state)


def renamed(c: Config, t: Names, stem: str, first: bool) -> Norm:
    """A hybrid's norm, in memory and under the name that it has on disk."""
    here = "input_layernorm" if first else "post_attention_layernorm"
    there = "attention_layer_norm" if first else "feedforward_layer_norm"
    name = there if f"{stem}{there}.weight" in t else here
    return t.norm("rms", stem + name, c["rms_norm_eps"])


def olmo1_block(c: Config, t: Names, stem: str, n: int) -> Block:
    s = sizes(c)
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            rotary(c, s["d_head"]),
            pre_norm=BARE,
            clip=c.get("clip_qkv"),
        ),
        gated(t, f"{stem}mlp.", s["d_mlp"], c["hidden_act"], pre_norm=BARE),
    )


def olmo2_block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    slides = is_sliding(c, n)
    return Block(
        attention(
            projections(t, f"{stem}self_attn.", s),
            s,
            layer_rotary(c, s["d_head"], slides),
            q_norm=QKNorm(joint=t.norm("rms", f"{stem}self_attn.q_norm", eps)),
            k_norm=QKNorm(joint=t.norm("rms", f"{stem}self_attn.k_norm", eps)),
            clip=c.get("clip_qkv"),
            window=c.get("sliding_window") if slides else None,
            **norms(t, stem, eps, "input_layernorm", "post_attention_layernorm"),
        ),
        feed_forward(c, t, stem, eps),
    )


def norms(t: Names, stem: str, eps: float, before: str, after: str) -> dict[str, Any]:
    """OLMoE norms what the sub-blocks read, the others what they write."""
    pre = f"{stem}input_layernorm.weight" in t
    kind, name = ("pre_norm", before) if pre else ("post_norm", after)
    return {kind: t.norm("rms", stem + name, eps)}


def feed_forward(c: Config, t: Names, stem: str, eps: float) -> FeedForward | Experts:
    normed = norms(t, stem, eps, "post_attention_layernorm", "post_feedforward_layernorm")
    d_mlp, act = c["intermediate_size"], c["hidden_act"]
    if f"{stem}mlp.gate.weight" not in t:
        return gated(t, f"{stem}mlp.", d_mlp, act, **normed)
    return mixture(
        t,
        f"{stem}mlp.",
        c["num_experts"],
        d_mlp,
        act,
        top_k=c["num_experts_per_tok"],
        normalise=c["norm_topk_prob"],
        **normed,
    )


def is_sliding(c: Config, n: int) -> bool:
    """In OLMo 3 all but every fourth layer look through a window."""
    if kinds := c.get("layer_types"):
        return bool(kinds[n] == "sliding_attention")
    return c.get("sliding_window") is not None and (n + 1) % 4 != 0


def layer_rotary(c: Config, d_head: int, slides: bool) -> Rotary:
    """What stretches the context leaves layers with a window as they are."""
    kind = "sliding_attention" if slides else "full_attention"
    if slides and kind not in (c.get("rope_parameters") or {}):
        return rotary({"rope_theta": c.get("rope_theta")}, d_head)
    return rotary(c, d_head, layer_type=kind)


gguf.declare(
    "olmo",
    gguf.Naming(
        "olmo",
        {**gguf.LLAMA, **gguf.TURNED},
        lambda m, c: {"clip_qkv": m.get("attention.clamp_kqv") or None},
    ),
)


OLMO2_GGUF: gguf.Names = {
    **gguf.EMBEDDINGS,
    **gguf.ATTENTION,
    **gguf.MLP,
    **gguf.QK_NORMS,
    **gguf.AFTER,
}


def olmo2_gguf(m: gguf.Keys) -> gguf.Naming:
    """OLMo 3 has windows, and is written as OLMo 2 is for the rest."""
    if m.length("attention.sliding_window") is None:
        return gguf.Naming("olmo2", OLMO2_GGUF)
    return gguf.Naming("olmo3", OLMO2_GGUF, layouts.windows)


def olmoe_gguf(m: gguf.Keys) -> gguf.Naming:
    names = {**gguf.LLAMA, **gguf.QK_NORMS, **layouts.name_experts(m)}
    return gguf.Naming("olmoe", names, lambda m, c: {"intermediate_size": layouts.expert_width(m)})


gguf.declare("olmo2", olmo2_gguf)
gguf.declare("olmoe", olmoe_gguf)
