"""GGUF, the format of llama.cpp: one file, or several parts, of (mostly quantised) tensors."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint.base import Box, Checkpoint, file_marks
from lexray.checkpoint.gguf.dequantise import unpack_into
from lexray.checkpoint.gguf.header import GGUFSpan, Header, Metadata, integer
from lexray.checkpoint.mapped import Mapped
from lexray.checkpoint.plain import is_plain
from lexray.errors import LexrayError

PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GGUFFile:
    """One file, mapped into memory, its header parsed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped = Mapped(path)
        header = Header(self._mapped.buffer, str(path))
        self.header_bytes = header.end
        self.metadata = header.metadata
        self.entries = header.entries

    def read(self, name: str, box: Box) -> Tensor:
        entry = self.entries[name]
        *leading, (left, _) = box or ((0, 1),)
        out = torch.empty([stop - start for start, stop in box])
        if not out.numel():
            return out
        stored = self._mapped.part(entry.start, entry.stop)
        blocks = stored.view(*entry.shape[:-1], -1, entry.kind.size)
        first, last = block_range(entry, box)
        part = blocks[(*(slice(*ends) for ends in leading), slice(first, last))]
        unpack_into(out.view(out.shape or (1,)), part, entry.kind, left - first * entry.kind.block)
        return out


def block_range(entry: GGUFSpan, box: Box) -> tuple[int, int]:
    """The blocks of each row which hold the columns of `box`."""
    left, right = box[-1] if box else (0, 1)
    return left // entry.kind.block, -(-right // entry.kind.block)


class GGUFCheckpoint(Checkpoint):
    """A `.gguf` file, or all parts of a split one (`…-00001-of-00003.gguf`) given any of them.

    Tensors keep GGUF's own names (`blk.0.attn_q.weight`) and layout, and are read as float32.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._files = [GGUFFile(part) for part in parts(path)]
        self.bytes_read = sum(file.header_bytes for file in self._files)
        self._where: dict[str, GGUFFile] = {}
        for file in self._files:
            for name in file.entries:
                if name in self._where:
                    other = self._where[name].path.name
                    raise LexrayError(
                        f"{file.path} has the tensor {name}, but so has {other}: these parts do "
                        "not belong together; download them again"
                    )
                self._where[name] = file
        self._check_parts()

    def _check_parts(self) -> None:
        """Refuses parts of other splits; a merged file keeps these keys, with a count of 0."""
        for number, file in enumerate(self._files):
            expected = {
                "split.no": number,
                "split.count": len(self._files),
                "split.tensors.count": len(self._where),
            }
            for key, value in expected.items():
                said = integer(file.metadata, key, str(file.path))
                if said not in (None, value) and (key, said) != ("split.count", 0):
                    raise LexrayError(
                        f"{file.path}: {key} should be {value}, not {said}; the parts of a split "
                        "model must lie in one folder and keep their names (…-00001-of-00003.gguf)"
                    )

    @property
    def metadata(self) -> Metadata:
        """The file's keys and values, of a split file those of its first part."""
        return self._files[0].metadata

    @property
    def architecture(self) -> str:
        """llama.cpp's name for the model's family, which is also the prefix of its keys."""
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str):
            raise LexrayError(f"{self.name} does not say its model's general.architecture")
        return value

    @property
    def config(self) -> dict[str, Any]:
        """All metadata but the arrays; a family makes its configuration of it."""
        return self.metadata.scalars()

    def marks(self) -> tuple[str, ...]:
        return file_marks(file.path for file in self._files)

    def names(self) -> Collection[str]:
        return self._where.keys()

    def info(self, name: str) -> GGUFSpan:
        if name not in self._where:
            raise self.missing(name)
        return self._where[name].entries[name]

    def _cost(self, name: str, box: Box) -> int:
        entry = self.info(name)
        if any(start == stop for start, stop in box):
            return 0
        first, last = block_range(entry, box)
        return prod(stop - start for start, stop in box[:-1]) * (last - first) * entry.kind.size

    def _read(self, name: str, box: Box) -> Tensor:
        file = self._where[name]
        try:
            tensor = file.read(name, box)
        except NotImplementedError as error:
            kind = file.entries[name].kind.name
            raise LexrayError(
                f"{file.path}: {name} is stored as {kind}, which neither lexray nor the `gguf` "
                "package can de-quantise; take another quantisation of the model"
            ) from error
        self.bytes_read += self._cost(name, box)
        return tensor


def part_names(name: str) -> list[str]:
    """All parts of a split model by name, in order, given one of them; a whole one is alone."""
    match = PART.fullmatch(name)
    if not match or not 1 <= int(match["number"]) <= int(match["count"]):
        return [name]
    count = match["count"]
    return [f"{match['stem']}-{n:05}-of-{count}.gguf" for n in range(1, int(count) + 1)]


def parts(path: Path) -> list[Path]:
    """All files of a split model, in order, given any of them; a whole one is alone."""
    every = [path.with_name(name) for name in part_names(path.name)]
    if len(every) == 1:
        return [path]
    missing = [part.name for part in every if not is_plain(part)]
    if missing:
        raise LexrayError(
            f"{path} is one of {len(every)} parts, and {len(missing)} are missing from its folder: "
            f"{', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}; download them too"
        )
    return every
