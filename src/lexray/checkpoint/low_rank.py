"""What an adapter adds to a tensor: a matrix of low rank, or a shift of a bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lexray.checkpoint.base import Box

BLOCK = 4096
"""Rows at a time when a whole matrix has to be looked at."""

Read = Callable[..., Tensor]
"""`Checkpoint.read`: a name and slices."""


@dataclass(frozen=True)
class LowRank:
    """A matrix's change, with DoRA also its output features' new lengths.

    PEFT stores A as r×in and B as out×r; `flipped` says that the matrix itself is in×out
    (GPT-2's Conv1D, embeddings) instead of out×in.
    """

    read: Read
    A: str
    B: str
    scale: float
    flipped: bool
    magnitude: str | None = None

    def slices(self, box: Box) -> tuple[tuple[str, tuple[slice, ...]], ...]:
        """What of the two factors is needed for the part of the matrix inside `box`."""
        rows, columns = (slice(*bounds) for bounds in box)
        if self.flipped:
            return (self.A, (slice(None), rows)), (self.B, (columns,))
        return (self.B, (rows,)), (self.A, (slice(None), columns))

    def factors(self, box: Box) -> tuple[Tensor, Tensor]:
        """B (rows×r) and A (r×columns), oriented as the matrix is stored."""
        left, right = (self.read(name, *index) for name, index in self.slices(box))
        return (left.T, right.T) if self.flipped else (left, right)

    def apply(self, weight: Tensor, box: Box, stretch: Tensor | None = None) -> Tensor:
        """The changed weight from the part of the old one inside `box`."""
        exact = torch.promote_types(weight.dtype, torch.float32)
        left, right = (factor.to(exact) for factor in self.factors(box))
        changed = weight.to(exact) + self.scale * (left @ right)
        if stretch is not None:
            rows, columns = (slice(*bounds) for bounds in box)
            changed *= stretch[columns] if self.flipped else stretch[rows, None]
        return changed.to(weight.dtype)

    def stretch(self, read: Read, shape: tuple[int, ...]) -> Tensor | None:
        """DoRA's factor for each output feature: its magnitude over the changed matrix's norm."""
        if self.magnitude is None:
            return None
        squares = []
        for start in range(0, shape[0], BLOCK):
            box = ((start, min(start + BLOCK, shape[0])), (0, shape[1]))
            block = self.apply(read(slice(*box[0])).float(), box)
            squares.append(block.square().sum(0 if self.flipped else 1))
        norm = (torch.stack(squares).sum(0) if self.flipped else torch.cat(squares)).sqrt()
        return self.read(self.magnitude).to(norm).view(-1) / norm


@dataclass(frozen=True)
class Shift:
    """The change of a bias (`lora_bias`)."""

    read: Read
    bias: str
    scale: float

    def slices(self, box: Box) -> tuple[tuple[str, tuple[slice, ...]], ...]:
        return ((self.bias, (slice(*box[0]),)),)

    def apply(self, weight: Tensor, box: Box, stretch: Tensor | None = None) -> Tensor:
        exact = torch.promote_types(weight.dtype, torch.float32)
        shift = self.read(self.bias, slice(*box[0])).to(exact)
        return (weight.to(exact) + self.scale * shift).to(weight.dtype)

    def stretch(self, read: Read, shape: tuple[int, ...]) -> None:
        """A bias is not stretched."""
