"""The header of a GGUF file: typed metadata and a table of tensors.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md describes it. The file is untrusted: every
length, count and offset is checked against the file's size before anything is looped over, read or
allocated. Strings and arrays of the metadata are only walked over at opening, and decoded when
somebody asks for them.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, overload

import numpy as np
import torch

from lexray.checkpoint.base import TensorInfo
from lexray.checkpoint.gguf.dequantise import Quantisation, quantisation
from lexray.checkpoint.safetensors import LFS_POINTER
from lexray.errors import LexrayError

SCALARS: dict[int, np.dtype[Any]] = {
    number: np.dtype(code)
    for number, code in zip(
        (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12),
        ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "<u8", "<i8", "<f8"),
        strict=True,
    )
}
STRING, ARRAY = 8, 9
"""With SCALARS, the numbers of all metadata types."""

MAX_NAMES = 1 << 18
"""The most keys or tensors in a file; the largest models have some 10⁵."""
MAX_STRINGS = 4_000_000
"""The most strings in an array; the largest vocabularies have some 500,000 merges."""
MAX_NAME = 65_535
"""The longest key or tensor name, in bytes: the format's own limit for keys."""
MAX_AXES = 4
"""ggml's limit."""


@dataclass(frozen=True)
class GGUFSpan(TensorInfo):
    """A tensor in a file: its first and last byte in the file, and how they are to be read."""

    start: int
    stop: int
    kind: Quantisation


@dataclass(frozen=True)
class Item:
    """Where a metadata value lies: `count` items of one type, or a single one if that is None."""

    kind: int
    start: int
    count: int | None = None
    starts: array[int] | None = None
    """For strings in an array: where each of them begins."""


class Strings(Sequence[str]):
    """An array of strings in the metadata, each decoded when it is asked for."""

    def __init__(self, buffer: bytes, starts: array[int]) -> None:
        self._buffer = buffer
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [_string(self._buffer, start) for start in self._starts[index]]
        return _string(self._buffer, self._starts[index])


class Metadata(Mapping[str, Any]):
    """The keys of a GGUF file, each value decoded when it is asked for.

    Numbers, booleans and strings come as Python's own, arrays of strings as `Strings`, arrays of
    numbers as read-only numpy arrays. Bytes that are not UTF-8 are shown as `\\xf0`.
    """

    def __init__(self, buffer: bytes, places: dict[str, Item]) -> None:
        self._buffer = buffer
        self._places = places

    def __getitem__(self, key: str) -> Any:
        place = self._places[key]
        if place.starts is not None:
            return Strings(self._buffer, place.starts)
        if place.kind == STRING:
            return _string(self._buffer, place.start)
        values = _numbers(self._buffer, place)
        return values[0].item() if place.count is None else values

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def scalars(self) -> dict[str, Any]:
        """Everything but the arrays."""
        return {key: self[key] for key, place in self._places.items() if place.count is None}


def _string(buffer: bytes, start: int) -> str:
    (length,) = struct.unpack_from("<Q", buffer, start)
    return buffer[start + 8 : start + 8 + length].decode("utf-8", "backslashreplace")


def _numbers(buffer: bytes, place: Item) -> np.ndarray[Any, np.dtype[Any]]:
    dtype, count = SCALARS[place.kind], 1 if place.count is None else place.count
    if not count:
        return np.empty(0, dtype)
    values: np.ndarray[Any, np.dtype[Any]] = np.frombuffer(buffer, dtype, count, place.start)
    if dtype.kind == "b":
        return values.view(np.uint8).astype(bool)  # numpy would keep a byte such as 7 as it is
    return values


