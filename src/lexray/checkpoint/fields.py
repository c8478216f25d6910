"""One reader for the fields of configs, indexes, adapters and metadata: each with its type.

Values come from files of others. A size may be a text, a text a list, and Python would make
something of each: `"64" * 100_000`. So every field is asked for by what it should be.

>>> fields = Fields({"r": 8, "alpha_pattern": {"q_proj": "x"}}, "adapter_config.json")
>>> fields.whole("r"), fields.text("revision")
(8, None)
>>> fields.object("alpha_pattern").number("q_proj")
Traceback (most recent call last):
lexray.errors.LexrayError: adapter_config.json: alpha_pattern.q_proj should be a number, not 'x'
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from lexray.errors import LexrayError

T = TypeVar("T")
LONGEST_SHOWN = 200
"""Characters of a field's name in an error."""


def whole(value: Any) -> int | None:
    """A whole number, also one that is written as 8.0; None for everything else."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if type(value) is int and abs(value) < 2**63 else None


def number(value: Any) -> float | int | None:
    """A finite number; None for everything else."""
    if type(value) is int and abs(value) < 2**63:
        return value
    return value if isinstance(value, float) and isfinite(value) else None


def flag(value: Any) -> bool | None:
    """True or False, also as 1 and 0; None for everything else."""
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


def text(value: Any) -> str | None:
    """A text that can be written down (no half of a surrogate pair); None for everything else."""
    if not isinstance(value, str) or (not value.isascii() and _is_broken(value)):
        return None
    return value


def listing(value: Any) -> list[Any] | None:
    """A list; None for everything else."""
    return value if isinstance(value, list) else None


def mapping(value: Any) -> dict[str, Any] | None:
    """An object with fields of its own; None for everything else."""
    return value if isinstance(value, dict) else None


Kind = Callable[[Any], Any]
WORDS: dict[Kind, str] = {
    whole: "a whole number",
    number: "a number",
    flag: "true or false",
    text: "a text",
    listing: "a list",
    mapping: "an object",
}


def check(value: Any, kind: Callable[[Any], T | None], name: str, where: str) -> T:
    """The value, if it is of its kind; `name` and `where` are what the error calls it."""
    parsed = kind(value)
    if parsed is None:
        name = name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}…"
        raise LexrayError(f"{where}: {name} should be {WORDS[kind]}, not {brief(value)}")
    return parsed


def brief(value: Any) -> str:
    """A value for an error message, in one short line."""
    if isinstance(value, (dict, list, tuple, np.ndarray)):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of astronomical size"
    shown = ascii(value) if isinstance(value, str) else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


class Fields(Mapping[str, Any]):
    """The fields of one object. A field that is missing or null is None, one of the wrong kind an
    error that names it; `where` is the file."""

    def __init__(self, raw: Mapping[str, Any], where: str, inside: str = "") -> None:
        self._raw = raw
        self._where = where
        self._inside = inside

    def __getitem__(self, key: str) -> Any:
        return self._raw[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def _field(self, key: str, kind: Callable[[Any], T | None]) -> T | None:
        value = self._raw.get(key)
        return None if value is None else check(value, kind, self._inside + key, self._where)

    def whole(self, key: str) -> int | None:
        return self._field(key, whole)

    def number(self, key: str) -> float | int | None:
        return self._field(key, number)

    def flag(self, key: str) -> bool | None:
        return self._field(key, flag)

    def text(self, key: str) -> str | None:
        return self._field(key, text)

    def listing(self, key: str) -> list[Any]:
        """A list, empty where there is none."""
        return self._field(key, listing) or []

    def object(self, key: str) -> Fields:
        """The fields of an object inside this one; none where there is no such object."""
        inner = self._field(key, mapping) or {}
        return Fields(inner, self._where, f"{self._inside}{key}.")


def _is_broken(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return True
    return False
