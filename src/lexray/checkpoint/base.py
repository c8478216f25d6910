"""The interface behind which every file format, server and live module looks the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint.plain import asset_at, read_json
from lexray.errors import LexrayError
from lexray.finite import all_finite, require_finite

Box = tuple[tuple[int, int], ...]
"""The part of a tensor to read: (start, stop) for each of its axes."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    """The dtype that `read` returns (for quantised formats float32)."""
    stored: str | None = field(default=None, kw_only=True)
    """How it is stored, where not in that dtype: "Q4_K", …"""


class Checkpoint(ABC):
    """Named tensors, read lazily: `names`, `info`, `read`, and how much was read so far."""

    name: str
    """What the user called it: a path, a Hub id, …"""
    revision: str | None = None
    notes: tuple[str, ...] = ()
    """What a user should know about which files were taken."""
    remote: bool = False
    """Whether each read fetches over a network."""
    bytes_read: int = 0
    """Bytes of headers and weights read so far."""

    @abstractmethod
    def names(self) -> Collection[str]:
        """Every tensor's name; `in` is fast."""

    @abstractmethod
    def info(self, name: str) -> TensorInfo:
        """Shape and dtype, without reading the tensor; a LexrayError if there is none."""

    def peek(self, name: str) -> TensorInfo | None:
        """The same where it is known without opening one more file; else None."""
        return self.info(name)

    @abstractmethod
    def _read(self, name: str, box: Box) -> Tensor:
        """What lies inside `box`, not to be written to; adds to `bytes_read`."""

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """`config.json` as a dict."""

    def asset(self, filename: str) -> Path | None:
        """A small file beside the weights (`tokenizer.json`, …) as a local path, if it exists."""
        return None

    def marks(self) -> tuple[str, ...]:
        """What tells the weights from any others without reading them; none where nothing does."""
        return ()

    def read(self, name: str, *index: slice) -> Tensor:
        """The whole tensor, or the part inside `index`: one slice of step 1 per leading axis.

        >>> checkpoint.read("transformer.wte.weight", slice(0, 10)).shape                # ten rows
        torch.Size([10, 160])
        >>> checkpoint.read("transformer.wte.weight", slice(None), slice(3, 4)).shape    # a column
        torch.Size([4500, 1])

        Raises if an entry is NaN or infinite: whatever is made of it would be wrong.
        """
        tensor = self.read_unchecked(name, *index)
        if not all_finite(tensor):
            start = [bounds[0] for bounds in self._box(name, index)]
            require_finite(self.describe(name), tensor, start)
        return tensor

    def read_unchecked(self, name: str, *index: slice) -> Tensor:
        """The same, whatever the numbers are."""
        return self._read(name, self._box(name, index))

    def describe(self, name: str) -> str:
        """A tensor as errors call it."""
        return f"the tensor {name} of {self.name}"

    def cost(self, name: str, *index: slice) -> int:
        """How many bytes `read` with these arguments would read."""
        return self._cost(name, self._box(name, index))

    def size(self, name: str) -> int:
        """How many bytes the whole tensor takes where it is stored."""
        return self._cost(name, self._box(name, ()))

    def _cost(self, name: str, box: Box) -> int:
        return prod(stop - start for start, stop in box) * self.info(name).dtype.itemsize

    def read_as(self, name: str, shape: tuple[int, ...], box: Box) -> Tensor:
        """What lies inside `box` of a tensor, seen as one of another shape with as many entries.

        Quantisers store a matrix as one long column, or in blocks; rows of the matrix are parts of
        either.
        """
        if shape == self.info(name).shape:
            return self._read(name, box)
        return self._read_as(name, shape, box)

    def _read_as(self, name: str, shape: tuple[int, ...], box: Box) -> Tensor:
        whole = self._read(name, self._box(name, ()))
        return whole.reshape(shape)[tuple(slice(*bounds) for bounds in box)]

    def cost_as(self, name: str, shape: tuple[int, ...], box: Box) -> int:
        """How many bytes `read_as` would read."""
        return self._cost(name, box if shape == self.info(name).shape else self._box(name, ()))

    def metadata_of(self, name: str) -> dict[str, str]:
        """What the header of the file that holds a tensor says beside its tensors."""
        return {}

    def _box(self, name: str, index: tuple[slice, ...]) -> Box:
        shape = self.info(name).shape
        if len(index) > len(shape):
            raise LexrayError(f"{name} has {len(shape)} axes, not {len(index)}: shape {shape}")
        box = []
        for axis, size in enumerate(shape):
            part = index[axis] if axis < len(index) else slice(None)
            start = 0 if part.start is None else part.start
            stop = size if part.stop is None else part.stop
            if part.step not in (None, 1) or not 0 <= start <= stop <= size:
                raise LexrayError(
                    f"{name}: cannot read {start}:{stop} of axis {axis}; its shape is {shape}"
                )
            box.append((start, stop))
        return tuple(box)

    def missing(self, name: str) -> LexrayError:
        """The error for a tensor that is not there, with the names that come nearest."""
        near = get_close_matches(name, list(self.names()), n=3, cutoff=0.5)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        return LexrayError(
            f"{self.name} has no tensor {name!r} among its {len(self.names())}{hint}"
        )


def file_marks(paths: Iterable[Path]) -> tuple[str, ...]:
    """Path, size, time and number of files: one of these changes when a file is written again."""
    stats = ((path.resolve(), path.stat()) for path in paths)
    return tuple(f"{at} {s.st_size} {s.st_mtime_ns} {s.st_ino}" for at, s in stats)


class FolderCheckpoint(Checkpoint):
    """Weights in a local folder, with their config and tokenizer beside them."""

    folder: Path

    @property
    def config(self) -> dict[str, Any]:
        return read_json(self.folder / "config.json")

    def asset(self, filename: str) -> Path | None:
        return asset_at(self.folder / filename)


def runs(shape: tuple[int, ...], itemsize: int, box: Box) -> Iterator[tuple[int, int]]:
    """The contiguous byte ranges (offset, length) of `box` in a row-major tensor, in order."""
    if not shape:
        yield 0, itemsize
        return
    inner = len(shape) - 1
    while inner > 0 and box[inner] == (0, shape[inner]):
        inner -= 1
    strides = [prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
    length = (box[inner][1] - box[inner][0]) * strides[inner]
    if length == 0 or any(start == stop for start, stop in box):
        return

    def offsets(axis: int, at: int) -> Iterator[int]:
        if axis == inner:
            yield at + box[inner][0] * strides[inner]
        else:
            for i in range(*box[axis]):
                yield from offsets(axis + 1, at + i * strides[axis])

    for offset in offsets(0, 0):
        yield offset, length
