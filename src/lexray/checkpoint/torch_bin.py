"""torch's own format: `pytorch_model.bin`, a zip of one pickle and the tensors' bytes.

A pickle is a small program. Before torch sees it, its opcodes are listed, without running them,
and anything but the building blocks of tensors is refused; torch then loads what is left with
`weights_only=True`, mapped into memory.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint.base import Box, FolderCheckpoint, TensorInfo
from lexray.checkpoint.safetensors import LFS_POINTER
from lexray.errors import LexrayError

BUILDING_BLOCKS = {
    "collections OrderedDict",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
}
"""What a pickle of weights may name, besides torch's storages, dtypes, `Size` and `device`."""

LEGACY_PICKLES = 5
"""Before 1.6 torch wrote this many pickles one after the other, then the bytes."""


class TorchBinFile:
    """One file: its tensors by name, mapped into memory (old files: loaded into it)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            zipped = zipfile.is_zipfile(path)
            self.header_bytes = _check_zip(path) if zipped else _check_legacy(path)
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
        except LexrayError:
            raise
        except Exception as error:  # whatever a broken pickle or zip makes torch raise
            reason = str(error).partition("\n")[0]
            raise LexrayError(
                f"{path} is truncated or no torch file ({reason}); download it again"
            ) from error
        self.tensors = _tensors(loaded)
        self._check_tensors()

    def _check_tensors(self) -> None:
        if not self.tensors:
            raise LexrayError(f"{self.path} holds no named tensors, so it is no model's weights")
        size = self.path.stat().st_size
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


def _check_zip(path: Path) -> int:
    """Refuses code in the zip's pickle; returns the pickle's size."""
    with zipfile.ZipFile(path) as archive:
        pickles = [i for i in archive.infolist() if i.filename.split("/")[-1] == "data.pkl"]
        if len(pickles) != 1:
            raise LexrayError(f"{path} is a zip, but not one of torch.save: download it again")
        if pickles[0].compress_type != zipfile.ZIP_STORED:
            raise LexrayError(f"{path} has a compressed pickle, which torch.save never writes")
        with archive.open(pickles[0]) as stream:
            _refuse_code(stream, path)
    return pickles[0].file_size


def _check_legacy(path: Path) -> int:
    """Refuses code in the pickles of an old file; returns their size."""
    with path.open("rb") as stream:
        start = stream.read(8)
        if start == LFS_POINTER:
            raise LexrayError(f"{path} is a Git LFS pointer, not the weights; run `git lfs pull`")
        if start.startswith(b"PK"):
            raise LexrayError(
                f"{path} is truncated: the end of its zip is missing; download it again"
            )
        stream.seek(0)
        for _ in range(LEGACY_PICKLES):
            _refuse_code(stream, path)
        return stream.tell()


def _refuse_code(stream: Any, path: Path) -> None:
    """Lists one pickle's opcodes and raises at the first that names more than building blocks.

    `stream` is a binary file (`Any`, since one inside a zip archive is no IO[bytes] at runtime).
    """
    strings = ["?", "?"]
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name in ("GLOBAL", "INST"):
            wanted = str(argument)
        elif opcode.name == "STACK_GLOBAL":  # takes the two strings pushed last
            wanted = " ".join(strings)
        else:
            strings = [strings[1], argument] if isinstance(argument, str) else strings
            continue
        if not _is_building_block(wanted):
            raise LexrayError(
                f"{path} asks to run code when it is opened ({wanted.replace(' ', '.')!r}), which "
                "lexray never does; where you trust it, load it and save it as safetensors"
            )


def _is_building_block(wanted: str) -> bool:
    module, _, name = wanted.partition(" ")
    if module not in ("torch", "torch.storage"):
        return wanted in BUILDING_BLOCKS
    storage = name.isalnum() and name.endswith("Storage")
    return (
        storage or name in ("Size", "device") or isinstance(getattr(torch, name, None), torch.dtype)
    )


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

    def info(self, name: str) -> TensorInfo:
        tensor = self._tensor(name)
        return TensorInfo(tuple(tensor.shape), tensor.dtype)

    def _read(self, name: str, box: Box) -> Tensor:
        self.bytes_read += self._cost(name, box)
        part = self._tensor(name).detach()[tuple(slice(*bounds) for bounds in box)]
        return part.clone(memory_format=torch.contiguous_format)
