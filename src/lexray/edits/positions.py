"""Positions of a sequence as values: numbers and ranges, negative ones from the end."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lexray.errors import LexrayError

Item = int | tuple[int | None, int | None]
"""One position, or a range from its first to before its last, as in Python."""


@dataclass(frozen=True)
class Positions:
    """Some positions; without items all of them.

    >>> str(Positions.of([3, -1])), str(Positions.of(slice(2, None))), str(Positions.of(None))
    ('[3,-1]', '[2:]', '')
    """

    items: tuple[Item, ...] = ()

    @classmethod
    def of(cls, some: Any) -> Positions:
        """From a number, a slice, several of these, or None for all."""
        if some is None or isinstance(some, Positions):
            return some or cls()
        listed = [some] if isinstance(some, slice) or not isinstance(some, Iterable) else list(some)
        if isinstance(some, str) or not listed:
            raise LexrayError(f"positions are given as numbers or slices, not as {some!r}")
        return cls(tuple(_item(one) for one in listed))

    @property
    def everywhere(self) -> bool:
        return not self.items

    def choose(self, n: int, counted: int | None = None) -> tuple[int, ...]:
        """Which of n positions are meant, in order.

        Negative ones count from the end of the first `counted` (of a prompt that is continued).
        """
        if self.everywhere:
            return tuple(range(n))
        end = n if counted is None else counted
        chosen: set[int] = set()
        for item in self.items:
            if isinstance(item, tuple):
                start, stop = (i + end if i is not None and i < 0 else i for i in item)
                chosen |= set(range(n)[slice(start, stop)])
            elif -end <= item < n:
                chosen.add(item + end if item < 0 else item)
            else:
                raise LexrayError(
                    f"there is no position {item}: the sequence has {n} tokens, positions "
                    f"0–{n - 1}, or {-end} to -1 from the end"
                )
        if not chosen:
            raise LexrayError(f"positions {self} are none of the {n} of the sequence")
        return tuple(sorted(chosen))

    def __str__(self) -> str:
        return f"[{','.join(map(_show, self.items))}]" if self.items else ""


def _item(one: Any) -> Item:
    if isinstance(one, slice):
        if one.step not in (None, 1):
            raise LexrayError(f"positions have no step: {one!r}")
        return _number(one.start), _number(one.stop)
    number = _number(one)
    if number is None:
        raise LexrayError("a position is a number or a slice, not None")
    return number


def _number(one: Any) -> int | None:
    try:
        return None if one is None else operator.index(one)
    except TypeError as error:
        raise LexrayError(f"a position is a number or a slice, not {one!r}") from error


def _show(item: Item) -> str:
    if isinstance(item, int):
        return str(item)
    return ":".join("" if i is None else str(i) for i in item)
