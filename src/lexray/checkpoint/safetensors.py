"""The safetensors format: a JSON header and the tensors' bytes behind it.

The header comes from an untrusted file: every length and offset is checked against the file's size
before anything is read or allocated.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice, pairwise
from math import prod
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint.base import Box, FolderCheckpoint, TensorInfo, file_marks, runs
from lexray.checkpoint.fields import Fields, brief
from lexray.checkpoint.mapped import Mapped
from lexray.checkpoint.plain import exists, open_plain, parse_json, read_json, without_collector
from lexray.errors import LexrayError
from lexray.scratch import leave_no_holes

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
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
MAPPED_FROM = 2**28
"""Bytes from which on a whole tensor is used as it lies in the file: a copy might not fit. Nobody
writes to it; the file has to stay as long as the model is used."""
MAX_HEADER = 100_000_000
"""The format's own limit."""
MAX_AXES = 64
"""torch's own limit: it cannot copy a tensor of more axes."""
LONGEST_NAME = 255
"""Bytes that a system allows in the name of a file."""
LFS_POINTER = b"version "
"""How the small text starts that Git leaves in place of a large file."""


@dataclass(frozen=True, slots=True)
class TensorSpan(TensorInfo):
    """A tensor in a file: its first and last byte, counted from the start of the file."""

    start: int
    stop: int


def header_length(first: bytes, size: int, where: str) -> int:
    """The header's length from a file's first eight bytes."""
    if first[:8] == LFS_POINTER:
        raise LexrayError(f"{where} is a Git LFS pointer, not the weights; run `git lfs pull`")
    if len(first) < 8:
        raise LexrayError(f"{where} is no safetensors file: {size} bytes are too few for a header")
    (length,) = struct.unpack("<Q", first[:8])
    if length > min(size - 8, MAX_HEADER):
        raise LexrayError(
            f"{where} is truncated or no safetensors file: its header claims {length} bytes, "
            f"the file has {size}; download it again"
        )
    return int(length)


@without_collector()
def parse_header(raw: bytes, size: int, where: str) -> dict[str, TensorSpan]:
    """The tensors that a header names, each checked against the file's `size`."""
    broken = f"{where} has a corrupt safetensors header: it"
    header = parse_json(raw, broken)
    if not isinstance(header, dict):
        raise _corrupt(where, "not a JSON object")
    count = len(header) - ("__metadata__" in header)
    if any(raw.count(key) != count for key in (b'"dtype"', b'"shape"', b'"data_offsets"')):
        parse_json(raw, broken, _unique)  # slower: says so if a name occurs twice
    header.pop("__metadata__", None)
    begin = 8 + len(raw)
    layouts: dict[str, Layout] = {}
    entries = {
        name: _entry(name, spec, begin, size, where, layouts) for name, spec in header.items()
    }
    _refuse_overlaps(entries, where)
    return entries


def _corrupt(where: str, what: str) -> LexrayError:
    return LexrayError(f"{where} has a corrupt safetensors header: {what}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice")
    return entries


Layout = tuple[tuple[int, ...], torch.dtype, int]
"""A shape, a dtype, and the bytes that they take: 10⁵ tensors have a handful of them."""


def _entry(
    name: str, spec: Any, begin: int, size: int, where: str, layouts: dict[str, Layout]
) -> TensorSpan:
    """One tensor; `layouts` are those that were found sound before."""
    match spec:
        case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, stop]} if (
            type(start) is int and type(stop) is int and start >= 0 <= stop
        ):
            pass
        case _:
            raise _corrupt(where, f"the entry of {brief(name)}")
    known = f"{kind}{shape}"  # 4, 4.0 and true are the same in a dict, but not here
    layout = layouts.get(known)
    if layout is None:
        layout = layouts[known] = _layout(name, kind, shape, where)
    sizes, dtype, length = layout
    if begin + stop > size:
        raise LexrayError(
            f"{where} is truncated: {brief(name)} should end at byte {begin + stop}, "
            f"the file has {size}; download it again"
        )
    if stop - start != length:
        what = f"{brief(name)}, {kind} of shape {shape[:8]}, cannot fill bytes {start} to {stop}"
        raise _corrupt(where, what)
    return TensorSpan(sizes, dtype, begin + start, begin + stop)


def _layout(name: str, kind: str, shape: list[Any], where: str) -> Layout:
    if not {*map(type, shape)} <= {int} or min(shape, default=0) < 0:
        raise _corrupt(where, f"the entry of {brief(name)}")
    if kind not in DTYPES:
        raise LexrayError(
            f"{where}: {brief(name)} has the unknown dtype {brief(kind)}; known: {[*DTYPES]}"
        )
    return tuple(shape), DTYPES[kind], _bytes(shape, DTYPES[kind].itemsize)


def _bytes(shape: list[int], itemsize: int) -> int:
    """How many bytes a shape takes; -1 for one that no tensor can have."""
    if len(shape) > MAX_AXES or any(n >= 2**63 for n in shape):
        return -1
    if prod(n for n in shape if n) * itemsize >= 2**63:
        return -1
    return prod(shape) * itemsize


def parse_metadata(raw: bytes, where: str) -> dict[str, str]:
    """The texts that a header keeps beside its tensors."""
    header = parse_json(raw, f"{where} has a corrupt safetensors header: it")
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        return {}
    return {key: value for key, value in metadata.items() if isinstance(value, str)}


