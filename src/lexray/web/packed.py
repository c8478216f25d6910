"""Results of a pass as they leave the worker: what is shown and said of them, without the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from lexray.flow.draw.html import page_data
from lexray.flow.flow import Flow
from lexray.result.readings import Token
from lexray.trace.read.attention import AttentionPatterns
from lexray.trace.read.grid import Grid
from lexray.trace.read.lens import Lens


@dataclass(frozen=True)
class Packed:
    """What a program sees."""

    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.data


@dataclass(frozen=True)
class PackedLens(Packed):
    """The grid of a lens, or its one column, with the tokens of each cell."""

    grids: tuple[Grid, ...]
    columns: tuple[tuple[tuple[Token, float], ...], ...]
    """Of each line, the words at its last position with their probabilities."""
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Drawing(Packed):
    """What a module of ours draws."""

    module: str
    page: dict[str, Any]


@singledispatch
def pack(result: Any) -> Any:
    """Most results can travel as they are."""
    return result


@pack.register
def _(result: Lens) -> PackedLens:
    columns = tuple(tuple(result.top(i, result.positions[-1])) for i in range(len(result.lines)))
    return PackedLens(result.to_dict(), tuple(result.grids()), columns, result.positions)


@pack.register
def _(result: AttentionPatterns) -> Drawing:
    return Drawing(result.to_dict(), "attention", result.page_data())


@pack.register
def _(result: Flow) -> Drawing:
    return Drawing(result.to_dict(), "flow", page_data(result))
