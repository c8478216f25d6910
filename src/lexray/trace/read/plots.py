"""The lens as a heat map with a word in each cell."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.result.charts.cells import Cells, Square
from lexray.trace.read.grid import Grid, clip


def heat_map(
    grid: Grid, positions: Sequence[int], strengths: Sequence[Sequence[float]], meaning: str
) -> Cells:
    """Lines by positions, in the table's order; in each cell stands its best token, and the colour
    is a strength from 0 to 1, whose meaning stands beside the scale."""
    squares = tuple(
        tuple(
            Square(clip(cell.token), strength, cell.more)
            for cell, strength in zip(line, row, strict=True)
        )
        for line, row in zip(grid.cells, strengths, strict=True)
    )
    columns = tuple((str(at), word) for at, word in zip(positions, grid.columns, strict=True))
    return Cells(grid.title, grid.note, columns, grid.names, squares, meaning)