def _refuse_overlaps(entries: dict[str, TensorSpan], where: str) -> None:
    filled = [(e.start, e.stop) for e in entries.values() if e.stop > e.start]
    filled.sort()
    if all(stop <= start for (_, stop), (start, _) in pairwise(filled)):
        return
    named = sorted((e.start, e.stop, name) for name, e in entries.items() if e.stop > e.start)
    for (_, stop, one), (start, _, other) in pairwise(named):
        if start < stop:
            raise _corrupt(where, f"{brief(one)} overlaps {brief(other)}")


def weight_map(index: Path) -> dict[str, str]:
    """Which shard holds which tensor, from an index file; shards are plain names beside it."""
    where = Fields(read_json(index), str(index)).object("weight_map")
    shards = {name: where.text(name) or "" for name in where}
    if not shards:
        raise LexrayError(f"{index} is no index of shards: its weight_map should name a file each")
    for shard in set(shards.values()):
        # Windows' rules refuse more: both kinds of slash, and drives.
        odd = shard in ("", "..", ".") or "\0" in shard or len(shard.encode()) > LONGEST_NAME
        if odd or PureWindowsPath(shard).name != shard:
            raise LexrayError(
                f"{index} names the shard {brief(shard)}, which is not a file beside it"
            )
    return shards


class SafetensorsFile:
    """One file, its header parsed, its bytes mapped into memory when first read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_plain(path) as file:
                self.size = os.fstat(file.fileno()).st_size
                length = header_length(file.read(8), self.size, str(path))
                self.entries = parse_header(file.read(length), self.size, str(path))
        except OSError as error:
            raise LexrayError(f"{path} cannot be read: {error.strerror}") from error
        self.header_bytes = 8 + length
        self._mapped: Mapped | None = None

    def metadata(self) -> dict[str, str]:
        """The texts of the header's `__metadata__`, read anew: few formats need them."""
        with open_plain(self.path) as file:
            file.seek(8)
            return parse_metadata(file.read(self.header_bytes - 8), str(self.path))

    def read(self, name: str, box: Box, shape: tuple[int, ...] | None = None) -> Tensor:
        """The part inside `box`, of the tensor in its own or in another shape."""
        entry = self.entries[name]
        shape = entry.shape if shape is None else shape
        sizes, size = [stop - start for start, stop in box], entry.dtype.itemsize
        if entry.start == entry.stop:
            return torch.empty(sizes, dtype=entry.dtype)
        aligned = entry.start % size == 0
        if aligned and entry.stop - entry.start >= MAPPED_FROM and sizes == [*shape]:
            leave_no_holes()
            return self._open().part(entry.start, entry.stop).view(entry.dtype).view(shape)
        pieces = [*islice(runs(shape, size, box), 2)]
        if len(pieces) < 2:  # side by side in the file
            start, length = pieces[0] if pieces else (0, 0)
            start += entry.start
            return self._open().read(start, start + length).view(entry.dtype).view(sizes)
        part = self._open().part(entry.start, entry.stop)
        if aligned:
            inside = part.view(entry.dtype).view(shape)[_slices(box)]
            copied = inside.clone(memory_format=torch.contiguous_format)
        else:  # torch can only view bytes: one more axis, until copied
            inside = part.view(*shape, size)[_slices(box)]
            copied = inside.clone(memory_format=torch.contiguous_format)
            copied = copied.view(entry.dtype).squeeze(-1)
        self._open().let_go(entry.start, entry.stop)
        return copied

    def _open(self) -> Mapped:
        if self._mapped is None:
            if not exists(self.path):
                raise LexrayError(f"{self.path} cannot be read any more: it is gone")
            self._mapped = Mapped(self.path)
        return self._mapped


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


class SafetensorsFolder(FolderCheckpoint):
    """A folder with `model.safetensors`, or with shards and their index."""

    def __init__(
        self, folder: Path, files: list[Path], index: dict[str, str] | None = None
    ) -> None:
        self.name = str(folder)
        self.folder = folder
        self._files = [SafetensorsFile(path) for path in files]
        self.bytes_read = sum(file.header_bytes for file in self._files)
        self._where = {name: file for file in self._files for name in file.entries}
        by_path = {file.path: file for file in self._files}
        for name, shard in (index or {}).items():
            self._where[name] = by_path[folder / shard]
            if name not in self._where[name].entries:
                raise LexrayError(
                    f"{folder}: the index says that {brief(name)} is in {shard}, which does not "
                    "have it; index and shards do not belong together: download them again"
                )

    def names(self) -> Collection[str]:
        return self._where.keys()

    def marks(self) -> tuple[str, ...]:
        return file_marks(file.path for file in self._files)

    def info(self, name: str) -> TensorInfo:
        if name not in self._where:
            raise self.missing(name)
        return self._where[name].entries[name]

    def _read(self, name: str, box: Box) -> Tensor:
        self.bytes_read += self._cost(name, box)
        return self._where[name].read(name, box)

    def _read_as(self, name: str, shape: tuple[int, ...], box: Box) -> Tensor:
        self.bytes_read += self.cost_as(name, shape, box)
        return self._where[name].read(name, box, shape)

    def cost_as(self, name: str, shape: tuple[int, ...], box: Box) -> int:
        return self._cost(name, box)

    def metadata_of(self, name: str) -> dict[str, str]:
        return self._where[name].metadata() if name in self._where else {}
