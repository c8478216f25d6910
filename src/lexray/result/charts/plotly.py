"""Our charts as plotly's figures: for those who zoom, restyle or go on from there.

Plotly takes labels for HTML. A vocabulary contains `<b>` and `<script`, so whatever a model or a
user wrote passes through `literal` on its way into a figure.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexray.errors import LexrayError
from lexray.result.charts.pen import Colour, Pen
from lexray.result.format import show_number
from lexray.result.theme import LIGHT, MIDDLE, MONOSPACE, SANS

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lexray.result.charts.bars import BarList, Bars
    from lexray.result.charts.cells import Cells
    from lexray.result.charts.cloud import Cloud
    from lexray.result.charts.panels import Dots, Panel, Panels, Series
    from lexray.result.charts.threads import Threads

ROW, WIDTH = 22, 900
HEAT = [[0, LIGHT.cold], [1, LIGHT.hot]]
PAINT = Pen(LIGHT)


def import_plotly() -> Any:
    """plotly's graph objects, which only `to_plotly` needs."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise LexrayError(
            "to_plotly needs plotly (pip install 'lexray[plotly]'); to_svg, to_html, to_png and "
            "to_pdf do not"
        ) from error
    return go


def literal(text: str) -> str:
    """A text that plotly shows as it is: no tags, no entities, no TeX."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def paint(colour: Colour) -> str:
    return PAINT.colour(colour)


def dress(figure: go.Figure, title: str, note: str, height: float) -> go.Figure:
    """What all figures share: title, small print, colours, sizes."""
    figure.update_layout(
        template="plotly_white",
        title={
            "text": f"<b>{literal(title)}</b>",
            "subtitle": {"text": literal(note), "font": {"size": 12, "color": MIDDLE}},
            "x": 0.02,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 18},
        },
        font={"family": SANS, "size": 13, "color": LIGHT.ink},
        showlegend=False,
        width=WIDTH,
        height=height,
        margin={"l": 110, "r": 60, "t": 100, "b": 50},
        bargap=0.25,
        hoverlabel={"font": {"family": MONOSPACE}},
    )
    figure.update_annotations(font={"size": 13, "color": MIDDLE})
    return figure


def _side_by_side(titles: list[str], across: int, **more: Any) -> go.Figure:
    import_plotly()
    from plotly.subplots import make_subplots

    across = max(1, min(across, len(titles)))
    rows = max(1, -(-len(titles) // across))
    return make_subplots(
        rows=rows, cols=across, subplot_titles=[literal(title) for title in titles], **more
    )


def draw_bars(chart: Bars) -> go.Figure:
    figure = _side_by_side([bars.title for bars in chart.lists], 2, horizontal_spacing=0.2)
    for col, bars in enumerate(chart.lists, 1):
        _add_bars(figure, bars, col)
    rows = max((len(bars.bars) for bars in chart.lists), default=1)
    dress(figure, chart.title, chart.note, 150 + ROW * max(rows, 1))
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
    dress(figure, chart.title, chart.note, 150 + ROW * chart.height)
    for x, name, anchor in zip((0.0, 1.0), chart.sides, ("right", "left"), strict=True):
        figure.add_annotation(x=x, y=-1.1, text=name, xanchor=anchor, showarrow=False)
    figure.update_xaxes(visible=False, range=[-0.45, 1.45])
    return figure.update_yaxes(visible=False, range=[chart.height - 0.5, -1.6])


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


def draw_cells(chart: Cells) -> go.Figure:
    go = import_plotly()
    columns = list(range(len(chart.columns)))
    rows = list(range(len(chart.names)))
    figure = go.Figure(
        go.Heatmap(
            z=[[square.strength for square in line] for line in chart.squares],
            x=columns,
            y=rows,
            text=[[literal(square.text) for square in line] for line in chart.squares],
            texttemplate="%{text}",
            textfont={"family": MONOSPACE, "size": 11},
            customdata=[[literal(square.said) for square in line] for line in chart.squares],
            hovertemplate="%{customdata}<extra></extra>",
            zmin=0,
            zmax=1,
            colorscale=HEAT,
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": literal(chart.meaning)}},
        )
    )
    dress(figure, chart.title, chart.note, 170 + ROW * len(rows))
    words = [f"{literal(small)}<br>{literal(word)}" for small, word in chart.columns]
    figure.update_xaxes(tickvals=columns, ticktext=words, side="top")
    names = [literal(name) for name in chart.names]
    figure.update_yaxes(tickvals=rows, ticktext=names, range=[len(rows) - 0.5, -0.5])
    return figure.update_layout(width=max(WIDTH, 240 + 86 * len(columns)))


def draw_panels(chart: Panels) -> go.Figure:
    across = max(1, min(chart.across, len(chart.panels)))
    rows = max(1, -(-len(chart.panels) // across))
    figure = _side_by_side([panel.title for panel in chart.panels], across)
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
    from lexray.result.charts.panels import Columns, Dots, Heat, Level, Line

    go = import_plotly()
    if isinstance(series, Level):
        line = {"color": paint(series.colour), "dash": series.dash, "width": 1.5}
        figure.add_hline(y=series.y, line=line, **where)
        return
    if isinstance(series, Heat):
        heat = go.Heatmap(z=[list(row) for row in series.z], colorscale=HEAT, showscale=False)
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
        case Line():
            line = {"color": paint(series.colour), "dash": series.dash, "width": series.width}
            mode = "lines+markers" if series.dots else "lines"
            drawn = go.Scatter(**shared, mode=mode, line=line, error_y=_errors(series))
        case Columns():
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


def save_figure(figure: go.Figure, path: Path) -> Path:
    """A figure of plotly as plotly writes it."""
    if path.suffix.lower() in (".html", ".htm"):
        config = {"displaylogo": False, "typesetMath": False, "responsive": True}
        figure.write_html(path, include_plotlyjs=True, include_mathjax=False, config=config)
        return path
    try:
        figure.write_image(path, scale=2)
    except OSError:
        raise
    except Exception as error:  # plotly, kaleido and the browser each have errors of their own
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise LexrayError(
            f"{path.name} was not written: for images of its figures plotly needs the package "
            f"kaleido and Chrome or Chromium; charts of lexray need neither; it says: {said}"
        ) from error
    return path
