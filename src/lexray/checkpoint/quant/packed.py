"""A tensor that is stored as others: codes, their scales, sometimes zero points.

Nothing here reads. A `Packed` says which parts of which stored tensors hold a part of the weight
(`pieces`), and makes the weight of them (`values`): so what a slice costs is known beforehand, and
no more is read than its blocks.
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
class Piece:
    """A part of a stored tensor, seen in `shape`."""

    name: str
    shape: Shape
    box: Box


class Packed(ABC):
    """A weight that is stored as other tensors."""

    name: str
    shape: Shape
    stored: str
    """How it is stored, in a few words."""

    @abstractmethod
    def pieces(self, box: Box) -> dict[str, Piece]:
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
class Matrix:
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

    def check(self, found: Shape) -> Matrix:
        """Raises unless what is stored has as many entries as it should."""
        if prod(found) != prod(self.layout) or prod(found) == 0:
            raise broken(self.name, f"it has the shape {found}, where {self.layout} is expected")
        return self

    def piece(self, box: Box) -> Piece:
        *front, rows, columns = box
        sizes = self.layout[-1:-3:-1] if self.flipped else self.layout[-2:]
        if self.rows_packed:
            rows = self.code.span(*rows, sizes[0])
        else:
            columns = self.code.span(*columns, sizes[1])
        last = (columns, rows) if self.flipped else (rows, columns)
        return Piece(self.name, self.layout, (*front, *last))

    def unpack(self, raw: Tensor, box: Box) -> Tensor:
        """Its values inside `box` as float32."""
        packed_last = raw if self.flipped == self.rows_packed else raw.mT
        found = self.code.unpack(packed_last, *box[-2 if self.rows_packed else -1])
        return found.mT if self.rows_packed else found


@dataclass(frozen=True)
class Grid(Packed):
    """Codes times scales, one scale for each block of rows and columns: nearly every format."""

    name: str
    shape: Shape
    stored: str
    codes: Matrix
    scale: Matrix
    """One entry per block."""
    block: tuple[int, int] = (1, 1)
    """Rows and columns of a block."""
    zero: Matrix | None = None
    """What is subtracted from the codes; with one entry per block, as `bias`."""
    bias: Matrix | None = None
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

    def pieces(self, box: Box) -> dict[str, Piece]:
        box = self._own(box)
        blocks = self._blocks(box)
        found = {"codes": self.codes.piece(box)}
        for role in ("scale", "zero", "bias"):
            part: Matrix | None = getattr(self, role)
            if part is not None:
                found[role] = part.piece(blocks)
        if self.groups is not None:
            found["groups"] = Piece(self.groups, (self.codes.shape[-1],), (box[-1],))
        for i, (name, shape, _) in enumerate(self.factors):
            found[f"factor {i}"] = Piece(name, shape, box[:1] if shape else ())
        return found

    def values(self, read: Mapping[str, Tensor], box: Box) -> Tensor:
        box = self._own(box)
        blocks = self._blocks(box)
        found = self.codes.unpack(read["codes"], box)
        rows = torch.arange(*box[-2]) // self.block[0] - blocks[-2][0]
        columns = self._columns(read.get("groups"), box, blocks)

        def spread(part: Matrix, role: str) -> Tensor:
            small = part.unpack(read[role], blocks)
            wide = small if len(columns) == 1 == small.shape[-1] else small[..., columns]
            return wide if len(rows) == small.shape[-2] else wide[..., rows, :]

        if self.zero is not None:
            found = found.sub_(spread(self.zero, "zero"))
        found = found.mul_(self._scaled(spread(self.scale, "scale"), read))
        if self.bias is not None:
            found = found.add_(spread(self.bias, "bias"))
        found = found if self.constant == 1.0 else found.mul_(self.constant)
        return found.mT if self.turned else found

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
    name: str, shape: Shape, scale: str, found: Shape, block: tuple[int, int] | None = None
) -> tuple[Matrix, tuple[int, int]]:
    """The scales of a weight as a matrix with one entry per block, and a block's rows and columns.

    `found` is the shape of the stored scales: one for each of a stack, one per row, or a grid. A
    single row or column of scales belongs to all rows or columns; `block` is what the config says,
    and is needed only where the last block is smaller than the others.
    """
    *front, rows, columns = shape
    if prod(found) == prod(front) and len(found) < 3:
        size: Shape = (*front, 1, 1)
    elif found == (*front, rows):
        size = (*found, 1)
    elif len(found) == len(shape) and found[:-2] == tuple(front):
        size = found
    else:
        raise broken(name, f"{scale} of shape {found} cannot scale a tensor of shape {shape}")
    sizes = []
    for n, count, said in zip((rows, columns), size[-2:], block or (0, 0), strict=True):
        if count == 1:
            sizes.append(n)
        elif said > 0 and -(-n // said) == count:
            sizes.append(said)
        elif count and n % count == 0:
            sizes.append(n // count)
        else:
            raise broken(name, f"{scale} of shape {found} does not divide {shape} into blocks")
    return Matrix(scale, size), (sizes[0], sizes[1])


def one_factor(name: str, shape: Shape, factor: str, found: Shape) -> tuple[str, Shape]:
    """A number for the whole tensor, or one for each of a stack, and how it is laid out."""
    if prod(found) == 1:
        return factor, ()
    if len(shape) == 3 and prod(found) == shape[0]:
        return factor, (shape[0],)
    raise broken(name, f"{factor} of shape {found} should be one number")
