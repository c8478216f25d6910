"""Mixtures of experts: one small matrix per expert on disk, one stack for all in transformers 5."""

from __future__ import annotations

from typing import Any

from lexray.families.registry import Names
from lexray.families.spec import Experts, FeedForward, Linear

GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")


def mixture(
    t: Names,
    stem: str,
    n: int,
    d_mlp: int,
    activation: str,
    names: tuple[str, str, str] = GATE_UP_DOWN,
    **rest: Any,
) -> Experts:
    """`n` gated experts under `stem`, with the router `stem + "gate"`."""
    if n < 1:
        raise ValueError(f"it speaks of {n} experts")
    make = stacked if f"{stem}experts.gate_up_proj" in t else separate
    return Experts(
        router=Linear(f"{stem}gate.weight"),
        experts=tuple(make(t, stem, e, d_mlp, activation, names) for e in range(n)),
        module=stem.removesuffix("."),
        **rest,
    )


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
    return FeedForward(
        w_in=Linear(both, start=d_mlp, size=d_mlp, expert=e),
        w_gate=Linear(both, start=0, size=d_mlp, expert=e),
        w_out=Linear(down, expert=e),
        activation=activation,
        d_mlp=d_mlp,
    )
