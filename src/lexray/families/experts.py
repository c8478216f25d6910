"""Mixtures of experts: one small matrix per expert on disk, one stack for all in transformers 5."""

from __future__ import annotations

from typing import Any

from lexray.families.linear import Linear, Norm
from lexray.families.parts import gated
from lexray.families.registry import Config, Names
from lexray.families.spec import Experts, FeedForward, Routing

GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
W1_W3_W2 = ("w1", "w3", "w2")
MOST = 1 << 14
"""Experts of a layer: many times what models have."""


def mixture(
    t: Names,
    stem: str,
    n: int,
    d_mlp: int,
    activation: str,
    names: tuple[str, str, str] = GATE_UP_DOWN,
    router: str = "gate",
    **rest: Any,
) -> Experts:
    """`n` gated experts under `stem`, and their router there."""
    make = stacked if f"{stem}experts.gate_up_proj" in t else separate
    return Experts(
        router=t.linear(stem + router),
        experts=tuple(make(t, stem, e, d_mlp, activation, names) for e in each_expert(n)),
        module=stem.removesuffix("."),
        **rest,
    )


def each_expert(n: int) -> range:
    """The numbers of n experts: each is described, so that a config cannot speak of any number."""
    if not 1 <= n <= MOST:
        raise ValueError(f"it speaks of {n} experts")
    return range(n)


def separate(
    t: Names, stem: str, e: int, d_mlp: int, activation: str, names: tuple[str, str, str]
) -> FeedForward:
    """Expert e as three matrices of its own: the layout on disk."""
    gate, up, down = (t.linear(f"{stem}experts.{e}.{name}") for name in names)
    return FeedForward(up, down, activation, d_mlp, w_gate=gate)


def stacked(
    t: Names, stem: str, e: int, d_mlp: int, activation: str, names: tuple[str, str, str]
) -> FeedForward:
    """Expert e inside gate_up_proj (expert, gate | up, d_model) and down_proj: a live module."""
    both, down = f"{stem}experts.gate_up_proj", f"{stem}experts.down_proj"
    return in_stacks(both, down, e, d_mlp, activation)


def in_stacks(both: str, down: str, e: int, d_mlp: int, activation: str) -> FeedForward:
    """Expert e of two stacks: gates and keys in halves, and values."""
    return FeedForward(
        w_in=Linear(both, start=d_mlp, size=d_mlp, expert=e),
        w_gate=Linear(both, start=0, size=d_mlp, expert=e),
        w_out=Linear(down, expert=e),
        activation=activation,
        d_mlp=d_mlp,
    )


DEEPSEEK = {
    "first_k_dense_replace": 0,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "num_experts_per_tok": 8,
}


def deepseek_feed_forward(
    c: Config,
    t: Names,
    stem: str,
    n: int,
    norm: Norm,
    *,
    inside: str = "mlp.",
    names: tuple[str, str, str] = GATE_UP_DOWN,
    **routing: Any,
) -> FeedForward | Experts:
    """DeepSeek's, as many have it: the first layers dense, then experts chosen from the best
    groups by their sigmoids, beside shared ones that are one feed-forward. `inside`: where a layer
    has them, by `names`."""
    moe = stem + inside
    if n < c["first_k_dense_replace"] and f"{moe}gate.weight" not in t:
        return gated(t, moe, c["intermediate_size"], c["hidden_act"], pre_norm=norm)
    width = c["moe_intermediate_size"]
    shared = c.get("n_shared_experts", c.get("num_shared_experts")) or 0
    places = (f"{moe}gate.", moe)
    how = {
        "score": "sigmoid",
        "correction": t.pick(*(f"{place}e_score_correction_bias" for place in places)),
        "groups": c["n_group"],
        "kept": c["topk_group"],
        "scale": c["routed_scaling_factor"],
    }
    return mixture(
        t,
        moe,
        c.first("n_routed_experts", "num_local_experts", "num_experts"),
        width,
        c["hidden_act"],
        names,
        top_k=c["num_experts_per_tok"],
        normalise=c["norm_topk_prob"],
        routing=Routing(**how | routing),
        shared=gated(t, f"{moe}shared_experts.", width * shared, c["hidden_act"])
        if shared
        else None,
        pre_norm=norm,
    )
