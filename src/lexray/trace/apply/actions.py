"""Edits as arithmetic: what happens to which numbers of a run, with everything looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Point = (
    Literal["pre", "post", "attn", "laurel", "mixer", "mlp", "z", "q", "k", "v", "pattern"]
    | Literal["coefficients", "shared_coefficients", "expert", "expert_coefficients"]
    | Literal["cross", "cross_z", "cross_q", "cross_k", "cross_v", "cross_pattern"]
)
"""Where numbers are caught: the stream before and after a block, what sub-blocks write, heads'
sums of values, queries, keys, values, weights, neurons' coefficients, experts' weights; what
cross-attention writes, and the same of its heads."""
STREAM: tuple[Point, ...] = ("pre", "post", "attn", "laurel", "cross", "mixer", "mlp")
ATTENTION: tuple[Point, ...] = ("q", "k", "v", "pattern")
CROSS: tuple[Point, ...] = ("cross_q", "cross_k", "cross_v", "cross_pattern")
EXPERTS: tuple[Point, ...] = ("expert", "expert_coefficients")


@dataclass(frozen=True)
class Zero:
    def __call__(self, x: Tensor, at: Int[Tensor, "p"]) -> Tensor:
        return torch.zeros_like(x[at])


@dataclass(frozen=True)
class MeanOfOthers:
    """At each position the mean of all others; nothing, where there are none."""

    def __call__(self, x: Tensor, at: Int[Tensor, "p"]) -> Tensor:
        return (x.sum(0) - x[at]) / max(1, len(x) - 1)


@dataclass(frozen=True)
class Times:
    factor: float

    def __call__(self, x: Tensor, at: Int[Tensor, "p"]) -> Tensor:
        return x[at] * self.factor


@dataclass(frozen=True, eq=False)
class Constant:
    """The same vector (or number) everywhere."""

    value: Float[Tensor, "*size"]

    def __call__(self, x: Tensor, at: Int[Tensor, "p"]) -> Tensor:
        return self.value.to(x).expand_as(x[at])


@dataclass(frozen=True, eq=False)
class Plus:
    """To several streams, which lie in a row, the same is added to each, as layers do it; unless
    what is added is as wide as all."""

    vector: Float[Tensor, "width"]

    def __call__(self, x: Tensor, at: Int[Tensor, "p"]) -> Tensor:
        return x[at] + self.vector.to(x).repeat(x.shape[-1] // len(self.vector))


@dataclass(frozen=True, eq=False)
class RunRows:
    """What another run had, position by position."""

    rows: Float[Tensor, "p *size"]
    unturned: Float[Tensor, "p *size"] | None = None
    """Of queries and keys: before the rotation, as traces keep them too."""

    def __call__(self, x: Tensor, at: Int[Tensor, "p"]) -> Tensor:
        rows = self.rows.to(x)
        if x.ndim == 2 and rows.shape[1] < x.shape[1]:  # the weights of a run that was shorter
            return torch.cat([rows, rows.new_zeros(len(rows), x.shape[1] - rows.shape[1])], 1)
        return rows


@dataclass(frozen=True)
class Without:
    """Attention weights without some keys."""

    keys: tuple[int, ...]
    renormalise: bool

    def __call__(self, x: Tensor, at: Int[Tensor, "p"]) -> Tensor:
        weights = x[at]
        elsewhere = (1 - weights.sum(-1, keepdim=True)).clamp(min=0)  # what sinks take
        keys = [key for key in self.keys if key < x.shape[1]]
        weights[:, keys] = 0
        if not self.renormalise:
            return weights
        total = weights.sum(-1, keepdim=True) + elsewhere
        return torch.where(total > 0, weights / total.clamp(min=torch.finfo(x.dtype).tiny), weights)


Operation = Zero | MeanOfOthers | Times | Constant | Plus | RunRows | Without


@dataclass(frozen=True, eq=False)
class Action:
    """One operation at one place of one sequence."""

    layer: int
    point: Point
    positions: tuple[int, ...]
    operation: Operation
    index: int | None = None
    """Of the head, the neuron or the expert; None: of all neurons of a shared expert."""
    inner: int | None = None
    """Of the neuron in an expert; None: of all."""
    encoder: bool = False
    """In the encoder of an encoder–decoder."""

    @property
    def begins(self) -> tuple[bool, int]:
        """From which layer on a run is another: an encoder's come before all of the decoder's."""
        return not self.encoder, self.layer

    @property
    def lasts(self) -> bool:
        """Whether earlier positions stay as they are when tokens follow: not where they are set to
        a mean of all others, nor where attention itself is changed, whose keys and values a cache
        keeps as they were."""
        attends = self.point in (*ATTENTION, *CROSS)
        return not attends and not isinstance(self.operation, MeanOfOthers)

    def at(self, device: torch.device) -> Int[Tensor, "p"]:
        return torch.tensor(self.positions, dtype=torch.long, device=device)

    def __call__(self, x: Tensor) -> Tensor:
        """x (position, …) with the change in it; x itself stays as it is."""
        at = self.at(x.device)
        changed = x.clone()
        changed[at] = self.operation(x, at).to(x.dtype)
        return changed

    def some(self, x: Tensor, positions: Int[Tensor, "m"]) -> Tensor:
        """The same where x has some positions of the sequence only: those that reach an expert."""
        at = torch.isin(positions, self.at(positions.device)).nonzero()[:, 0]
        operation = self.operation
        if isinstance(operation, RunRows):
            place = {position: i for i, position in enumerate(self.positions)}
            operation = RunRows(operation.rows[[place[p] for p in positions[at].tolist()]])
        changed = x.clone()
        changed[at] = operation(x, at).to(x.dtype)
        return changed


def shift(actions: Sequence[Action], known: int) -> list[Action]:
    """The actions on what comes after the first `known` positions, counted from there."""
    if not known:
        return list(actions)
    moved = []
    for action in actions:
        kept = [i for i, position in enumerate(action.positions) if position >= known]
        operation = action.operation
        if isinstance(operation, RunRows):
            unturned = None if operation.unturned is None else operation.unturned[kept]
            operation = RunRows(operation.rows[kept], unturned)
        if kept:
            positions = tuple(action.positions[i] - known for i in kept)
            moved.append(replace(action, positions=positions, operation=operation))
    return moved
