"""Models that are given to a comparison by name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from lexray.errors import LexrayError
from lexray.model.model import Model

Given = Model | str | Path
"""A model, or what `Model.from_pretrained` opens."""


def opened(a: Given, b: Given) -> tuple[Model, Model]:
    """Two models; where the second is a name, it is opened and read as the first one is."""
    first = a if isinstance(a, Model) else Model.from_pretrained(_name(a))
    if isinstance(b, Model):
        return first, b
    second = Model.from_pretrained(_name(b), device=first.device, dtype=first.dtype)
    return first, second.view(**asdict(first.options))


def _name(given: str | Path) -> str | Path:
    if isinstance(given, (str, Path)):
        return given
    raise LexrayError(
        "two models are compared, each a Model or what Model.from_pretrained opens, not "
        f"something of type {type(given).__name__}"
    )
