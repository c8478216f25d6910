"""Jamba and Bamba: one layer of attention without positions (Bamba: half of each head rotary) to
seven of a state space, Mamba's first (Jamba) or second; Jamba has experts in every other layer."""

from __future__ import annotations

from lexray.families.experts import mixture
from lexray.families.linear import Norm
from lexray.families.mixers import MAMBA1, attends, mamba2, mixer, no_attention
from lexray.families.parts import attention, decoder, gated, projections, sizes
from lexray.families.registry import Config, Names, family
from lexray.families.rotary import rotary
from lexray.families.spec import Architecture, Block, Experts, FeedForward, Mixer

DEFAULTS = {
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "mamba_expand": 2,
}
BAMBA = DEFAULTS | {
    "rms_norm_eps": 1e-5,
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
}


@family("jamba", title="Jamba", defaults=DEFAULTS)
@family("bamba", title="Bamba", defaults=BAMBA)
def describe(c: Config, t: Names) -> Architecture:
    def norm(stem: str) -> Norm:
        return t.norm("rms", stem, c["rms_norm_eps"])

    return decoder(c, t, block, norm, "final_layernorm")


def block(c: Config, t: Names, stem: str, n: int) -> Block:
    s, eps = sizes(c), c["rms_norm_eps"]
    before = t.norm("rms", f"{stem}input_layernorm", eps)
    ff = feed_forward(c, t, f"{stem}feed_forward.", t.norm("rms", f"{stem}pre_ff_layernorm", eps))
    if not attends(t, stem):
        return Block(no_attention(s), ff, mixer=state_space(c, t, f"{stem}mamba.", before))
    turns = c.get("model_type") != "jamba"
    p = projections(t, f"{stem}self_attn.", s)
    turned = rotary(c, s["d_head"], partial=0.5) if turns else None
    return Block(attention(p, s, turned, pre_norm=before), ff)


def state_space(c: Config, t: Names, stem: str, before: Norm) -> Mixer:
    """Mamba's second, or its first: values and gates, and all else made from these."""
    if f"{stem}x_proj.weight" not in t:
        return mamba2(c, t, stem, before)
    d_inner = c["mamba_expand"] * c["hidden_size"]
    width = {"in_proj": 2 * d_inner}
    return mixer(t, stem, width, d_inner, "state space", MAMBA1, pre_norm=before)


def feed_forward(c: Config, t: Names, stem: str, norm: Norm) -> FeedForward | Experts:
    d_mlp, act = c["intermediate_size"], c["hidden_act"]
    if f"{stem}router.weight" not in t:
        return gated(t, stem, d_mlp, act, pre_norm=norm)
    return mixture(
        t,
        stem,
        c["num_experts"],
        d_mlp,
        act,
        router="router",
        top_k=c["num_experts_per_tok"],
        normalise=False,
        pre_norm=norm,
    )
