"""torch's own format: `pytorch_model.bin`, a zip of one pickle and the tensors' bytes.

A pickle is a small program. Before torch sees it, its opcodes are listed, without running them,
and anything but the building blocks of tensors is refused; torch then loads what is left with
`weights_only=True`, mapped into memory.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from lexray.checkpoint.base import Box, FolderCheckpoint, TensorInfo, file_marks
from lexray.checkpoint.fields import brief
from lexray.checkpoint.pickles import LARGEST_PICKLE, refuse_code
from lexray.checkpoint.plain import open_plain
from lexray.checkpoint.safetensors import LFS_POINTER
from lexray.errors import LexrayError

LARGEST_SIDE_RECORD = 1 << 16
"""Bytes of `version`, `byteorder` and the like, which have some ten."""
LEGACY_PICKLES = 5
"""Before 1.6 torch wrote this many pickles one after the other, then the bytes."""


class TorchBinFile:
    """One file: its tensors by name, mapped into memory (old files: loaded into it)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Kept open, so that its size can be looked up later.
            self._file = open_plain(path)
            self.size = os.fstat(self._file.fileno()).st_size
            zipped = zipfile.is_zipfile(self._file)
            self._file.seek(0)
            self.header_bytes = (_check_zip if zipped else _check_legacy)(self._file, path)
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        except LexrayError:
            raise
        except Exception as error:  # whatever a broken pickle or zip makes torch raise
            reason = brief(str(error).partition("\n")[0])
            raise LexrayError(
                f"{path} is truncated or no torch file ({reason}); download it again"
            ) from error
        self.tensors = _tensors(loaded)
        self._check_tensors()

    def refuse_shorter(self) -> None:
        """Raises if the file has shrunk: reading a mapping behind its end kills the process."""
        if (now := os.fstat(self._file.fileno()).st_size) < self.size:
            raise LexrayError(
                f"{self.path} has become shorter since it was opened ({self.size} bytes, now "
                f"{now}); open the model again"
            )

    def _check_tensors(self) -> None:
        if not self.tensors:
            raise LexrayError(f"{self.path} holds no named tensors, so it is no model's weights")
        size = self.size
        for name, tensor in self.tensors.items():
            if tensor.layout != torch.strided or tensor.device.type != "cpu":
                raise LexrayError(f"{self.path}: {name!r} is no plain tensor: {tensor.layout}")
            if tensor.numel() * tensor.itemsize > size:
                raise LexrayError(
                    f"{self.path} is corrupt: {name!r} of shape {tuple(tensor.shape)} claims more "
                    f"bytes than the file's {size}"
                )


def _tensors(loaded: Any) -> dict[str, Tensor]:
    """The tensors by name; training scripts often put them one level down."""
    for inner in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(inner), Mapping):
            loaded = loaded[inner]
    if not isinstance(loaded, Mapping):
        return {}
    return {k: v for k, v in loaded.items() if isinstance(k, str) and isinstance(v, Tensor)}


def _check_zip(file: BinaryIO, path: Path) -> int:
    """Refuses code in the pickle, and records that torch.save never writes; the pickle's size.

    torch reads some side records whole (`version`, `byteorder`, …), and would unpack a small one
    into gigabytes.
    """
    with zipfile.ZipFile(file) as archive:
        records = archive.infolist()
        packed = [r.filename for r in records if r.compress_type != zipfile.ZIP_STORED]
        if packed:
            what = "pickle" if packed[0].endswith(".pkl") else f"record ({brief(packed[0])})"
            raise LexrayError(f"{path} has a compressed {what}, which torch.save never writes")
        if sum(record.file_size for record in records) > os.fstat(file.fileno()).st_size:
            raise LexrayError(f"{path} has records that claim more bytes than the file has")
        pickles = [i for i in records if i.filename.split("/")[-1] == "data.pkl"]
        if len(pickles) != 1:
            raise LexrayError(f"{path} is a zip, but not one of torch.save: download it again")
        side = [i for i in records if "/data/" not in i.filename and i is not pickles[0]]
        if any(record.file_size > LARGEST_SIDE_RECORD for record in side):
            raise LexrayError(f"{path} has side records larger than torch.save writes them")
        with archive.open(pickles[0]) as stream:
            refuse_code(stream, pickles[0].file_size, path)
    return pickles[0].file_size


def _check_legacy(file: BinaryIO, path: Path) -> int:
    """Refuses code in the pickles of an old file; returns their size."""
    start = file.read(8)
    if start == LFS_POINTER:
        raise LexrayError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull`")
    if start.startswith(b"PK"):
        raise LexrayError(f"{path} is truncated: the end of its zip is missing; download it again")
    file.seek(0)
    for _ in range(LEGACY_PICKLES):
        refuse_code(file, LARGEST_PICKLE, path)
    return file.tell()


class TorchBinFolder(FolderCheckpoint):
    """A folder with `pytorch_model.bin`, or with shards and their index; shards open when asked."""

    def __init__(
        self, folder: Path, files: list[Path], index: dict[str, str] | None = None
    ) -> None:
        self.name = str(folder)
        self.folder = folder
        self._open: dict[Path, TorchBinFile] = {}
        if index is None:
            self._where = {name: path for path in files for name in self._file(path).tensors}
        else:
            self._where = {name: folder / shard for name, shard in index.items()}

    def _file(self, path: Path) -> TorchBinFile:
        if path not in self._open:
            self._open[path] = TorchBinFile(path)
            self.bytes_read += self._open[path].header_bytes
        return self._open[path]

    def _tensor(self, name: str) -> Tensor:
        if name not in self._where:
            raise self.missing(name)
        path = self._where[name]
        tensors = self._file(path).tensors
        if name not in tensors:
            raise LexrayError(
                f"{self.folder}: the index says that {name!r} is in {path.name}, which does not "
                "have it; index and shards do not belong together: download them again"
            )
        return tensors[name]

    def names(self) -> Collection[str]:
        return self._where.keys()

    def marks(self) -> tuple[str, ...]:
        return file_marks(sorted({*self._where.values()}))

    def info(self, name: str) -> TensorInfo:
        tensor = self._tensor(name)
        return TensorInfo(tuple(tensor.shape), tensor.dtype)

    def peek(self, name: str) -> TensorInfo | None:
        return self.info(name) if self._where.get(name) in self._open else None

    def _read(self, name: str, box: Box) -> Tensor:
        self.bytes_read += self._cost(name, box)
        self._file(self._where[name]).refuse_shorter()
        part = self._tensor(name).detach()[tuple(slice(*bounds) for bounds in box)]
        return part.clone(memory_format=torch.contiguous_format)

    def _read_as(self, name: str, shape: tuple[int, ...], box: Box) -> Tensor:
        self.bytes_read += self.cost_as(name, shape, box)
        self._file(self._where[name]).refuse_shorter()
        part = self._tensor(name).detach().reshape(shape)[tuple(slice(*bounds) for bounds in box)]
        return part.clone(memory_format=torch.contiguous_format)

    def cost_as(self, name: str, shape: tuple[int, ...], box: Box) -> int:
        return self._cost(name, box)
