"""A checkpoint of quantised weights that looks like one of plain weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint.base import Box, Checkpoint, TensorInfo
from lexray.checkpoint.quant.find import SETTINGS, find_method
from lexray.checkpoint.quant.method import Method, Roles
from lexray.checkpoint.quant.packed import PackedWeight
from lexray.errors import LexrayError

PIECE = 1 << 22
"""About how many values are de-quantised at once."""
STEP = 256
"""Pieces begin at multiples of this, which no block crosses."""


class QuantisedCheckpoint(Checkpoint):
    """Plain names and shapes over stored codes and scales; what is read is de-quantised to float32.

    A part of a weight reads the blocks that it lies in, and nothing else.
    """

    def __init__(self, base: Checkpoint, method: Method) -> None:
        self.base, self.method = base, method
        self.name, self.revision, self.remote = base.name, base.revision, base.remote
        self._weights = method.claim(base.names())
        if not self._weights:
            raise LexrayError(
                f"the config of {base.name} says that it is quantised by {method.title}, but none "
                f"of its tensors is stored so (their names would end in {' or '.join(method.marks)}"
                "); if its weights were de-quantised, take quantization_config out of config.json"
            )
        self._packed: dict[str, PackedWeight] = {}
        used = {part for roles in self._weights.values() for part in roles.values()}
        self._names = dict.fromkeys(
            name for name in base.names() if name not in used and not method.hides(name)
        ) | dict.fromkeys(self._weights)
        self.notes = (
            *base.notes,
            f"{len(self._weights)} of its {len(self._names)} tensors are quantised "
            f"({method.title}); they are read as float32, and so they are run",
        )

    @property
    def bytes_read(self) -> int:  # type: ignore[override]
        return self.base.bytes_read

    @property
    def config(self) -> dict[str, Any]:
        """As of a model that is not quantised."""
        return without_settings(self.base.config)

    def asset(self, filename: str) -> Path | None:
        return self.base.asset(filename)

    def marks(self) -> tuple[str, ...]:
        return self.base.marks()

    def metadata_of(self, name: str) -> dict[str, str]:
        return self.base.metadata_of(name)

    def names(self) -> Collection[str]:
        return self._names.keys()

    def quantised(self) -> Collection[str]:
        """The weights that are stored as codes."""
        return self._weights.keys()

    def info(self, name: str) -> TensorInfo:
        if name in self._weights:
            packed = self._pack(name)
            return TensorInfo(packed.shape, torch.float32, stored=packed.stored)
        if name not in self._names:
            raise self.missing(name)
        return self.base.info(name)

    def peek(self, name: str) -> TensorInfo | None:
        if name not in self._weights:
            return self.base.peek(name) if name in self._names else self.info(name)
        known = name in self._packed or all(
            self.base.peek(part) is not None for part in self._weights[name].values()
        )
        return self.info(name) if known and not self.base.remote else None

    def _pack(self, name: str) -> PackedWeight:
        if name not in self._packed:
            roles: Roles = self._weights[name]
            try:
                self._packed[name] = self.method.pack(name, roles, self.base)
            except LexrayError as error:
                raise LexrayError(f"{self.name}: {error}") from error
        return self._packed[name]

    def _read(self, name: str, box: Box) -> Tensor:
        if name not in self._weights:
            return self.base.read_unchecked(name, *(slice(*bounds) for bounds in box))
        packed = self._pack(name)
        out = torch.empty([stop - start for start, stop in box])
        for part in _parts(box):
            here = tuple(slice(a - o[0], b - o[0]) for (a, b), o in zip(part, box, strict=True))
            read = {
                role: self.base.read_as(piece.name, piece.shape, piece.box).to("cpu")
                for role, piece in packed.pieces(part).items()
            }
            try:
                out[here] = packed.values(read, part)
            except LexrayError as error:
                raise LexrayError(f"{self.name}: {error}") from error
        return out

    def _cost(self, name: str, box: Box) -> int:
        if name not in self._weights:
            return self.base.cost(name, *(slice(*bounds) for bounds in box))
        packed = self._pack(name)
        return sum(
            self.base.cost_as(piece.name, piece.shape, piece.box)
            for part in _parts(box)
            for piece in packed.pieces(part).values()
        )


def without_settings(config: dict[str, Any]) -> dict[str, Any]:
    """A config without its words on quantisation, also in the part for text."""
    plain = {key: value for key, value in config.items() if key not in SETTINGS}
    inner = plain.get("text_config")
    if isinstance(inner, dict):
        plain["text_config"] = {k: v for k, v in inner.items() if k not in SETTINGS}
    return plain


def _parts(box: Box) -> Iterator[Box]:
    """A box in pieces of bounded size: de-quantising all at once takes several times its space."""
    sizes = [stop - start for start, stop in box]
    if 0 in sizes:
        return
    total = 1
    for size in sizes:
        total *= size
    axis = next((i for i, size in enumerate(sizes) if size > 1), None)
    if total <= PIECE or axis is None:
        yield box
        return
    start, stop = box[axis]
    each = total // sizes[axis]
    step = max(1, PIECE // each)
    step = step if axis < len(box) - 2 else -(-step // STEP) * STEP
    at = start
    while at < stop:
        end = min(stop, (at // step + 1) * step)
        yield from _parts_of(box, axis, (at, end), each)
        at = end


def _parts_of(box: Box, axis: int, bounds: tuple[int, int], each: int) -> Iterator[Box]:
    part = (*box[:axis], bounds, *box[axis + 1 :])
    if bounds[1] - bounds[0] == 1 and each > PIECE:
        yield from _parts(part)
    else:
        yield part


def open_quantised(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint under plain names if its config calls it quantised; any other as it is."""
    method = find_method(checkpoint)
    return checkpoint if method is None else QuantisedCheckpoint(checkpoint, method)
