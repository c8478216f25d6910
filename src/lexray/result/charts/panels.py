"""Small figures with axes, side by side: lines, columns, dots, levels, heat."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lexray.result.charts.axes import Axis, AxisScale, scale_of, ticks
from lexray.result.charts.chart import Chart
from lexray.result.charts.pen import Colour, Mix, Pen, short
from lexray.result.charts.plotly import (
    HEAT,
    SIGNED,
    dress,
    import_plotly,
    literal,
    paint,
    side_by_side,
)
from lexray.result.format import show_number
from lexray.result.letters import fit, measure
from lexray.result.theme import LIGHT

if TYPE_CHECKING:
    import plotly.graph_objects as go

Numbers = Sequence[float | None]
LEAST, GAP = 290.0, 26.0
"""A panel is at least so wide; between panels."""
PLOT = 230.0
LEFT, TOP, BOTTOM = 56.0, 30.0, 48.0


@dataclass(frozen=True)
class Curve:
    """A curve; `spread` holds the ends of each point's interval."""

    x: Sequence[float]
    y: Numbers
    name: str
    colour: Colour
    dash: str = "solid"
    width: float = 2.0
    dots: bool = True
    spread: Sequence[tuple[float, float]] = ()
    listed: bool = True
    """It stands in the legend."""


@dataclass(frozen=True)
class StandingBars:
    """Bars that stand; those of one panel stand side by side."""

    x: Sequence[float]
    y: Numbers
    name: str
    colour: Colour
    listed: bool = True
    said: Sequence[str] = ()


@dataclass(frozen=True)
class Dots:
    """Points by themselves, each with what is said of it; `named` writes it beside them."""

    x: Sequence[float]
    y: Numbers
    name: str
    colours: Sequence[Colour]
    said: Sequence[str] = ()
    size: float = 3.5
    named: bool = False
    listed: bool = False


@dataclass(frozen=True)
class Level:
    y: float
    name: str
    colour: Colour = "faint"
    dash: str = "dash"
    listed: bool = True


@dataclass(frozen=True)
class Heat:
    """Values by row and column, from the least to the largest; `marks` are cells with a dot."""

    z: Sequence[Numbers]
    marks: Sequence[tuple[int, int]] = ()
    unit: str = ""
    signed: bool = False
    """Zero has the colour of the ground, and either sign its own."""
    first: int = 0
    """The number of the first row."""

    def colour(self, z: float, low: float, high: float) -> Mix:
        if not self.signed:
            return Mix("cold", "hot", (z - low) / ((high - low) or 1.0))
        largest = max(abs(low), abs(high)) or 1.0
        return Mix("card", "positive" if z >= 0 else "negative", abs(z) / largest)


Series = Curve | StandingBars | Dots | Level | Heat


@dataclass(frozen=True)
class Panel:
    title: str
    series: tuple[Series, ...]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)

    def x_values(self) -> Iterator[float]:
        for series in self.series:
            if isinstance(series, Heat):
                yield from (-0.5, max((len(row) for row in series.z), default=1) - 0.5)
            elif not isinstance(series, Level):
                yield from series.x

    def y_values(self) -> Iterator[float]:
        for series in self.series:
            if isinstance(series, Heat):
                yield from (series.first - 0.5, series.first + len(series.z) - 0.5)
            elif isinstance(series, Level):
                yield series.y
            else:
                yield from (y for y in series.y if y is not None)
                if isinstance(series, StandingBars) and not self.y.log:
                    yield 0.0
                if isinstance(series, Curve):
                    yield from (end for ends in series.spread for end in ends)

    @property
    def columns(self) -> list[StandingBars]:
        return [series for series in self.series if isinstance(series, StandingBars)]

    @property
    def heat(self) -> bool:
        return any(isinstance(series, Heat) for series in self.series)


