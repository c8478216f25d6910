"""A checkpoint seen with a few changes: nothing is copied, what is read is changed on its way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.checkpoint.base import Box, Checkpoint, TensorInfo

MOST_RANK = 512
"""A change of higher rank is no low-rank change."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """A region of a stored tensor, times a number."""

    region: Box
    factor: float

    def of(self, inside: Tensor, part: tuple[slice, ...]) -> Tensor:
        return inside * self.factor


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A region of a stored tensor, written anew."""

    region: Box
    values: Tensor
    """As large as the region."""

    def of(self, inside: Tensor, part: tuple[slice, ...]) -> Tensor:
        return self.values[part].to(inside)


@dataclass(frozen=True, eq=False)
class Outer:
    """A region of a stored tensor, and the outer product of two vectors along its last axes."""

    region: Box
    rows: Float[Tensor, "rows"]
    columns: Float[Tensor, "columns"]

    def of(self, inside: Tensor, part: tuple[slice, ...]) -> Tensor:
        rows, columns = (
            x[at].to(inside) for x, at in zip((self.rows, self.columns), part[-2:], strict=True)
        )
        return inside + torch.outer(rows, columns)


Change = Scaled | Rewritten | Outer


def apply(change: Change, weight: Tensor, box: Box) -> Tensor:
    """The changed weight from the part of the old one inside `box`."""
    both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, change.region, strict=True)]
    if any(start >= stop for start, stop in both):
        return weight
    here = tuple(slice(a - o[0], b - o[0]) for (a, b), o in zip(both, box, strict=True))
    there = tuple(slice(a - o[0], b - o[0]) for (a, b), o in zip(both, change.region, strict=True))
    exact = torch.promote_types(weight.dtype, torch.float32)
    changed = weight.clone()
    changed[here] = change.of(weight[here].to(exact), there).to(weight.dtype)
    return changed


class OverlayCheckpoint(Checkpoint):
    """A base checkpoint with changes, by the names of the tensors that they change."""

    def __init__(
        self, base: Checkpoint, changes: Mapping[str, Sequence[Change]], name: str
    ) -> None:
        self.base, self.name = base, name
        self.revision, self.notes, self.remote = base.revision, base.notes, base.remote
        self._changes = {key: tuple(each) for key, each in changes.items()}

    @property
    def bytes_read(self) -> int:  # type: ignore[override]
        return self.base.bytes_read

    def names(self) -> Collection[str]:
        return self.base.names()

    def info(self, name: str) -> TensorInfo:
        info = self.base.info(name)
        return TensorInfo(info.shape, info.dtype) if name in self._changes else info

    def peek(self, name: str) -> TensorInfo | None:
        return self.base.peek(name)

    @property
    def config(self) -> dict[str, Any]:
        return self.base.config

    def asset(self, filename: str) -> Path | None:
        return self.base.asset(filename)

    def touched(self) -> set[str]:
        """The tensors that are changed."""
        return set(self._changes)

    def _read(self, name: str, box: Box) -> Tensor:
        weight = self.base.read_unchecked(name, *(slice(*bounds) for bounds in box))
        for change in self._changes.get(name, ()):
            weight = apply(change, weight, box)
        return weight

    def _cost(self, name: str, box: Box) -> int:
        return self.base.cost(name, *(slice(*bounds) for bounds in box))

    def factors(self, name: str) -> tuple[Tensor, Tensor] | None:
        """(rows × r) and (r × columns) whose product is the change of a stored matrix; None where
        it is no matrix, or its change has too high a rank."""
        box = self._box(name, ())
        if len(box) != 2:
            return None
        weight = self.base.read(name).float()
        left: list[Tensor] = []
        right: list[Tensor] = []
        for change in self._changes.get(name, ()):
            after = apply(change, weight, box)
            one, other = _factors(after - weight, change)
            left.append(one)
            right.append(other)
            weight = after
        if not left or sum(x.shape[1] for x in left) > min(MOST_RANK, min(weight.shape) // 2):
            return None
        return torch.cat(left, 1), torch.cat(right)


def _factors(delta: Tensor, change: Change) -> tuple[Tensor, Tensor]:
    """A difference that lies in few rows or few columns (or is an outer product), factored."""
    (r0, r1), (c0, c1) = change.region
    if isinstance(change, Outer):
        rows, columns = delta.new_zeros(len(delta), 1), delta.new_zeros(1, delta.shape[1])
        rows[r0:r1, 0], columns[0, c0:c1] = change.rows.to(delta), change.columns.to(delta)
        return rows, columns
    if r1 - r0 <= c1 - c0:
        return torch.eye(len(delta))[:, r0:r1], delta[r0:r1]
    return delta[:, c0:c1], torch.eye(delta.shape[1])[c0:c1]


def beneath(checkpoint: Checkpoint) -> Checkpoint:
    """What lies under changes."""
    while isinstance(checkpoint, OverlayCheckpoint):
        checkpoint = checkpoint.base
    return checkpoint
