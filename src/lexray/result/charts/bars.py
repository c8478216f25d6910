"""Lists of bars side by side, or below one another where there is no room for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lexray.result.charts.chart import Chart
from lexray.result.charts.pen import Colour, Pen
from lexray.result.charts.plotly import ROW as LINE
from lexray.result.charts.plotly import dress, import_plotly, literal, paint, side_by_side
from lexray.result.format import show_number
from lexray.result.letters import fit, measure
from lexray.result.theme import MONOSPACE

if TYPE_CHECKING:
    import plotly.graph_objects as go

ROW, THICK = 23.0, 15.0
SIZE, SMALL = 13.0, 11.0
GAP = 36.0
LEAST = 300.0
"""A list is at least so wide, else the next one stands below it."""
SHORTEST = 90.0
"""What is kept for the longest bar where labels are long."""


@dataclass(frozen=True)
class BarPiece:
    """A piece of a bar; pieces of one sign follow one another."""

    value: float
    colour: Colour
    name: str = ""


@dataclass(frozen=True)
class Bar:
    label: str
    parts: tuple[BarPiece, ...]
    said: str = ""
    """What is shown when the pointer rests on it."""

    @property
    def total(self) -> float:
        return sum(part.value for part in self.parts)

    @property
    def reach(self) -> tuple[float, float]:
        """From its lowest to its highest end."""
        values = [part.value for part in self.parts]
        return sum(v for v in values if v < 0), sum(v for v in values if v > 0)


@dataclass(frozen=True)
class BarList:
    title: str
    bars: tuple[Bar, ...]
    mono: bool = True

    def draw(self, pen: Pen, width: float) -> float:
        """Labels at the left, numbers behind the bars; says how high it is."""
        pen.text(0.0, 12.0, self.title, 13, "faint")
        top = 22.0
        numbers, (low, high) = self._numbers, self._ends
        beside = numbers * ((high > 0 or low == 0) + (low < 0))
        labels = min(self._label, max(0.5 * width, width - beside - SHORTEST)) + 10
        room = width - labels - beside
        scale = max(room, 20.0) / ((high - low) or 1.0)
        zero = labels + numbers * (low < 0) - low * scale
        for i, bar in enumerate(self.bars):
            y = top + ROW * i
            label = fit(bar.label, SIZE, labels - 8, mono=self.mono)
            pen.text(labels - 8, y + 15, label, SIZE, anchor="end", mono=self.mono)
            self._bar(pen, bar, zero, y, scale)
        pen.path(f"M{zero:.1f} {top}V{top + ROW * len(self.bars):.1f}", "line")
        return top + ROW * len(self.bars)

    @property
    def wanted(self) -> float:
        """How wide it has to be for all labels to stand there whole, and bars to be seen."""
        return self._label + 10 + 2 * self._numbers + SHORTEST

    @property
    def _label(self) -> float:
        return max((measure(bar.label, SIZE, mono=self.mono) for bar in self.bars), default=0.0)

    @property
    def _numbers(self) -> float:
        shown = (measure(show_number(bar.total), SMALL) for bar in self.bars)
        return max(shown, default=0.0) + 6

    @property
    def _ends(self) -> tuple[float, float]:
        low = min((bar.reach[0] for bar in self.bars), default=0.0)
        return low, max((bar.reach[1] for bar in self.bars), default=0.0)

    def _bar(self, pen: Pen, bar: Bar, zero: float, y: float, scale: float) -> None:
        low = high = zero
        for part in bar.parts:
            size = abs(part.value) * scale
            x = high if part.value >= 0 else low - size
            said = bar.said or f"{bar.label}: {show_number(part.value)} {part.name}".rstrip()
            pen.rect(x, y + 4, size, THICK, part.colour, radius=2, said=said)
            low, high = min(low, x), max(high, x + size)
        if bar.total < 0:
            pen.text(low - 5, y + 15, show_number(bar.total), SMALL, "faint", anchor="end")
        else:
            pen.text(high + 5, y + 15, show_number(bar.total), SMALL, "faint")


@dataclass(frozen=True)
class Bars(Chart):
    lists: tuple[BarList, ...]
    legend: tuple[tuple[str, Colour], ...] = ()

    def draw(self, pen: Pen, width: float) -> tuple[float, float]:
        n = len(self.lists)
        beside = width >= LEAST * n
        widths = self._widths(width) if beside else [width] * n
        bottom, x, y = 0.0, 0.0, 0.0
        for listed, own in zip(self.lists, widths, strict=True):
            with pen.moved(x, y):
                height = listed.draw(pen, own)
            bottom = max(bottom, y + height)
            x, y = (x + own + GAP, y) if beside else (x, y + height + 24)
        if self.legend:
            with pen.moved(0.0, bottom + 26):
                bottom += 30 + pen.keys(self.legend, width, 0.0)
        return width, bottom

    def _widths(self, width: float) -> list[float]:
        """Of lists side by side: alike, unless some need more and others can spare it."""
        room = width - GAP * (len(self.lists) - 1)
        alike = room / max(1, len(self.lists))
        wanted = [listed.wanted for listed in self.lists]
        if max(wanted, default=0.0) <= alike or sum(wanted) > room:
            return [alike] * len(wanted)
        spare = (room - sum(wanted)) / len(wanted)
        return [own + spare for own in wanted]

    def to_plotly(self) -> go.Figure:
        return draw_bars(self)


def simple_bars(
    title: str, labels: Sequence[str], values: Sequence[float], colour: Colour, said: Sequence[str]
) -> BarList:
    """A list of bars of one piece each."""
    rows = zip(labels, values, said, strict=True)
    return BarList(title, tuple(Bar(a, (BarPiece(b, colour),), c) for a, b, c in rows))


def draw_bars(chart: Bars) -> go.Figure:
    figure = side_by_side([bars.title for bars in chart.lists], 2, horizontal_spacing=0.2)
    for col, bars in enumerate(chart.lists, 1):
        _add_bars(figure, bars, col)
    rows = max((len(bars.bars) for bars in chart.lists), default=1)
    dress(figure, chart.title, chart.note, 150 + LINE * max(rows, 1))
    legend = {"orientation": "h", "y": -0.05}
    return figure.update_layout(barmode="relative", showlegend=bool(chart.legend), legend=legend)


def _add_bars(figure: go.Figure, bars: BarList, col: int) -> None:
    go = import_plotly()
    places = list(range(len(bars.bars)))
    depth = max((len(bar.parts) for bar in bars.bars), default=1)
    for i in range(depth):
        parts = [bar.parts[i] for bar in bars.bars]
        figure.add_trace(
            go.Bar(
                x=[part.value for part in parts],
                y=places,
                orientation="h",
                name=literal(parts[0].name) if parts else "",
                showlegend=bool(parts and parts[0].name),
                marker={"color": [paint(p.colour) for p in parts], "line": {"width": 0}},
                text=[show_number(part.value) for part in parts] if depth == 1 else None,
                textposition="outside" if depth == 1 else None,
                cliponaxis=False,
                customdata=[literal(bar.said or bar.label) for bar in bars.bars],
                hovertemplate="%{customdata}: %{x:.4g}<extra></extra>",
            ),
            row=1,
            col=col,
        )
    figure.update_yaxes(
        tickvals=places,
        ticktext=[literal(bar.label) for bar in bars.bars],
        tickfont={"family": MONOSPACE, "size": 13},
        range=[len(places) - 0.5, -0.5],
        showgrid=False,
        row=1,
        col=col,
    )
