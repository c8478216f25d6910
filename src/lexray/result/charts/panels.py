"""Small figures with axes, side by side, as SVG and as plotly's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lexray.result.charts.chart import Chart
from lexray.result.charts.panel import BOTTOM, PLOT, TOP, DrawnPanel
from lexray.result.charts.pen import Colour, Pen
from lexray.result.charts.plotly import (
    HEAT,
    SIGNED,
    dress,
    import_plotly,
    literal,
    paint,
    side_by_side,
)
from lexray.result.charts.series import Curve, Dots, Heat, Level, Panel, Series, StandingBars
from lexray.result.theme import LIGHT

if TYPE_CHECKING:
    import plotly.graph_objects as go

LEAST, GAP = 290.0, 26.0
"""A panel is at least so wide; between panels."""


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
