"""The safetensors format: a JSON header and the tensors' bytes behind it.

The header comes from an untrusted file: every length and offset is checked against the file's size
before anything is read or allocated.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint.base import Box, Checkpoint, TensorInfo, read_json
from lexray.errors import LexrayError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
}
MAX_HEADER = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True)
class Entry(TensorInfo):
    """A tensor in a file: its first and last byte, counted from the start of the file."""

    start: int
    stop: int


def header_length(first: bytes, size: int, where: str) -> int:
    """The header's length from a file's first eight bytes."""
    if len(first) < 8:
        raise LexrayError(f"{where} is no safetensors file: {size} bytes are too few for a header")
    (length,) = struct.unpack("<Q", first[:8])
    if length > min(size - 8, MAX_HEADER):
        raise LexrayError(
            f"{where} is truncated or no safetensors file: its header claims {length} bytes, "
            f"the file has {size}; download it again"
        )
    return int(length)


def parse_header(raw: bytes, size: int, where: str) -> dict[str, Entry]:
    """The tensors that a header names, each checked against the file's `size`."""
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise LexrayError(f"{where} has a corrupt safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise LexrayError(f"{where} has a corrupt safetensors header: not a JSON object")
    header.pop("__metadata__", None)
    begin = 8 + len(raw)
    entries = {name: _entry(name, spec, begin, size, where) for name, spec in header.items()}
    _refuse_overlaps(entries, where)
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _entry(name: str, spec: Any, begin: int, size: int, where: str) -> Entry:
    match spec:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, stop]} if all(
            type(n) is int and n >= 0 for n in (*shape, start, stop)
        ):
            pass
        case _:
            raise LexrayError(f"{where} has a corrupt safetensors header: the entry of {name!r}")
    if kind not in DTYPES:
        raise LexrayError(f"{where}: {name} has the unknown dtype {kind!r}; known: {[*DTYPES]}")
    if begin + stop > size:
        raise LexrayError(
            f"{where} is truncated: {name} should end at byte {begin + stop}, the file has {size}; "
            "download it again"
        )
    dtype = DTYPES[kind]
    if stop - start != prod(shape) * dtype.itemsize:
        raise LexrayError(
            f"{where} has a corrupt safetensors header: {name}, {kind} of shape {shape}, "
            f"cannot fill bytes {start} to {stop}"
        )
    return Entry(tuple(shape), dtype, begin + start, begin + stop)


def _refuse_overlaps(entries: dict[str, Entry], where: str) -> None:
    filled = sorted((e.start, e.stop, name) for name, e in entries.items() if e.stop > e.start)
    for (_, stop, one), (start, _, other) in zip(filled, filled[1:], strict=False):
        if start < stop:
            raise LexrayError(f"{where} has a corrupt safetensors header: {one} overlaps {other}")


class SafetensorsFile:
    """One file, its header parsed, its bytes mapped into memory when first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = header_length(file.read(8), size, str(path))
                self.entries = parse_header(file.read(length), size, str(path))
        except OSError as error:
            raise LexrayError(f"{path} cannot be read: {error.strerror}") from error
        self.header_bytes = 8 + length
        self._bytes: Tensor | None = None

    def read(self, name: str, box: Box) -> Tensor:
        entry = self.entries[name]
        if self._bytes is None:
            with self.path.open("rb") as file:
                # A private mapping may be written to, which torch insists on; nothing ever does.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)
        if entry.start == entry.stop:
            return torch.empty(entry.shape, dtype=entry.dtype)[_slices(box)].clone()
        part = self._bytes[entry.start : entry.stop]
        if entry.start % entry.dtype.itemsize:
            part = part.clone()  # misaligned in the file: torch can only view aligned bytes
        tensor = part.view(entry.dtype).view(entry.shape)
        return tensor[_slices(box)].clone(memory_format=torch.contiguous_format)


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


class SafetensorsFolder(Checkpoint):
    """A folder with `model.safetensors`, or with shards and their index."""

    def __init__(self, folder: Path, files: list[Path], index: dict[str, str] | None = None) -> None:
        self.name = str(folder)
        self.folder = folder
        self._files = [SafetensorsFile(path) for path in files]
        self.bytes_read = sum(file.header_bytes for file in self._files)
        self._where = {name: file for file in self._files for name in file.entries}
        for name, shard in (index or {}).items():
            if name not in self._where or self._where[name].path.name != shard:
                raise LexrayError(
                    f"{folder}: the index says that {name} is in {shard}, which does not have it; "
                    "index and shards do not belong together: download them again"
                )

    def names(self) -> Collection[str]:
        return self._where.keys()

    def info(self, name: str) -> TensorInfo:
        if name not in self._where:
            raise self.missing(name)
        return self._where[name].entries[name]

    def _read(self, name: str, box: Box) -> Tensor:
        self.bytes_read += self._cost(name, box)
        return self._where[name].read(name, box)

    @property
    def config(self) -> dict[str, Any]:
        return read_json(self.folder / "config.json")

    def asset(self, filename: str) -> Path | None:
        path = self.folder / filename
        return path if path.is_file() else None
