"""Patterns from files, matched in linear time: Python's own engine could take for ever."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from lexray.checkpoint.fields import brief
from lexray.errors import LexrayError

MEMORY = 1 << 23
"""The most that matching one pattern may take, in bytes."""


def matches(pattern: str, text: str, *, whole: bool = False) -> bool:
    """Whether a pattern matches the beginning of a text, or all of it."""
    try:
        compiled = _compile(pattern)
        return bool(compiled.fullmatch(text) if whole else compiled.match(text))
    except (re2.error, UnicodeEncodeError) as error:
        raise LexrayError(f"the pattern {brief(pattern)} cannot be matched") from error


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY
    return re2.compile(pattern, options)
