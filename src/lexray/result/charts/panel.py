"""One small figure with axes, drawn at its size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lexray.result.charts.axes import AxisScale, scale_of, ticks
from lexray.result.charts.pen import Pen, short
from lexray.result.charts.series import Curve, Dots, Heat, Level, Panel, StandingBars
from lexray.result.format import show_number
from lexray.result.letters import fit, measure

PLOT = 230.0
LEFT, TOP, BOTTOM = 56.0, 30.0, 48.0


@dataclass(frozen=True)
class DrawnPanel:
    """A panel at its size."""

    panel: Panel
    width: float
    x: AxisScale
    y: AxisScale

    @classmethod
    def of(cls, panel: Panel, width: float, shared: Sequence[float] | None = None) -> DrawnPanel:
        pad = 0.6 if panel.columns else 0.0
        if panel.heat:
            known = list(panel.x_values()), list(panel.y_values())
            scales = [AxisScale(min(v), max(v)) for v in known]
            return cls(panel, width, scales[0], scales[1])
        heights = shared if shared is not None else panel.y_values()
        return cls(
            panel, width, scale_of(panel.x, panel.x_values(), pad), scale_of(panel.y, heights)
        )

    @property
    def right(self) -> float:
        return self.width - LEFT - 6

    def across(self, value: float) -> float:
        return LEFT + self.right * self.x.at(value)

    def level(self, value: float) -> float:
        share = self.y.at(value)
        return TOP + PLOT * (share if self.panel.y.down else 1 - share)

    def draw(self, pen: Pen) -> None:
        title = fit(self.panel.title, 13, self.width - LEFT, bold=True)
        pen.text(LEFT, 16.0, title, 13, bold=True)
        self._frame(pen)
        for series in self.panel.series:
            match series:
                case Curve():
                    self._line(pen, series)
                case StandingBars():
                    self._columns(pen, series)
                case Dots():
                    self._dots(pen, series)
                case Level():
                    y = short(self.level(series.y))
                    path = f"M{short(LEFT)} {y}h{short(self.right)}"
                    pen.path(path, series.colour, 1.5, dash=series.dash, said=series.name)
                case Heat():
                    self._heat(pen, series)

    def _frame(self, pen: Pen) -> None:
        x_axis, y_axis = self.panel.x, self.panel.y
        for value, text in ticks(self.y, y_axis, 5):
            y = self.level(value)
            if not self.panel.heat:
                pen.path(f"M{short(LEFT)} {short(y)}h{short(self.right)}", "line", opacity=0.8)
            pen.text(LEFT - 7, y + 4, text, 11, "faint", anchor="end")
        wide = max((measure(t, 11) for _, t in ticks(self.x, x_axis, 8)), default=10.0)
        most = max(2, min(12, int(self.right / (wide + 14))))
        for value, text in ticks(self.x, x_axis, most):
            x = min(self.across(value), self.width - measure(text, 11) / 2)
            pen.text(x, TOP + PLOT + 16, text, 11, "faint", anchor="middle")
        middle = LEFT + self.right / 2
        title = fit(x_axis.title, 12, self.right)
        pen.text(middle, TOP + PLOT + 34, title, 12, "faint", anchor="middle")
        name = fit(y_axis.title, 12, PLOT)
        pen.text(12, TOP + PLOT / 2, name, 12, "faint", anchor="middle", turned=True)

    def _line(self, pen: Pen, line: Curve) -> None:
        points = [
            (self.across(x), self.level(y)) if y is not None and self._seen(y) else None
            for x, y in zip(line.x, line.y, strict=True)
        ]
        for x, (low, high) in zip(line.x, line.spread, strict=False):
            path = f"M{short(self.across(x))} {short(self.level(low))}V{short(self.level(high))}"
            pen.path(path, line.colour, opacity=0.6)
        path, begun = "", False
        for point in points:
            if point is not None:
                path += f"{'L' if begun else 'M'}{short(point[0])} {short(point[1])}"
            begun = point is not None
        if path:
            pen.path(path, line.colour, line.width, dash=line.dash, said=line.name)
        for point, x, y in zip(points, line.x, line.y, strict=True):
            if point is not None and y is not None and line.dots:
                said = f"{line.name}, {x:g}: {show_number(y)}"
                pen.circle(*point, 2.6, line.colour, said=said)

    def _seen(self, y: float) -> bool:
        return math.isfinite(y) and (y > 0 or not self.y.log)

    def _columns(self, pen: Pen, columns: StandingBars) -> None:
        own = self.panel.columns
        step = self.across(1.0) - self.across(0.0)
        wide = max(1.0, 0.78 * step / len(own))
        shift = own.index(columns) * wide - wide * len(own) / 2
        base = self.level(self.y.low if self.y.log else max(self.y.low, min(0.0, self.y.high)))
        for i, (x, y) in enumerate(zip(columns.x, columns.y, strict=True)):
            if y is None or not self._seen(y):
                continue
            top = self.level(y)
            said = columns.said[i] if columns.said else f"{columns.name}, {x:g}: {show_number(y)}"
            left, high = self.across(x) + shift, abs(base - top)
            radius = min(2.0, wide / 3)
            pen.rect(left, min(top, base), wide, high, columns.colour, radius=radius, said=said)

    def _dots(self, pen: Pen, dots: Dots) -> None:
        for i, (x, y) in enumerate(zip(dots.x, dots.y, strict=True)):
            if y is None or not self._seen(y) or (self.x.log and x <= 0):
                continue
            at = self.across(x), self.level(y)
            colour = dots.colours[i % len(dots.colours)]
            said = dots.said[i] if dots.said else f"{x:g}: {show_number(y)}"
            pen.circle(*at, dots.size, colour, stroke="paper", opacity=0.85, said=said)
            if dots.named and dots.said:
                room = LEFT + self.right - at[0] - 10
                turned = measure(dots.said[i], 11) > room
                x_text = at[0] - 8 if turned else at[0] + 8
                anchor = "end" if turned else "start"
                pen.text(x_text, at[1] + 4, dots.said[i], 11, colour, anchor=anchor)

    def _heat(self, pen: Pen, heat: Heat) -> None:
        known = [z for row in heat.z for z in row if z is not None and math.isfinite(z)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        wide = self.across(1.0) - self.across(0.0)
        tall = abs(self.level(1.0) - self.level(0.0))
        gap = 1.0 if min(wide, tall) > 5 else 0.0
        for i, row in enumerate(heat.z, heat.first):
            for j, z in enumerate(row):
                if z is None or not math.isfinite(z):
                    continue
                x, y = self.across(j - 0.5), self.level(i) - tall / 2
                colour = heat.colour(z, low, high)
                said = f"{self.panel.y.title} {i}, {self.panel.x.title} {j}: {show_number(z)}"
                pen.rect(x, y, wide - gap, tall - gap, colour, said=f"{said} {heat.unit}".strip())
        for i, j in heat.marks:
            radius = max(1.5, min(6.0, 0.22 * min(wide, tall)))
            pen.circle(self.across(j), self.level(i), radius, "negative", stroke="card")
