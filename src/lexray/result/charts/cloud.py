"""Words as points in a plane, each label where it covers least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lexray.result.charts.chart import Chart
from lexray.result.charts.pen import Mix, Pen
from lexray.result.charts.plotly import HEAT, dress, import_plotly, literal
from lexray.result.format import show_number
from lexray.result.letters import measure
from lexray.result.theme import LIGHT, MONOSPACE

if TYPE_CHECKING:
    import plotly.graph_objects as go

SIZE = 12.0
Rectangle = tuple[float, float, float, float]
PLACES = ("above", "below", "right", "left")


@dataclass(frozen=True)
class CloudPoint:
    x: float
    y: float
    label: str
    score: float
    said: str = ""


@dataclass(frozen=True)
class Cloud(Chart):
    axes: tuple[str, str]
    points: tuple[CloudPoint, ...]

    def draw(self, pen: Pen, width: float) -> tuple[float, float]:
        height = max(300.0, 0.66 * width)
        pen.rect(0.5, 0.5, width - 1, height - 1, "card", radius=8, stroke="line")
        at = self._places(width, height)
        for point, (x, y) in zip(self.points, at, strict=True):
            colour = Mix("cold", "hot", 0.3 + 0.7 * self.share(point))
            size = 4.5 + 5 * self.share(point)
            said = point.said or f"{point.label}: {show_number(point.score)}"
            pen.circle(x, y, size, colour, stroke="card", said=said)
        boxes = [label_boxes(x, y, p.label) for p, (x, y) in zip(self.points, at, strict=True)]
        chosen = choose_places(at, boxes, (width, height))
        for point, box, place in zip(self.points, boxes, chosen, strict=True):
            x, y, _, _ = box[place]
            pen.text(x, y + 11, point.label, SIZE, mono=True)
        pen.text(width / 2, height + 18, self.axes[0], 12, "faint", anchor="middle")
        pen.text(14, 18, self.axes[1] + " ↑", 12, "faint")
        return width, height + 24

    def share(self, point: CloudPoint) -> float:
        """From the lowest score to the highest."""
        scores = [other.score for other in self.points]
        return (point.score - min(scores)) / ((max(scores) - min(scores)) or 1.0)

    def _places(self, width: float, height: float) -> list[tuple[float, float]]:
        (x0, x1), (y0, y1) = (
            margins([p.x for p in self.points]),
            margins([p.y for p in self.points]),
        )
        return [
            (width * (p.x - x0) / (x1 - x0), height * (y1 - p.y) / (y1 - y0)) for p in self.points
        ]

    def to_plotly(self) -> go.Figure:
        return draw_cloud(self)


def margins(values: Sequence[float]) -> tuple[float, float]:
    """From the least to the largest value, and some room around them."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = 0.12 * ((high - low) or 1.0)
    return low - room, high + room


def label_boxes(x: float, y: float, label: str) -> dict[str, Rectangle]:
    """Where a label beside a point may stand: left, top, right, bottom."""
    wide, high = measure(label, SIZE, mono=True), 14.0
    return {
        "above": (x - wide / 2, y - 11 - high, x + wide / 2, y - 11),
        "below": (x - wide / 2, y + 11, x + wide / 2, y + 11 + high),
        "right": (x + 12, y - high / 2, x + 12 + wide, y + high / 2),
        "left": (x - 12 - wide, y - high / 2, x - 12, y + high / 2),
    }


def choose_places(
    at: Sequence[tuple[float, float]],
    boxes: Sequence[dict[str, Rectangle]],
    size: tuple[float, float],
) -> list[str]:
    """For each label the place where it covers least of what is already there."""
    taken: list[Rectangle] = [(x - 9, y - 9, x + 9, y + 9) for x, y in at]
    chosen = []
    for own in boxes:

        def covered(place: str, own: dict[str, Rectangle] = own) -> float:
            box = own[place]
            inside = overlap(box, (0.0, 0.0, *size))
            outside = (box[2] - box[0]) * (box[3] - box[1]) - inside
            return sum(overlap(box, other) for other in taken) + 3 * outside

        best = min(PLACES, key=covered)
        taken.append(own[best])
        chosen.append(best)
    return chosen


def overlap(a: Rectangle, b: Rectangle) -> float:
    """The area that two rectangles share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def draw_cloud(chart: Cloud) -> go.Figure:
    go = import_plotly()
    figure = go.Figure(
        go.Scatter(
            x=[point.x for point in chart.points],
            y=[point.y for point in chart.points],
            mode="markers+text",
            text=[literal(point.label) for point in chart.points],
            textposition="top center",
            textfont={"family": MONOSPACE, "size": 12, "color": LIGHT.ink},
            marker={
                "size": [9 + 13 * chart.share(point) for point in chart.points],
                "color": [point.score for point in chart.points],
                "colorscale": HEAT,
                "line": {"width": 1, "color": "white"},
            },
            customdata=[literal(point.said) for point in chart.points],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    dress(figure, chart.title, chart.note, 680)
    figure.update_xaxes(title=literal(chart.axes[0]), showticklabels=False, zeroline=False)
    return figure.update_yaxes(title=literal(chart.axes[1]), showticklabels=False, zeroline=False)