class Header:
    """One pass over a file's header: its metadata, its tensors, and the byte where it ends."""

    def __init__(self, buffer: mmap.mmap, where: str) -> None:
        self._buffer = buffer
        self._size = len(buffer)
        self._where = where
        self.end = 0
        self._check_magic()
        n_tensors, n_keys = self._number("<Q"), self._number("<Q")
        places = self._places(n_keys)
        # A copy, since values are decoded later, when the file may have become shorter.
        self.metadata = Metadata(buffer[: self.end], places)
        self.entries = self._entries(n_tensors)

    def _fail(self, what: str) -> LexrayError:
        return LexrayError(
            f"{self._where} is truncated or has a corrupt GGUF header: {what} "
            f"(the file has {self._size} bytes); download it again"
        )

    def _check_magic(self) -> None:
        if self._buffer[: len(LFS_POINTER)] == LFS_POINTER:
            raise LexrayError(
                f"{self._where} is a Git LFS pointer, not the weights; run `git lfs pull`"
            )
        first = self._buffer[:4]
        if first != b"GGUF":
            raise LexrayError(
                f"{self._where} is no GGUF file: it begins with {first!r}, not with b'GGUF'"
            )
        self.end = 4
        version = self._number("<I")
        if version not in (2, 3):
            kind = f"GGUF version {version}" if version & 0xFFFF else "big-endian GGUF"
            raise LexrayError(
                f"{self._where} is {kind}; lexray reads little-endian versions 2 and 3: "
                "convert the model again with a current llama.cpp"
            )

    def _skip(self, length: int) -> int:
        """Passes over `length` bytes, which are then known to be there; where they begin."""
        start = self.end
        if length > self._size - start:
            raise self._fail(f"{length} bytes should follow byte {start}")
        self.end += length
        return start

    def _number(self, form: str) -> int:
        start = self._skip(struct.calcsize(form))
        (value,) = struct.unpack_from(form, self._buffer, start)
        return int(value)

    def _expect(self, count: int, what: str, most: int, least: int) -> None:
        """Refuses more than `most` things, or more than the file can hold at `least` bytes each."""
        if count > most or count * least > self._size - self.end:
            raise self._fail(f"{count} {what} should follow byte {self.end}")

    def _name(self) -> str:
        length = self._number("<Q")
        if length > MAX_NAME:
            raise self._fail(f"a name of {length} bytes should follow byte {self.end}")
        start = self._skip(length)
        try:
            return self._buffer[start : self.end].decode()
        except UnicodeDecodeError as error:
            raise self._fail(f"the name at byte {start} is not UTF-8") from error

    def _places(self, n_keys: int) -> dict[str, Item]:
        self._expect(n_keys, "keys", MAX_NAMES, 13)
        places: dict[str, Item] = {}
        for _ in range(n_keys):
            key = self._name()
            if key in places:
                raise self._fail(f"the key {key!r} occurs twice")
            places[key] = self._place(key, self._number("<I"))
        return places

    def _place(self, key: str, kind: int) -> Item:
        if kind == ARRAY:
            return self._array(key, self._number("<I"), self._number("<Q"))
        if kind == STRING:
            start = self.end
            self._skip(self._number("<Q"))
            return Item(kind, start)
        if kind in SCALARS:
            return Item(kind, self._skip(SCALARS[kind].itemsize))
        raise self._fail(f"the key {key!r} has the unknown type {kind}")

    def _array(self, key: str, kind: int, count: int) -> Item:
        start = self.end
        if kind == STRING:
            self._expect(count, "strings", MAX_STRINGS, 8)
            return Item(kind, start, count, self._strings(key, count))
        if kind in SCALARS:
            return Item(kind, self._skip(count * SCALARS[kind].itemsize), count)
        what = "arrays" if kind == ARRAY else f"the unknown type {kind}"
        raise self._fail(f"the key {key!r} is an array of {what}, which GGUF readers refuse")

    def _strings(self, key: str, count: int) -> array[int]:
        """Where each string begins: the one loop here that is long, so it is kept tight."""
        starts, at = array("Q"), self.end
        unpack, note = struct.Struct("<Q").unpack_from, starts.append
        with memoryview(self._buffer)[: self._size] as buffer:
            try:
                for _ in range(count):
                    (length,) = unpack(buffer, at)
                    note(at)
                    at += 8 + length
            except (struct.error, OverflowError) as error:  # behind the end, or far behind it
                raise self._fail(f"the strings of {key!r} should go on after byte {at}") from error
        self._skip(at - self.end)
        return starts

    def _entries(self, n_tensors: int) -> dict[str, GGUFSpan]:
        self._expect(n_tensors, "tensors", MAX_NAMES, 24)
        specs = [
            (self._name(), self._shape(), self._number("<I"), self._number("<Q"))
            for _ in range(n_tensors)
        ]
        alignment = integer(self.metadata, "general.alignment", self._where)
        alignment = 32 if alignment is None else alignment
        if alignment < 1 or alignment & (alignment - 1):
            raise self._fail(f"general.alignment is {alignment}, not a power of two")
        begin = -(-self.end // alignment) * alignment
        entries: dict[str, GGUFSpan] = {}
        for name, shape, number, offset in specs:
            if name in entries:
                raise self._fail(f"the tensor {name!r} occurs twice")
            if offset % alignment:
                raise self._fail(f"{name} begins at {offset}, not at a multiple of {alignment}")
            entries[name] = self._entry(name, shape, number, begin + offset)
        self._refuse_overlaps(entries)
        return entries

    def _shape(self) -> tuple[int, ...]:
        axes = self._number("<I")
        if axes > MAX_AXES:
            raise self._fail(f"a tensor with {axes} axes before byte {self.end}")
        return tuple(self._number("<Q") for _ in range(axes))[::-1]

    def _entry(self, name: str, shape: tuple[int, ...], number: int, start: int) -> GGUFSpan:
        kind = quantisation(number)
        if kind is None:
            raise LexrayError(
                f"{self._where}: {name} has the unknown tensor type {number}; "
                "a newer version of the `gguf` package may know it"
            )
        values = prod(shape)
        if values == 0 or (shape[-1] if shape else 1) % kind.block:
            raise self._fail(f"{name}, {kind.name} in blocks of {kind.block}, has shape {shape}")
        stop = start + values // kind.block * kind.size
        if stop > self._size:
            raise self._fail(f"{name} should end at byte {stop}")
        return GGUFSpan(shape, torch.float32, start, stop, kind, stored=kind.name)

    def _refuse_overlaps(self, entries: dict[str, GGUFSpan]) -> None:
        ordered = sorted((entry.start, entry.stop, name) for name, entry in entries.items())
        for (_, stop, one), (start, _, other) in pairwise(ordered):
            if start < stop:
                raise self._fail(f"{one} overlaps {other}")


def integer(metadata: Metadata, key: str, where: str) -> int | None:
    """A whole number of the metadata, None if the key is not there."""
    value = metadata.get(key)
    if value is None or type(value) is int:
        return value
    raise LexrayError(f"{where} has a corrupt GGUF header: {key} should be a whole number")
