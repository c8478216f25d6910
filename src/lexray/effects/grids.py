"""Numbers by lines and columns as a coloured grid, for terminals and pages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from jaxtyping import Float
from rich.console import RenderableType
from torch import Tensor

from lexray.result.format import show_number
from lexray.result.table import TEXT_WIDTH, Result, Table
from lexray.trace.read.grid import Grid, GridCell

SMALL = 0.005
"""What is shown as nothing, on either side of zero."""


class GridResult(Result):
    """A result that shows itself as one grid."""

    @abstractmethod
    def grid(self) -> Grid: ...

    def tables(self) -> list[Table]:
        return [self.grid().fitting(TEXT_WIDTH).table()]

    def __rich__(self) -> RenderableType:
        return self.grid()

    def _repr_html_(self) -> str:
        return self.grid().to_html()


def number_grid(
    title: str,
    note: str,
    columns: Sequence[str],
    names: Sequence[str],
    values: Float[Tensor, "lines columns"],
) -> Grid:
    """Two digits in each cell; the deeper its colour, the further from zero, on either side."""
    largest = float(values.nan_to_num().abs().max()) or 1.0
    lines = tuple(
        tuple(
            GridCell(
                short(v), abs(v) / largest, f"{name} {column}: {show_number(v)}", against=v < -SMALL
            )
            for column, v in zip(columns, line, strict=True)
        )
        for name, line in zip(names, values.nan_to_num().tolist(), strict=True)
    )
    return Grid(title, "", tuple(columns), tuple(names), lines, note)


def short(value: float) -> str:
    """Two digits, or nothing at all."""
    return "0" if abs(value) < SMALL else f"{value:.2f}"
