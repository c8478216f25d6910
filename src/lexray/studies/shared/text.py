"""The text that comes along, for what has to be measured on some text."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def own_text() -> str:
    """Some pages of our own."""
    return (files("lexray.studies.shared") / "text.txt").read_text(encoding="utf-8")
