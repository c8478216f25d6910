"""Many small square maps in a grid, a row for each layer: attention patterns at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lexray.result.charts.chart import Chart
from lexray.result.charts.pen import Colour, Pen, short
from lexray.result.charts.plotly import HEAT, dress, import_plotly, literal, side_by_side
from lexray.result.letters import measure

if TYPE_CHECKING:
    import plotly.graph_objects as go

Map = Sequence[Sequence[float]]
LEAST, MOST, GAP = 26.0, 84.0, 6.0
"""How large a map is at least and at most; between maps."""
TALLEST = 1.3
"""A picture is not much higher than wide, if its maps can be that small: it fits a page."""
MOST_CELLS = 24
"""A larger map is drawn coarser: of each square of cells the largest."""
STEPS = 6
"""Shades in which cells are drawn."""


@dataclass(frozen=True)
class Thumb:
    map: Map
    """Values from 0 to 1, row by row."""
    said: str = ""


@dataclass(frozen=True)
class Thumbs(Chart):
    names: tuple[str, ...]
    """Of the rows."""
    rows: tuple[tuple[Thumb, ...], ...]

    def draw(self, pen: Pen, width: float) -> tuple[float, float]:
        left = max((measure(name, 12) for name in self.names), default=0.0) + 10
        most = max((len(row) for row in self.rows), default=1)
        down = TALLEST * width / max(1, len(self.rows)) - GAP
        size = max(LEAST, min(MOST, (width - left) / max(1, most) - GAP, down))
        for j in range(most):
            x = left + j * (size + GAP) + size / 2
            pen.text(x, 11.0, str(j), 11, "faint", anchor="middle")
        for i, (name, row) in enumerate(zip(self.names, self.rows, strict=True)):
            y = 18.0 + i * (size + GAP)
            pen.text(left - 8, y + size / 2 + 4, name, 12, "faint", anchor="end")
            for j, thumb in enumerate(row):
                with pen.moved(left + j * (size + GAP), y, thumb.said):
                    draw_map(pen, thumb.map, size)
        return max(width, left + most * (size + GAP)), 18.0 + len(self.rows) * (size + GAP)

    def to_plotly(self) -> go.Figure:
        go = import_plotly()
        across = max((len(row) for row in self.rows), default=1)
        titles = [literal(t.said.partition(":")[0]) for row in self.rows for t in row]
        figure = side_by_side(titles, across)
        for i, row in enumerate(self.rows, 1):
            for j, thumb in enumerate(row, 1):
                z = [list(line) for line in thumb.map]
                heat = go.Heatmap(z=z, zmin=0, zmax=1, colorscale=HEAT, showscale=False)
                figure.add_trace(heat, row=i, col=j)
        figure.update_yaxes(autorange="reversed", visible=False)
        figure.update_xaxes(visible=False)
        return dress(figure, self.title, self.note, 150 + 90 * len(self.rows))


def draw_map(pen: Pen, values: Map, size: float, colour: Colour = "hot") -> None:
    """A map as a few paths, one for each shade; what is next to nothing is ground."""
    pen.rect(0.0, 0.0, size, size, "cold", radius=3)
    coarse = shrink(values, MOST_CELLS)
    rows, cols = len(coarse), max((len(row) for row in coarse), default=0)
    if not rows or not cols:
        return
    tall, wide = size / rows, size / cols
    for step in range(1, STEPS + 1):
        cells = [
            f"M{_fine(j * wide)} {_fine(i * tall)}h{_fine(wide)}v{_fine(tall)}h-{_fine(wide)}z"
            for i, row in enumerate(coarse)
            for j, value in enumerate(row)
            if round(value * STEPS) == step
        ]
        if cells:
            pen.parts.append(
                f'<path d="{"".join(cells)}" fill="{pen.colour(colour)}" '
                f'fill-opacity="{step / STEPS:.2f}"/>'
            )


def shrink(values: Map, most: int) -> list[list[float]]:
    """At most so many rows and columns: of each square of cells the largest value."""
    rows, cols = len(values), max((len(row) for row in values), default=0)
    down, across = -(-rows // most) if rows else 1, -(-cols // most) if cols else 1
    return [
        [
            max(x for row in values[i : i + down] for x in row[j : j + across])
            for j in range(0, cols, across)
        ]
        for i in range(0, rows, down)
    ]


def _fine(value: float) -> str:
    return short(10 * value) if value == 0 else f"{value:.2f}".rstrip("0").rstrip(".")
