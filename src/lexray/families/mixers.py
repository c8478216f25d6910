"""What hybrids have besides attention: mixers, and layers in which a sub-block is missing.

A mixer is described by the maps that read the residual stream and the one that writes to it. What
lies between (convolutions, decays, states) is named, so that nothing of a checkpoint is unknown,
and not read.
"""

from __future__ import annotations

from typing import Any

from lexray.families.linear import Heads, Norm, Nothing
from lexray.families.parts import Sizes
from lexray.families.registry import Config, Names
from lexray.families.spec import Attention, FeedForward, Mixer

MAMBA2 = ("conv1d.weight", "conv1d.bias", "dt_bias", "A_log", "D", "norm.weight")
MAMBA1 = (
    *("conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias"),
    *("A_log", "D", "dt_layernorm.weight", "b_layernorm.weight", "c_layernorm.weight"),
)
DELTA = (
    *("conv1d.weight", "q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
    *("dt_bias", "A_log", "norm.weight", "o_norm.weight"),
)


def no_attention(s: Sizes) -> Attention:
    """Of a layer without heads."""
    none = Heads(Nothing(shape=(s["d_model"], 0)), (), s["d_head"])
    return Attention(none, none, none, Nothing(shape=(0, s["d_model"])), s["d_head"] ** -0.5)


def no_feed_forward(s: Sizes, activation: str) -> FeedForward:
    """Of a layer without neurons."""
    d_model = s["d_model"]
    return FeedForward(Nothing(shape=(d_model, 0)), Nothing(shape=(0, d_model)), activation, 0)


def mixer(
    t: Names,
    stem: str,
    inputs: dict[str, int],
    d_inner: int,
    kind: str,
    between: tuple[str, ...],
    out: str = "out_proj",
    **norms: Any,
) -> Mixer:
    """The maps called `inputs`, each with so many columns, and `out`, under `stem`."""
    return Mixer(
        tuple(t.linear(stem + name, size=size) for name, size in inputs.items()),
        t.linear(stem + out),
        d_inner,
        kind,
        tuple(stem + name for name in between if stem + name in t),
        **norms,
    )


def mamba2(c: Config, t: Names, stem: str, norm: Norm, **norms: Any) -> Mixer:
    """Gate, values, keys, queries and time steps in one map, as Mamba 2 and its heirs have it."""
    d_inner = c.get("mamba_d_ssm") or int(c["mamba_expand"] * c["hidden_size"])
    states = 2 * c["mamba_n_groups"] * c["mamba_d_state"]
    width = {"in_proj": 2 * d_inner + states + c["mamba_n_heads"]}
    return mixer(t, stem, width, d_inner, "state space", MAMBA2, pre_norm=norm, **norms)


def attends(t: Names, stem: str, query: str = "self_attn.q_proj") -> bool:
    """Whether a layer has heads: configs have called the kinds of layers by many names."""
    return t.pick(f"{stem}{query}.weight") is not None
