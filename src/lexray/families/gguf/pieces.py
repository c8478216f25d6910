"""Where a Hugging Face tensor lies in a GGUF file, and how it is read from there.

llama.cpp's converter turns rows, stacks experts, splits fused matrices and squeezes axes. A piece
undoes one of these for any box of the tensor, and reads nothing but what the box needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lexray.checkpoint import Box, Checkpoint
from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.errors import LexrayError

Config = dict[str, Any]
Order = Callable[[Config], list[int]]
Part = Callable[[Config], tuple[int, int]]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class GGUFSource:
    """A GGUF tensor and what the converter did to it."""

    stem: str
    rows: Order | None = None
    """Where each row of the Hugging Face tensor lies in the GGUF tensor."""
    columns: Order | None = None
    """The same along the last axis."""
    added: float = 0.0
    """What was added to every element (Gemma's norms are stored as 1 + w)."""
    undo: Callable[[Tensor], Tensor] | None = None
    """From an element in the file to the one it was made of (Mamba's A)."""
    transposed: bool = False
    """The last two axes are swapped."""
    stacked: bool = False
    """One of several tensors on a new first axis; `{i}` in its own name is the place there."""
    one_row: bool = False
    """A matrix of one row, which some files hold as a vector."""
    unit: int | None = None
    """An axis of length one that the file lacks (the kernels of convolutions)."""
    shaped: Shape | None = None
    """Its shape, one of whose sizes may be −1, where the file has the same values in another: a
    vector as a matrix of one column, a kernel with axes of length one."""
    part: Part | None = None
    """The rows of the GGUF tensor that it is, where that holds several."""
    exact: bool = False
    """Both names are whole: neither `.weight` nor `.bias` is added."""
    bare: bool = False
    """A tensor `.scale` beside it is one of its own, and does not multiply it (Gemma 4)."""


@dataclass(frozen=True)
class GGUFJoined:
    """One tensor that the converter took apart: its pieces lie behind each other along `axis`.

    Of stacks the first of each come first, then the second of each, and so on.
    """

    parts: tuple[GGUFSource, ...]
    axis: int = 0
    alternate: bool = False
    """They take turns, element by element (gpt-oss)."""
    rows: Order | None = None
    """Where each row lies in what the pieces are together, if not in their order."""


@dataclass(frozen=True)
class GGUFValue:
    """A small tensor that became metadata: an array with one number for each layer."""

    key: str
    shape: Shape = ()


Stored = str | GGUFSource | GGUFJoined | GGUFValue


@dataclass
class GGUFSide:
    """The file, and the orders of rows that its config gives, each made once."""

    file: Checkpoint
    config: Config
    orders: dict[Order, Tensor] = field(default_factory=dict)

    def order(self, rows: Order) -> Tensor:
        if rows not in self.orders:
            self.orders[rows] = torch.tensor(rows(self.config))
        return self.orders[rows]


@dataclass(frozen=True)
class FilePiece:
    """A Hugging Face tensor that is one tensor of the file, or one place in a stack."""

    source: str
    stored: GGUFSource
    place: int = 0
    """Its index in the stack."""
    scale: str | None = None
    """A tensor of one factor for the whole, or one for each place (NVFP4)."""

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,) if self.scale is None else (self.source, self.scale)

    def shape(self, side: GGUFSide) -> Shape:
        stored, shape = self.stored, list(side.file.info(self.source).shape)
        if stored.shaped is not None:
            rest = -prod(stored.shaped)
            return tuple(prod(shape) // rest if size < 0 else size for size in stored.shaped)
        if stored.stacked:
            del shape[0]
        if stored.part is not None:
            start, stop = stored.part(side.config)
            shape[0] = min(stop, shape[0]) - start
        if stored.one_row and len(shape) == 1:
            shape.insert(0, 1)
        if stored.transposed:
            shape[-2:] = shape[:-3:-1]
        if stored.unit is not None:
            shape.insert(stored.unit, 1)
        return tuple(shape)

    def read(self, side: GGUFSide, box: Box) -> Tensor:
        if is_empty(box):
            return torch.empty([stop - start for start, stop in box])
        index, orders = self._plan(side, box)
        tensor = side.file.read_unchecked(self.source, *index)
        if self.stored.shaped is not None:
            tensor = tensor.reshape(self.stored.shaped)[tuple(slice(*ends) for ends in box)]
        for axis, order in orders.items():
            tensor = tensor.index_select(axis, order)
        stored = self.stored
        if self.scale is not None:
            tensor = tensor * self._factors(side, tensor.ndim, index)
        if stored.added:
            tensor = tensor - stored.added
        if stored.undo is not None:
            tensor = stored.undo(tensor)
        if stored.transposed and tensor.ndim > 1:
            tensor = tensor.transpose(-1, -2).contiguous()
        return tensor.reshape([stop - start for start, stop in box])

    def cost(self, side: GGUFSide, box: Box) -> int:
        return side.file.cost(self.source, *self._plan(side, box)[0])

    def _factors(self, side: GGUFSide, ndim: int, index: list[slice]) -> Tensor:
        """What the scale multiplies the part with: one number, or one for each of a stack."""
        assert self.scale is not None
        factors = side.file.read(self.scale).flatten()
        if len(factors) == 1 or ndim < 3:
            return factors[0]
        return factors[index[0]].view(-1, *[1] * (ndim - 1))

    def _plan(self, side: GGUFSide, box: Box) -> tuple[list[slice], Mapping[int, Tensor]]:
        """The slices to read from the file, and by axis the order of what they give."""
        stored, index = self.stored, [slice(*ends) for ends in box]
        if stored.shaped is not None:
            return [], {}
        if stored.unit is not None:
            del index[stored.unit]
        if stored.transposed:
            index[-2:] = index[:-3:-1]
        orders = {}
        for axis, order in ((0, stored.rows), (len(index) - 1, stored.columns)):
            if order is not None:
                wanted = side.order(order)[index[axis]]
                low, high = int(wanted.min()), int(wanted.max())
                index[axis], orders[axis] = slice(low, high + 1), wanted - low
        if stored.part is not None:
            first = stored.part(side.config)[0]
            index[0] = slice(index[0].start + first, index[0].stop + first)
        n_axes = len(side.file.info(self.source).shape)
        if stored.stacked:
            index.insert(0, slice(self.place, self.place + 1))
            orders = {axis + 1: order for axis, order in orders.items()}
        if stored.one_row and n_axes == 1:
            del index[0]
        return index, orders


@dataclass(frozen=True)
class JoinedPiece:
    """A Hugging Face tensor that the file holds in several pieces."""

    parts: tuple[FilePiece, ...]
    joined: GGUFJoined

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.sources)

    def shape(self, side: GGUFSide) -> Shape:
        shapes = [part.shape(side) for part in self.parts]
        first, axis = shapes[0], self.joined.axis
        return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])

    def read(self, side: GGUFSide, box: Box) -> Tensor:
        if is_empty(box):
            return torch.empty([stop - start for start, stop in box])
        box, order = self._span(side, box)
        out = torch.empty([stop - start for start, stop in box])
        for part, inner, where in self._split(side, box):
            target = out[(slice(None),) * self.joined.axis + (where,)]
            target.copy_(part.read(side, inner))
        return out if order is None else out[order]

    def cost(self, side: GGUFSide, box: Box) -> int:
        box, _ = self._span(side, box)
        return sum(part.cost(side, inner) for part, inner, _ in self._split(side, box))

    def _span(self, side: GGUFSide, box: Box) -> tuple[Box, Tensor | None]:
        """The box whose rows hold those that are wanted, and their order in it."""
        if self.joined.rows is None:
            return box, None
        wanted = side.order(self.joined.rows)[slice(*box[0])]
        low, high = int(wanted.min()), int(wanted.max())
        return ((low, high + 1), *box[1:]), wanted - low

    def _split(self, side: GGUFSide, box: Box) -> Iterator[tuple[FilePiece, Box, slice]]:
        """Each part that a box needs, the box in it, and where along the axis its values go."""
        axis, alternate = self.joined.axis, self.joined.alternate
        start, stop = box[axis]
        step, before = (len(self.parts) if alternate else 1), 0
        for number, part in enumerate(self.parts):
            if alternate:
                low, high = (-(-(end - number) // step) for end in (start, stop))
                first = low * step + number - start
            else:
                size = part.shape(side)[axis]
                low, high = (min(max(end - before, 0), size) for end in (start, stop))
                first, before = max(before - start, 0), before + size
            if low < high:
                inner = (*box[:axis], (low, high), *box[axis + 1 :])
                yield part, inner, slice(first, first + (high - low - 1) * step + 1, step)


@dataclass(frozen=True)
class ValuePiece:
    """A Hugging Face tensor that the file holds as a number of its metadata."""

    key: str
    layer: int
    stored: GGUFValue
    sources: tuple[str, ...] = ()

    def shape(self, side: GGUFSide) -> Shape:
        return self.stored.shape

    def read(self, side: GGUFSide, box: Box) -> Tensor:
        assert isinstance(side.file, GGUFCheckpoint)
        value = torch.tensor(float(side.file.metadata[self.key][self.layer]))
        return value.expand([stop - start for start, stop in box])

    def cost(self, side: GGUFSide, box: Box) -> int:
        return 0


Piece = FilePiece | JoinedPiece | ValuePiece
"""Each says its `sources` in the file and its `shape`, and reads any box of itself at a `cost`."""


def find_pieces(
    file: GGUFCheckpoint, ours: str, stored: Stored, n_layers: int
) -> Iterator[tuple[str, Piece]]:
    """Every tensor of the file that a pair of names stands for: (Hugging Face name, piece)."""
    for n in range(n_layers if "{n}" in ours else 1):
        if isinstance(stored, GGUFJoined):
            yield from _join(file, ours, stored, n)
            continue
        if isinstance(stored, GGUFValue):
            if n < _count(file, stored.key):
                yield ours.format(n=n), ValuePiece(stored.key, n, stored)
            continue
        source = stored if isinstance(stored, GGUFSource) else GGUFSource(stored)
        for suffix in _suffixes(source):
            for piece in _places(file, source, n, suffix):
                yield ours.format(n=n, i=piece.place) + suffix, piece


def _count(file: GGUFCheckpoint, key: str) -> int:
    """How many numbers an array of the metadata has."""
    values = file.metadata.get(key)
    return len(values) if isinstance(values, np.ndarray) and values.dtype.kind in "iuf" else 0


def _suffixes(source: GGUFSource) -> tuple[str, ...]:
    return ("",) if source.exact else (".weight", ".bias")


def _join(
    file: GGUFCheckpoint, ours: str, stored: GGUFJoined, n: int
) -> Iterator[tuple[str, Piece]]:
    for suffix in _suffixes(stored.parts[0]):
        parts = [[*_places(file, source, n, suffix)] for source in stored.parts]
        if all(parts) and len({len(places) for places in parts}) == 1:
            in_turn = tuple(piece for places in zip(*parts, strict=True) for piece in places)
            yield ours.format(n=n) + suffix, JoinedPiece(in_turn, stored)


def _places(file: GGUFCheckpoint, stored: GGUFSource, n: int, suffix: str) -> Iterator[FilePiece]:
    """One piece for a tensor, several for a stack or for a row of numbered tensors."""
    for i in count():
        source = stored.stem.format(n=n, i=i) + suffix
        if source not in file.names() or (stored.stacked and i >= file.info(source).shape[0]):
            return
        yield FilePiece(source, stored, i, None if stored.bare else _scale(file, source))
        if not stored.stacked and "{i}" not in stored.stem:
            return


def _scale(file: GGUFCheckpoint, source: str) -> str | None:
    """The name of the factors that stand beside a weight, if there are any."""
    scale = f"{source.removesuffix('.weight')}.scale"
    if not source.endswith(".weight") or scale not in file.names():
        return None
    shape = file.info(source).shape
    if (n := prod(file.info(scale).shape)) != 1 and (len(shape) < 3 or n != shape[0]):
        raise LexrayError(
            f"{file.name}: {scale} has {n} factors for {source}, whose shape is {shape}; there "
            "should be one, or one for each expert. Download the file again"
        )
    return scale


def is_empty(box: Box) -> bool:
    return prod(stop - start for start, stop in box) == 0
