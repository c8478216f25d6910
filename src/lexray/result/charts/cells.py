"""A grid of coloured cells with a word in each: the lens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lexray.result.charts.chart import Chart
from lexray.result.charts.pen import Mix, Pen
from lexray.result.charts.plotly import HEAT, SIGNED, WIDTH, dress, import_plotly, literal
from lexray.result.charts.plotly import ROW as LINE
from lexray.result.letters import fit, measure
from lexray.result.theme import MONOSPACE

if TYPE_CHECKING:
    import plotly.graph_objects as go

ROW, SIZE = 21.0, 11.5
LEAST, MOST = 34.0, 96.0
"""How wide a column is at least and at most."""
DEEP = 0.55
"""Cells above this strength take the letters for a hot ground."""


@dataclass(frozen=True)
class Square:
    text: str
    strength: float
    """From 0 to 1: how deep the colour is."""
    said: str = ""
    """What is shown when the pointer rests on it."""
    against: bool = False
    """Below zero, in a colour of its own."""

    @property
    def colour(self) -> Mix:
        return Mix("cold", "negative" if self.against else "hot", self.strength)


@dataclass(frozen=True)
class Cells(Chart):
    columns: tuple[tuple[str, str], ...]
    """What stands above each column: small, and below that the word."""
    names: tuple[str, ...]
    """Of the lines, from top to bottom."""
    squares: tuple[tuple[Square, ...], ...]
    meaning: str
    """What the colour says."""

    def draw(self, pen: Pen, width: float) -> tuple[float, float]:
        left = max((measure(name, 12) for name in self.names), default=0.0) + 12
        widths = self._widths(width - left)
        x = left
        for (small, word), wide in zip(self.columns, widths, strict=True):
            pen.text(x + wide / 2, 11.0, small, 10, "faint", anchor="middle")
            shown = fit(word, SIZE, wide - 2, mono=True)
            pen.text(x + wide / 2, 26.0, shown, SIZE, anchor="middle", mono=True)
            x += wide
        for i, (name, line) in enumerate(zip(self.names, self.squares, strict=True)):
            y = 34.0 + ROW * i
            pen.text(left - 10, y + 15, name, 12, "faint", anchor="end")
            self._line(pen, line, widths, left, y)
        bottom = 34.0 + ROW * len(self.names)
        self._scale(pen, left, bottom + 14)
        return left + sum(widths), bottom + 34

    def _line(
        self, pen: Pen, line: tuple[Square, ...], widths: list[float], x: float, y: float
    ) -> None:
        for square, wide in zip(line, widths, strict=True):
            pen.rect(x + 0.5, y + 0.5, wide - 1, ROW - 1, square.colour, radius=3, said=square.said)
            ink = "on_hot" if square.strength > DEEP else "ink"
            text = fit(square.text, SIZE, wide - 5, mono=True)
            pen.text(x + wide / 2, y + 15, text, SIZE, ink, anchor="middle", mono=True)
            x += wide

    def _widths(self, room: float) -> list[float]:
        """As wide as the words; wider where there is room to spare."""
        wanted = []
        for j, (_, word) in enumerate(self.columns):
            texts = [word, *(line[j].text for line in self.squares)]
            widest = max(measure(text, SIZE, mono=True) for text in texts) + 8
            wanted.append(min(MOST, max(LEAST, widest)))
        spare = min(1.35, room / sum(wanted)) if wanted else 1.0
        return [wide * max(1.0, spare) for wide in wanted]

    def _scale(self, pen: Pen, x: float, y: float) -> None:
        signed = any(square.against for line in self.squares for square in line)
        steps = [i / 5 - 1 for i in range(11)] if signed else [i / 10 for i in range(11)]
        for i, step in enumerate(steps):
            colour = Square("", abs(step), against=step < 0).colour
            pen.rect(x + 12 * i, y, 12.5, 9, colour)
        said = f"{self.meaning}: below zero, above" if signed else self.meaning
        pen.text(x + 140, y + 9, said, 11, "faint")

    def to_plotly(self) -> go.Figure:
        return draw_cells(self)


def draw_cells(chart: Cells) -> go.Figure:
    go = import_plotly()
    columns = list(range(len(chart.columns)))
    rows = list(range(len(chart.names)))
    signed = any(square.against for line in chart.squares for square in line)
    figure = go.Figure(
        go.Heatmap(
            z=[[-s.strength if s.against else s.strength for s in line] for line in chart.squares],
            x=columns,
            y=rows,
            text=[[literal(square.text) for square in line] for line in chart.squares],
            texttemplate="%{text}",
            textfont={"family": MONOSPACE, "size": 11},
            customdata=[[literal(square.said) for square in line] for line in chart.squares],
            hovertemplate="%{customdata}<extra></extra>",
            zmin=-1 if signed else 0,
            zmax=1,
            colorscale=SIGNED if signed else HEAT,
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": literal(chart.meaning)}},
        )
    )
    dress(figure, chart.title, chart.note, 170 + LINE * len(rows))
    words = [f"{literal(small)}<br>{literal(word)}" for small, word in chart.columns]
    figure.update_xaxes(tickvals=columns, ticktext=words, side="top")
    names = [literal(name) for name in chart.names]
    figure.update_yaxes(tickvals=rows, ticktext=names, range=[len(rows) - 0.5, -0.5])
    return figure.update_layout(width=max(WIDTH, 240 + 86 * len(columns)))