@dataclass(frozen=True)
class Panels(Chart):
    panels: tuple[Panel, ...]
    across: int = 2
    """How many stand side by side where there is room."""
    alike: bool = False
    """All share one scale of heights."""

    def draw(self, pen: Pen, width: float) -> tuple[float, float]:
        least = 200.0 if all(panel.heat for panel in self.panels) else LEAST
        across = max(1, min(self.across, len(self.panels), int((width + GAP) // (least + GAP))))
        own = (width - GAP * (across - 1)) / across
        pitch = TOP + PLOT + BOTTOM
        shared = [y for panel in self.panels for y in panel.y_values()] if self.alike else None
        for i, panel in enumerate(self.panels):
            row, col = divmod(i, across)
            with pen.moved(col * (own + GAP), row * pitch):
                DrawnPanel.of(panel, own, shared).draw(pen)
        bottom = -(-len(self.panels) // across) * pitch
        if names := self.legend():
            with pen.moved(0.0, bottom + 14):
                bottom += 18 + pen.keys(names, width, 0.0)
        return width, bottom

    def legend(self) -> list[tuple[str, Colour]]:
        """Each name once."""
        colours: dict[str, Colour] = {}
        for panel in self.panels:
            for series in panel.series:
                if isinstance(series, Heat) or not series.listed or not series.name:
                    continue
                colour = series.colours[0] if isinstance(series, Dots) else series.colour
                colours.setdefault(series.name, colour)
        return list(colours.items())

    def to_plotly(self) -> go.Figure:
        return draw_panels(self)


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


def draw_panels(chart: Panels) -> go.Figure:
    across = max(1, min(chart.across, len(chart.panels)))
    rows = max(1, -(-len(chart.panels) // across))
    figure = side_by_side([panel.title for panel in chart.panels], across)
    named: set[str] = set()
    for i, panel in enumerate(chart.panels):
        where = {"row": i // across + 1, "col": i % across + 1}
        for series in panel.series:
            _add_series(figure, series, where, named)
        _set_axes(figure, panel, where)
    dress(figure, chart.title, chart.note, 150 + 330 * rows)
    legend = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"}
    return figure.update_layout(showlegend=bool(named), legend=legend)


def _set_axes(figure: go.Figure, panel: Panel, where: dict[str, int]) -> None:
    for update, axis in ((figure.update_xaxes, panel.x), (figure.update_yaxes, panel.y)):
        update(
            title=literal(axis.title),
            type="log" if axis.log else "linear",
            rangemode="tozero" if axis.zero else "normal",
            autorange="reversed" if axis.down else True,
            tickformat=".0%" if axis.percent else None,
            **where,
        )


def _add_series(figure: go.Figure, series: Series, where: dict[str, int], named: set[str]) -> None:
    go = import_plotly()
    if isinstance(series, Level):
        line = {"color": paint(series.colour), "dash": series.dash, "width": 1.5}
        figure.add_hline(y=series.y, line=line, **where)
        return
    if isinstance(series, Heat):
        scale = SIGNED if series.signed else HEAT
        middle = {"zmid": 0} if series.signed else {}
        rows = [list(row) for row in series.z]
        middle |= {"y0": series.first} if series.first else {}
        heat = go.Heatmap(z=rows, colorscale=scale, showscale=series.signed, **middle)
        figure.add_trace(heat, **where)
        marks = {"size": 7, "color": LIGHT.negative}
        x, y = [j for _, j in series.marks], [i for i, _ in series.marks]
        dots = go.Scatter(x=x, y=y, mode="markers", marker=marks, showlegend=False)
        figure.add_trace(dots, **where) if series.marks else None
        return
    first = series.listed and series.name not in named
    named |= {series.name} if first else set()
    shared = {"x": list(series.x), "y": list(series.y), "name": literal(series.name)}
    shared |= {"showlegend": first, "legendgroup": series.name}
    match series:
        case Curve():
            line = {"color": paint(series.colour), "dash": series.dash, "width": series.width}
            mode = "lines+markers" if series.dots else "lines"
            drawn = go.Scatter(**shared, mode=mode, line=line, error_y=_errors(series))
        case StandingBars():
            drawn = go.Bar(**shared, marker={"color": paint(series.colour)})
        case Dots():
            drawn = _dots(series, shared)
    figure.add_trace(drawn, **where)


def _errors(line: Any) -> dict[str, Any] | None:
    if not line.spread:
        return None
    both = list(zip(line.y, line.spread, strict=True))
    return {
        "symmetric": False,
        "array": [high - y for y, (_, high) in both],
        "arrayminus": [y - low for y, (low, _) in both],
    }


def _dots(series: Dots, shared: dict[str, Any]) -> Any:
    go = import_plotly()
    return go.Scatter(
        **shared,
        mode="markers+text" if series.named else "markers",
        text=[literal(text) for text in series.said] or None,
        hoverinfo="text+x+y",
        marker={"size": 2 * series.size, "color": [paint(c) for c in series.colours] or None},
    )
