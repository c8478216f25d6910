"""How small files of others come in: regular files only, so long and no longer, JSON with bounds.

A name in a folder may be a pipe that never ends or a device that never stops, and a small file may
describe a large value: both are refused before they cost time or memory. The limits are many times
what real files need: the largest tokenizers have 0.9 million tokens, the largest headers 10⁵
tensors.
"""

from __future__ import annotations

import gc
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lexray.errors import LexrayError

LONGEST = 1 << 28
"""Bytes of a small file (a config, an index, a tokenizer)."""
MOST_VALUES = 12_000_000
"""What may stand in one JSON text: values, keys and brackets, counted before it is parsed."""

Hook = Callable[[list[tuple[str, Any]]], Any]


def open_plain(path: Path) -> BinaryIO:
    """A regular file to read from: pipes and devices are refused, not waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # a zero byte in the name
        raise LexrayError(f"{str(path)!r} cannot be the name of a file: {error}") from error
    try:
        refuse_special(os.fstat(handle), path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def refuse_special(status: os.stat_result, path: Path) -> None:
    """Raises for what is neither a regular file nor a link to one."""
    if stat.S_ISREG(status.st_mode):
        return
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    what = kinds.get(stat.S_IFMT(status.st_mode), "something else")
    raise LexrayError(f"{path} cannot be read: it is {what}, not a regular file")


def exists(path: Path) -> bool:
    """Whether there is something at `path`, were it a broken link; False for impossible names."""
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):  # too long a name, a zero byte in it
        return False


def is_plain(path: Path) -> bool:
    """Whether `path` is a regular file (or a link to one)."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def asset_at(path: Path) -> Path | None:
    """A small file's path if it is there; raises if what is there is no regular file."""
    if not exists(path):
        return None
    try:
        refuse_special(path.stat(), path)
    except (FileNotFoundError, NotADirectoryError):
        return None  # a link to nowhere
    except OSError as error:
        raise LexrayError(f"{path} cannot be read: {error.strerror}") from error
    return path


def read_plain(path: Path, longest: int | None = None) -> bytes:
    """All bytes of a small regular file."""
    longest = LONGEST if longest is None else longest
    try:
        with open_plain(path) as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, longest) + 1)
    except FileNotFoundError as error:
        raise LexrayError(f"{path.parent} has no {path.name}; download it too") from error
    except OSError as error:
        raise LexrayError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > longest:
        raise LexrayError(
            f"{path} has more than {longest:,} bytes, many times what such files have; "
            "it is damaged, or not what its name says"
        )
    return data


@contextmanager
def without_collector() -> Iterator[None]:
    """No search for unreachable cycles while many values are made at once, none of them in one.

    It takes a third of the time in which a header of 10⁵ tensors is read.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def parse_json(raw: bytes, where: str, hook: Hook | None = None) -> Any:
    """A JSON value whose size is known to be bounded; `hook` is json's `object_pairs_hook`."""
    if len(raw) > MOST_VALUES < sum(map(raw.count, (b",", b":", b"[", b"{"))):
        raise LexrayError(
            f"{where} holds more than {MOST_VALUES:,} values, many times what such files have; "
            "it is damaged, or not what its name says"
        )
    try:
        with without_collector():
            return json.loads(raw, object_pairs_hook=hook)
    except (ValueError, RecursionError) as error:
        raise LexrayError(f"{where} cannot be read as JSON: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a small file, or a LexrayError that names the file."""
    value = parse_json(read_plain(path), str(path))
    if not isinstance(value, dict):
        raise LexrayError(f"{path} should hold a JSON object, not a {type(value).__name__}")
    return value
