"""What a word on the command line stands for: numbers, names, or the words of a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lexray.errors import LexrayError

NUMBERS = re.compile(r"(-?\d{1,9})(?:-(\d{1,9}))?")


def numbers(option: str, text: str | None) -> list[int] | None:
    """The numbers of a list such as 3, 20-29 or 0,5,-1."""
    if text is None:
        return None
    listed: list[int] = []
    for part in text.replace(" ", "").split(","):
        match = NUMBERS.fullmatch(part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise LexrayError(f"{option} {text!r} is no list of numbers such as 3, 20-29 or 0,5,-1")
        start = int(match[1])
        listed += range(start, int(match[2]) + 1) if match[2] else [start]
    return listed


def names(given: Sequence[str] | None) -> list[str]:
    """The names of an option that is repeatable and takes commas: --among keys,Q --among VO."""
    return [name for text in given or () for name in text.replace(",", " ").split()]


def words(option: str, given: Sequence[str]) -> list[str]:
    """The words of each value, or of the file that it names: @FILE, a .txt, a path to a file.

    `and/or` is a word as long as no file lies there; `" @home"`, with a space, is one too.
    """
    listed: list[str] = []
    for value in given:
        path = _file(value)
        listed += value.split() if path is None else _lines(option, path)
    if not listed:
        raise LexrayError(f"{option} names no words: {', '.join(map(repr, given))}")
    return listed


def _file(value: str) -> Path | None:
    if value.startswith("@") and len(value) > 1:
        return Path(value[1:])
    path = Path(value)
    return path if path.suffix == ".txt" or ("/" in value and path.is_file()) else None


def _lines(option: str, path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LexrayError(f"cannot read the words of {option} {path}: {error}") from error
    return [line for line in lines if line.strip()]
