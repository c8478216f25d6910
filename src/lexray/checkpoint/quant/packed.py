"""A tensor that is stored as others: codes, their scales, sometimes zero points.

Nothing here reads. A `PackedWeight` says which parts of which stored tensors hold a part of the
weight (`pieces`), and makes the weight of them (`values`): so what a slice costs is known
beforehand, and no more is read than its blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lexray.checkpoint.base import Box
from lexray.checkpoint.quant.code import PLAIN, Code
from lexray.errors import LexrayError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class StoredPart:
    """A part of a stored tensor, seen in `shape`."""

    name: str
    shape: Shape
    box: Box


class PackedWeight(ABC):
    """A weight that is stored as other tensors."""

    name: str
    shape: Shape
    stored: str
    """How it is stored, in a few words."""

    @abstractmethod
    def pieces(self, box: Box) -> dict[str, StoredPart]:
        """What has to be read for a part of the weight, by its role."""

    @abstractmethod
    def values(self, read: Mapping[str, Tensor], box: Box) -> Tensor:
        """That part in float32, made of what was read."""

    def wrong(self, what: str) -> LexrayError:
        return broken(self.name, what)


def broken(name: str, what: str) -> LexrayError:
    """The error for stored tensors that do not go together."""
    return LexrayError(
        f"{name} is quantised, but cannot be de-quantised: {what}; the files or their config are "
        "damaged, or of a version that lexray does not know"
    )


def matrix(name: str, shape: Shape, least: int = 2) -> Shape:
    """A shape, if it has an axis of rows and one of columns, and no empty one."""
    if len(shape) < least or len(shape) > 3 or 0 in shape:
        raise broken(name, f"a tensor of shape {shape} is no matrix")
    return shape


@dataclass(frozen=True)
class StoredMatrix:
    """A stored matrix, or a stack of them; `shape` is (…, rows, columns) once it is unpacked."""

    name: str
    shape: Shape
    code: Code = PLAIN
    rows_packed: bool = False
    """Numbers that share a unit belong to the same column, not to the same row."""
    flipped: bool = False
    """Columns are stored before rows."""

    @property
    def layout(self) -> Shape:
        """The shape that it should have where it is stored."""
        *front, rows, columns = self.shape
        if self.rows_packed:
            rows = self.code.width(rows)
        else:
            columns = self.code.width(columns)
        return (*front, columns, rows) if self.flipped else (*front, rows, columns)

    def check(self, shape: Shape) -> StoredMatrix:
        """Raises unless what is stored has as many entries as it should."""
        if prod(shape) != prod(self.layout) or prod(shape) == 0:
            raise broken(self.name, f"it has the shape {shape}, where {self.layout} is expected")
        return self

    def piece(self, box: Box) -> StoredPart:
        *front, rows, columns = box
        sizes = self.layout[-1:-3:-1] if self.flipped else self.layout[-2:]
        if self.rows_packed:
            rows = self.code.span(*rows, sizes[0])
        else:
            columns = self.code.span(*columns, sizes[1])
        last = (columns, rows) if self.flipped else (rows, columns)
        return StoredPart(self.name, self.layout, (*front, *last))

    def unpack(self, raw: Tensor, box: Box) -> Tensor:
        """Its values inside `box` as float32."""
        packed_last = raw if self.flipped == self.rows_packed else raw.mT
        values = self.code.unpack(packed_last, *box[-2 if self.rows_packed else -1])
        return values.mT if self.rows_packed else values


@dataclass(frozen=True)
class ScaledCodes(PackedWeight):
    """Codes times scales, one scale for each block of rows and columns: nearly every format."""

    name: str
    shape: Shape
    stored: str
    codes: StoredMatrix
    scale: StoredMatrix
    """One entry per block."""
    block: tuple[int, int] = (1, 1)
    """Rows and columns of a block."""
    zero: StoredMatrix | None = None
    """What is subtracted from the codes; with one entry per block, as `bias`."""
    bias: StoredMatrix | None = None
    """What is added once they are scaled."""
    factors: tuple[tuple[str, Shape, bool], ...] = ()
    """Numbers for the whole tensor (or one for each of a stack), by which it is multiplied or, if
    True, divided."""
    groups: str | None = None
    """The tensor that says which column belongs to which column of blocks (act-order)."""
    scattered: bool = True
    """Whether those may be any."""
    turned: bool = False
    """The weight is the transpose of the codes."""
    constant: float = 1.0
    """By which all is multiplied in the end."""

    def _own(self, box: Box) -> Box:
        """The box in the codes' own orientation."""
        *front, rows, columns = box
        return (*front, columns, rows) if self.turned else box

    def _blocks(self, box: Box) -> Box:
        """The blocks that the codes inside a box belong to."""
        *front, rows, columns = box
        high, wide = self.block
        across = (columns[0] // wide, -(-columns[1] // wide))
        if self.groups is not None and self.scattered:
            across = (0, self.scale.shape[-1])
        return (*front, (rows[0] // high, -(-rows[1] // high)), across)

    def pieces(self, box: Box) -> dict[str, StoredPart]:
        box = self._own(box)
        blocks = self._blocks(box)
        pieces = {"codes": self.codes.piece(box)}
        for role in ("scale", "zero", "bias"):
            part: StoredMatrix | None = getattr(self, role)
            if part is not None:
                pieces[role] = part.piece(blocks)
        if self.groups is not None:
            pieces["groups"] = StoredPart(self.groups, (self.codes.shape[-1],), (box[-1],))
        for i, (name, shape, _) in enumerate(self.factors):
            pieces[f"factor {i}"] = StoredPart(name, shape, box[:1] if shape else ())
        return pieces

    def values(self, read: Mapping[str, Tensor], box: Box) -> Tensor:
        box = self._own(box)
        blocks = self._blocks(box)
        values = self.codes.unpack(read["codes"], box)
        rows = torch.arange(*box[-2]) // self.block[0] - blocks[-2][0]
        columns = self._columns(read.get("groups"), box, blocks)

        def spread(part: StoredMatrix, role: str) -> Tensor:
            small = part.unpack(read[role], blocks)
            wide = small if len(columns) == 1 == small.shape[-1] else small[..., columns]
            return wide if len(rows) == small.shape[-2] else wide[..., rows, :]

        if self.zero is not None:
            values = values.sub_(spread(self.zero, "zero"))
        values = values.mul_(self._scaled(spread(self.scale, "scale"), read))
        if self.bias is not None:
            values = values.add_(spread(self.bias, "bias"))
        values = values if self.constant == 1.0 else values.mul_(self.constant)
        return values.mT if self.turned else values

    def _scaled(self, scale: Tensor, read: Mapping[str, Tensor]) -> Tensor:
        for i, (_, shape, divides) in enumerate(self.factors):
            factor = read[f"factor {i}"].float()
            factor = factor.view(-1, 1, 1) if shape else factor
            scale = scale / factor if divides else scale * factor
        return scale

    def _columns(self, groups: Tensor | None, box: Box, blocks: Box) -> Tensor:
        """The column of blocks of each column, counted from the first that was read."""
        first, last = blocks[-1]
        if groups is None or (groups.numel() and int(groups.max()) == -1):  # in turn
            return torch.arange(*box[-1]) // self.block[1] - first
        if groups.numel() and not (first <= int(groups.min()) and int(groups.max()) < last):
            raise self.wrong(
                f"{self.groups} assigns columns to groups that are not theirs or not there; if the "
                'model was quantised with act-order, its config should say "desc_act": true'
            )
        return groups.long() - first


def grid_of(
    name: str, shape: Shape, scale: str, stored: Shape, block: tuple[int, int] | None = None
) -> tuple[StoredMatrix, tuple[int, int]]:
    """The scales of a weight as a matrix with one entry per block, and a block's rows and columns.

    `stored` is the shape of the stored scales: one for each of a stack, one per row, or a grid. A
    single row or column of scales belongs to all rows or columns; `block` is what the config says,
    and is needed only where the last block is smaller than the others.
    """
    *front, rows, columns = shape
    if prod(stored) == prod(front) and len(stored) < 3:
        size: Shape = (*front, 1, 1)
    elif stored == (*front, rows):
        size = (*stored, 1)
    elif len(stored) == len(shape) and stored[:-2] == tuple(front):
        size = stored
    else:
        raise broken(name, f"{scale} of shape {stored} cannot scale a tensor of shape {shape}")
    sizes = []
    for n, count, said in zip((rows, columns), size[-2:], block or (0, 0), strict=True):
        if count == 1:
            sizes.append(n)
        elif said > 0 and -(-n // said) == count:
            sizes.append(said)
        elif count and n % count == 0:
            sizes.append(n // count)
        else:
            raise broken(name, f"{scale} of shape {stored} does not divide {shape} into blocks")
    return StoredMatrix(scale, size), (sizes[0], sizes[1])


def one_factor(name: str, shape: Shape, factor: str, stored: Shape) -> tuple[str, Shape]:
    """A number for the whole tensor, or one for each of a stack, and how it is laid out."""
    if prod(stored) == 1:
        return factor, ()
    if len(shape) == 3 and prod(stored) == shape[0]:
        return factor, (shape[0],)
    raise broken(name, f"{factor} of shape {stored} should be one number")
