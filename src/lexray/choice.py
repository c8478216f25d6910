"""Which layers or positions are meant: one, several, a range, or all."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from lexray.errors import LexrayError

Some = int | slice | Iterable[int] | None
"""A choice of layers or positions: one, a range, several, or all (None)."""


def choose(some: Some, n: int, word: str) -> tuple[int, ...]:
    """Which of n layers or positions are meant, in order; negative ones count from the end."""
    if some is None:
        return tuple(range(n))
    if isinstance(some, slice):
        return _not_empty(tuple(range(n))[some], some, n, word)
    asked = numbers(some, word)
    if wrong := [i for i in asked if not -n <= i < n]:
        raise LexrayError(
            f"there is no {word} {', '.join(map(str, wrong))}: the {word}s are 0–{n - 1}, or "
            f"{-n} to -1 from the end"
        )
    return _not_empty(tuple(sorted({i % n for i in asked})), some, n, word)


def numbers(some: Any, word: str) -> list[int]:
    """One number or several, whatever they came as; a text is none."""
    try:
        listed = list(some) if isinstance(some, Iterable) else [some]
        return [operator.index(i) for i in listed]
    except TypeError as error:
        raise LexrayError(
            f"{word}s are given as a number, a list of numbers or a slice, not as {some!r}"
        ) from error


def _not_empty(chosen: tuple[int, ...], some: object, n: int, word: str) -> tuple[int, ...]:
    if not chosen:
        raise LexrayError(f"{word}s={some!r} keeps none of the {n} {word}s")
    return chosen


def list_numbers(numbers: tuple[int, ...]) -> str:
    """Layers or positions in a few words: "0–11", "3, 7", "40 from 0 to 99"."""
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}–{numbers[-1]}"
    if len(numbers) > 12:
        return f"{len(numbers)} from {numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
