"""Pairs as threads between two columns of words; strong ones are thick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lexray.result.charts.chart import Chart
from lexray.result.charts.pen import Pen, short
from lexray.result.charts.plotly import ROW as LINE
from lexray.result.charts.plotly import dress, import_plotly, literal
from lexray.result.format import show_number
from lexray.result.letters import fit, measure
from lexray.result.theme import LIGHT, MONOSPACE

if TYPE_CHECKING:
    import plotly.graph_objects as go

ROW, SIZE, TOP = 22.0, 13.0, 26.0


@dataclass(frozen=True)
class Thread:
    """From a word at the left to a word at the right, both by number."""

    start: int
    stop: int
    score: float


@dataclass(frozen=True)
class Threads(Chart):
    sides: tuple[str, str]
    """What the columns are called."""
    left: Mapping[int, str]
    right: Mapping[int, str]
    """The words by number."""
    threads: tuple[Thread, ...]
    """The strongest first."""

    @cached_property
    def orders(self) -> tuple[list[int], list[int]]:
        """Both sides from top to bottom, with few crossings."""
        return untangle([(thread.start, thread.stop) for thread in self.threads])

    @property
    def height(self) -> int:
        return max(*map(len, self.orders), 1)

    @cached_property
    def places(self) -> tuple[dict[int, float], dict[int, float]]:
        """In which row each word stands; the shorter side is spread as far as the longer."""
        return spread(self.orders[0], self.height), spread(self.orders[1], self.height)

    def strength(self, thread: Thread) -> float:
        sizes = [abs(other.score) for other in self.threads]
        return (abs(thread.score) - min(sizes)) / ((max(sizes) - min(sizes)) or 1.0)

    def draw(self, pen: Pen, width: float) -> tuple[float, float]:
        labels = [
            self._room([*words.values(), name], width)
            for words, name in zip((self.left, self.right), self.sides, strict=True)
        ]
        ends = labels[0] + 12, width - labels[1] - 12
        for x, name, anchor in zip(ends, self.sides, ("end", "start"), strict=True):
            pen.text(x, 12.0, name, 13, "faint", anchor=anchor)
        for thread in reversed(self.threads):
            self._thread(pen, thread, *ends)
        for x, words, places, side in (
            (ends[0], self.left, self.places[0], -1),
            (ends[1], self.right, self.places[1], 1),
        ):
            for word, row in places.items():
                y = _level(row)
                pen.circle(x, y, 3, "ink")
                text = fit(words[word], SIZE, labels[side > 0] - 2, mono=True)
                anchor = "start" if side > 0 else "end"
                pen.text(x + 9 * side, y + 4.5, text, SIZE, anchor=anchor, mono=True)
        return width, TOP + ROW * self.height

    def _room(self, words: Sequence[str], width: float) -> float:
        """For the words of a side and what the side is called."""
        widest = max((measure(word, SIZE, mono=True) for word in words), default=0.0)
        return min(widest + 4, 0.36 * width)

    def _thread(self, pen: Pen, thread: Thread, start: float, stop: float) -> None:
        a, b = _level(self.places[0][thread.start]), _level(self.places[1][thread.stop])
        middle = short((start + stop) / 2)
        strength = self.strength(thread)
        words = f"{self.left[thread.start]} → {self.right[thread.stop]}"
        pen.path(
            f"M{short(start)} {short(a)}C{middle} {short(a)} {middle} {short(b)} "
            f"{short(stop)} {short(b)}",
            "positive" if thread.score >= 0 else "negative",
            1 + 5 * strength,
            opacity=0.3 + 0.5 * strength,
            said=f"{words}: {show_number(thread.score)}",
        )

    def to_plotly(self) -> go.Figure:
        return draw_threads(self)


def _level(row: float) -> float:
    return TOP + ROW * (row + 0.5)


def untangle(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Orders of both sides with few crossings: each word at the mean place of its partners."""
    rows, cols = list(dict.fromkeys(i for i, _ in pairs)), list(dict.fromkeys(j for _, j in pairs))
    for _ in range(8):
        rows, cols = _by_partners(rows, cols, pairs), cols
        cols = _by_partners(cols, rows, [(j, i) for i, j in pairs])
    return rows, cols


def _by_partners(
    own: list[int], other: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> list[int]:
    place = {word: n / max(1, len(other) - 1) for n, word in enumerate(other)}
    partners: dict[int, list[float]] = {word: [] for word in own}
    for i, j in pairs:
        partners[i].append(place[j])
    return sorted(own, key=lambda word: sum(partners[word]) / len(partners[word]))


def spread(order: list[int], height: int) -> dict[int, float]:
    """Evenly from top to bottom, the shorter list as tall as the longer one."""
    step = height / max(1, len(order))
    return {word: (n + 0.5) * step - 0.5 for n, word in enumerate(order)}


def draw_threads(chart: Threads) -> go.Figure:
    go = import_plotly()
    figure = go.Figure()
    left, right = chart.places
    for thread in reversed(chart.threads):
        steps = [i / 23 for i in range(24)]
        a, b = left[thread.start], right[thread.stop]
        strength = chart.strength(thread)
        said = f"{chart.left[thread.start]} → {chart.right[thread.stop]}"
        figure.add_trace(
            go.Scatter(
                x=steps,
                y=[a + (b - a) * s * s * (3 - 2 * s) for s in steps],
                mode="lines",
                line={
                    "width": 1 + 5 * strength,
                    "color": LIGHT.positive if thread.score >= 0 else LIGHT.negative,
                },
                opacity=0.3 + 0.5 * strength,
                text=literal(f"{said}: {show_number(thread.score)}"),
                hoverinfo="text",
            )
        )
    for x, places, words, position in (
        (0.0, left, chart.left, "middle left"),
        (1.0, right, chart.right, "middle right"),
    ):
        figure.add_trace(
            go.Scatter(
                x=[x] * len(places),
                y=list(places.values()),
                mode="markers+text",
                text=[f"&nbsp;{literal(words[word])}&nbsp;" for word in places],
                textposition=position,
                textfont={"family": MONOSPACE, "size": 13, "color": LIGHT.ink},
                marker={"size": 6, "color": LIGHT.ink},
                hoverinfo="skip",
                cliponaxis=False,
            )
        )
    dress(figure, chart.title, chart.note, 150 + LINE * chart.height)
    for x, name, anchor in zip((0.0, 1.0), chart.sides, ("right", "left"), strict=True):
        figure.add_annotation(x=x, y=-1.1, text=name, xanchor=anchor, showarrow=False)
    figure.update_xaxes(visible=False, range=[-0.45, 1.45])
    return figure.update_yaxes(visible=False, range=[chart.height - 0.5, -1.6])
