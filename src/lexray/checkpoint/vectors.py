"""Vectors of the user's own in a file: .npy, .safetensors, .json, .csv or .txt."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lexray.checkpoint.fields import brief
from lexray.checkpoint.plain import exists, open_plain, parse_json, read_plain
from lexray.checkpoint.safetensors import SafetensorsFile
from lexray.errors import LexrayError

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")


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
            found = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise LexrayError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError, MemoryError) as error:
        raise LexrayError(f"{path} is no .npy file of numbers: {brief(str(error))}") from error
    return _numbers(found, path)


def _safetensors(path: Path, name: str | None) -> Tensor:
    file = SafetensorsFile(path)
    names = list(file.entries)
    if name is None and len(names) == 1:
        name = names[0]
    if name not in file.entries:
        asked = "which tensor is it?" if name is None else f"there is no {name!r} in it;"
        raise LexrayError(f"{path}: {asked} it has {', '.join(map(brief, names[:20]))}")
    found = file.read(name, tuple((0, n) for n in file.entries[name].shape))
    return found if found.dtype == torch.float64 else found.float()


def _json(path: Path, name: str | None) -> Tensor:
    return _numbers(parse_json(read_plain(path), str(path)), path)


def _text(path: Path, name: str | None) -> Tensor:
    """A vector a line, or one vector with a number a line; commas, semicolons or spaces between."""
    lines = read_plain(path).decode("utf-8", "replace").replace(",", " ").replace(";", " ")
    rows = [line.split() for line in lines.splitlines() if line.strip()]
    try:
        numbers = [[float(number) for number in row] for row in rows]
    except ValueError as error:
        raise LexrayError(f"{path} holds something else than numbers: {error}") from error
    single = len(numbers) > 1 and all(len(row) == 1 for row in numbers)
    return _numbers(list(chain(*numbers)) if single or len(numbers) == 1 else numbers, path)


def _numbers(found: Any, path: Path) -> Tensor:
    try:
        array = np.asarray(found)
    except ValueError as error:
        raise LexrayError(f"{path}: its rows are not of one length") from error
    if array.dtype.kind not in "fiu":
        raise LexrayError(f"{path} holds no numbers but {array.dtype}")
    return torch.from_numpy(array.astype(np.float64 if array.dtype == np.float64 else np.float32))


LOADERS: dict[str, Callable[[Path, str | None], Tensor]] = {
    ".npy": _numpy,
    ".safetensors": _safetensors,
    ".json": _json,
    ".csv": _text,
    ".txt": _text,
}
