"""Vectors of the user's own in a file: .npy, .safetensors, .json, .csv or .txt."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lexray.checkpoint.fields import brief
from lexray.checkpoint.plain import exists, open_plain, parse_json, read_plain
from lexray.checkpoint.safetensors import SafetensorsFile
from lexray.errors import LexrayError

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")
HEADER = 1 << 16
"""Bytes of a .npy file in which its header has to end; those of numbers have about a hundred."""
PLAIN = re.compile("[<>|=]?(f[248]|[iu][1248])")
"""Numbers in numpy's notation."""


def load_vectors(path: Path, name: str | None = None) -> Float[Tensor, "*shape"]:
    """The numbers in a file: a vector, or a matrix whose rows are vectors.

    `name` says which tensor of a .safetensors file, if it has several. Pickles (.pt) are refused:
    opening one can run whatever its author wrote into it.
    """
    ending = path.suffix.lower()
    if ending in PICKLES:
        raise LexrayError(
            f"{path} is a pickle, which may run code when it is opened; save the vector with "
            "numpy.save(…, x) as .npy, or as .safetensors"
        )
    if ending not in LOADERS:
        raise LexrayError(f"{path} is no file of vectors; those end in {', '.join(LOADERS)}")
    if name is not None and ending != ".safetensors":
        raise LexrayError(f"{path} has no names; only .safetensors files have ({name!r} was asked)")
    return LOADERS[ending](path, name)


def is_vector_file(where: str) -> bool:
    """Whether this means a file of vectors, or one that is refused, rather than an address."""
    return Path(where).suffix.lower() in (*LOADERS, *PICKLES) or exists(Path(where))


def _numpy(path: Path, name: str | None) -> Tensor:
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = _NumpyHeader.parse(file.read(HEADER), path)
            length = head.count * head.dtype.itemsize
            if length > size - head.length:
                raise LexrayError(
                    f"{path} is truncated: its {head.shape} {head.dtype} take {length:,} bytes, "
                    f"there are {size - head.length:,}"
                )
            file.seek(head.length)
            flat = np.frombuffer(file.read(length), head.dtype)
    except OSError as error:
        raise LexrayError(f"{path} cannot be read: {error.strerror or error}") from error
    return _numbers(flat.reshape(head.shape, order="F" if head.by_column else "C"))


@dataclass(frozen=True)
class _NumpyHeader:
    """What a .npy file says of its numbers, in bounds: numpy's own reader may end in any error."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_column: bool
    length: int

    @property
    def count(self) -> int:
        return prod(self.shape)

    @classmethod
    def parse(cls, first: bytes, path: Path) -> _NumpyHeader:
        """From a file's first bytes: the magic bytes, a version, a length, and a Python dict."""
        wide = first[6:7] >= b"\x02"
        begin = 12 if wide else 10
        length = begin + int.from_bytes(first[8:begin], "little")
        if first[:6] != b"\x93NUMPY" or length > len(first):
            raise LexrayError(f"{path} is no .npy file, or its header is cut off")
        try:
            header = ast.literal_eval(first[begin:length].decode("latin-1").strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            raise LexrayError(f"{path} has a .npy header that cannot be read") from error
        match header:
            case {"descr": str(descr), "shape": (*shape,), "fortran_order": bool(by_column)} if (
                all(type(n) is int and 0 <= n < 2**48 for n in shape) and len(shape) < 3
            ):
                if PLAIN.fullmatch(descr) is not None:
                    return cls(np.dtype(descr), tuple(shape), by_column, length)
                raise LexrayError(f"{path} holds no numbers but {brief(descr)}")
        raise LexrayError(f"{path} holds no vector and no matrix of numbers")


def _safetensors(path: Path, name: str | None) -> Tensor:
    file = SafetensorsFile(path)
    names = list(file.entries)
    if name is None and len(names) == 1:
        name = names[0]
    if name not in file.entries:
        asked = "which tensor is it?" if name is None else f"there is no {brief(name)} in it;"
        raise LexrayError(f"{path}: {asked} it has {', '.join(map(brief, names[:20]))}")
    entry = file.entries[name]
    if entry.dtype in (torch.bool, torch.complex64):
        raise LexrayError(f"{path}: {brief(name)} holds no numbers but {entry.dtype}")
    tensor = file.read(name, tuple((0, n) for n in entry.shape))
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _json(path: Path, name: str | None) -> Tensor:
    """A list of numbers, or of lists of as many numbers each."""
    parsed = parse_json(read_plain(path), str(path))
    nested = isinstance(parsed, list) and bool(parsed) and isinstance(parsed[0], list)
    rows = parsed if nested else [parsed]
    for row in rows:
        if not isinstance(row, list) or not {*map(type, row)} <= {int, float}:
            raise LexrayError(f"{path} holds something else than a list of numbers, or of such")
    return _rows(rows if nested else parsed, path)


def _text(path: Path, name: str | None) -> Tensor:
    """A vector a line, or one vector with a number a line; commas, semicolons or spaces between."""
    lines = read_plain(path).decode("utf-8", "replace").replace(",", " ").replace(";", " ")
    rows = [line.split() for line in lines.splitlines() if line.strip()]
    numbers = [[_number(word, path) for word in row] for row in rows]
    single = len(numbers) > 1 and all(len(row) == 1 for row in numbers)
    return _rows(list(chain(*numbers)) if single or len(numbers) == 1 else numbers, path)


def _number(word: str, path: Path) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise LexrayError(f"{path} holds something else than numbers: {brief(word)}") from error


def _rows(rows: list[Any], path: Path) -> Tensor:
    """Numbers, or lists of numbers, which have to be of one length."""
    if len({len(row) for row in rows if isinstance(row, list)}) > 1:
        raise LexrayError(f"{path}: its rows are not of one length")
    try:
        return _numbers(np.asarray(rows, np.float64))
    except (ValueError, OverflowError) as error:
        raise LexrayError(f"{path} holds numbers that are too large") from error


def _numbers(array: Shaped[np.ndarray, "*shape"]) -> Float[Tensor, "*shape"]:
    return torch.from_numpy(array.astype(np.float64 if array.dtype == np.float64 else np.float32))


LOADERS: dict[str, Callable[[Path, str | None], Tensor]] = {
    ".npy": _numpy,
    ".safetensors": _safetensors,
    ".json": _json,
    ".csv": _text,
    ".txt": _text,
}
