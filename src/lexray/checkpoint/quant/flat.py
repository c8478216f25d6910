"""Tensors that are stored as one long row, whatever their shape.

Their blocks may cross the rows of the weight. Where rows hold whole blocks, a part of the columns
is read as such; else the rows are read whole, and cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lexray.checkpoint.base import Box
from lexray.checkpoint.quant.packed import Shape


@dataclass(frozen=True)
class Window:
    """Rows and columns to be read for a part of a weight, of a matrix or of all in one row."""

    shape: Shape
    """The weight's own shape."""
    aligned: bool
    """Whether its rows are the rows that are read."""
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        """The shape of the matrix that is read from."""
        width = self.shape[-1]
        return (prod(self.shape) // width, width) if self.aligned else (1, prod(self.shape))

    def grid(self, each: int) -> tuple[Shape, Box]:
        """Blocks of `each` entries: their matrix, and the part of it that is needed."""
        rows, width = self.size
        first, last = self.columns[0] // each, -(-self.columns[1] // each)
        return (rows, -(-width // each)), (self.rows, (first, last))

    def blocks(self, each: int) -> Tensor:
        """The block of each column that is read, counted from the first of these blocks."""
        return torch.arange(*self.columns) // each - self.columns[0] // each

    def cut(self, values: Tensor, box: Box) -> Tensor:
        """The wanted part of the rows and columns that were read."""
        *front, rows, columns = box
        sizes = [stop - start for start, stop in front]
        if self.aligned:
            values = values.view(*sizes, -1, values.shape[-1])
            left = columns[0] - self.columns[0]
        else:
            values = values.view(*sizes, -1, self.shape[-1])
            left = columns[0]
        above = rows[0] if len(box) > 2 and prod(sizes) > 1 else 0
        high, wide = rows[1] - rows[0], columns[1] - columns[0]
        return values[..., above : above + high, left : left + wide]


def look(shape: Shape, box: Box, aligned: bool) -> Window:
    """What has to be read for a part: of several matrices of a stack, these as a whole."""
    *front, rows, columns = box
    height, width = shape[-2:]
    if front:
        (first, last), *_ = front
        several = last - first > 1
        rows = (
            first * height + (0 if several else rows[0]),
            last * height if several else first * height + rows[1],
        )
    if aligned:
        return Window(shape, True, rows, columns)
    return Window(shape, False, (0, 1), (rows[0] * width, rows[1] * width))
