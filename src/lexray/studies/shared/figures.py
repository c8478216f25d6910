"""What the studies' figures share: colours that read on white and on black, titles, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lexray.files import writing
from lexray.result.plots import INK, NEGATIVE, POSITIVE, heading, literal, save_plot
from lexray.result.theme import MIDDLE, SANS

OURS, CONTROL, THIRD = POSITIVE, NEGATIVE, "#3a9d5d"
"""What was measured; what it is compared with; one more."""
PUBLISHED = "#b8860b"
"""The paper's own figure."""
MUTED, GRID = MIDDLE, "rgba(128, 138, 148, 0.25)"
HEIGHT = 420


def panels(titles: Sequence[str], columns: int = 2, **options: Any) -> go.Figure:
    """Small figures side by side; panel i is at row i // columns + 1, column i % columns + 1."""
    columns = min(columns, len(titles))
    rows = -(-len(titles) // columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[literal(title) for title in titles],
        vertical_spacing=min(0.5 / rows, 80 / (330 * rows)),
        horizontal_spacing=0.09,
        **options,
    )
    figure.update_annotations(font={"size": 14, "color": MUTED})
    return dress(figure, 130 + 330 * rows)


def at(panel: int, columns: int = 2) -> dict[str, int]:
    """Where a panel is, for `add_trace(…, **at(i))`."""
    return {"row": panel // columns + 1, "col": panel % columns + 1}


def published(x: Sequence[float], y: Sequence[float], text: Sequence[str]) -> go.Scatter:
    """Points that the paper reports."""
    return go.Scatter(
        x=list(x),
        y=list(y),
        mode="markers+text",
        text=[literal(t) for t in text],
        textposition="middle right",
        textfont={"color": PUBLISHED, "size": 11},
        marker={"symbol": "star", "size": 13, "color": PUBLISHED},
        name="published",
        hovertemplate="%{text}: %{y}<extra>published</extra>",
    )


def published_line(figure: go.Figure, y: float, text: str, **where: Any) -> None:
    """A level that the paper reports."""
    figure.add_hline(
        y=y,
        line={"color": PUBLISHED, "dash": "dash", "width": 1.5},
        name=literal(text),
        showlegend=True,
        **where,
    )


def by_layer(figure: go.Figure, layers: int) -> go.Figure:
    """Bars for each layer: whole numbers below, no lines between them."""
    step = max(1, -(-layers // 12))
    figure.update_xaxes(title="layer", dtick=step, tick0=0, showgrid=False, zeroline=False)
    return figure.update_layout(bargap=0.2, bargroupgap=0)


def dress(figure: go.Figure, height: int = HEIGHT) -> go.Figure:
    """The common look; the background is the page's."""
    figure.update_layout(
        template="plotly_white",
        font={"family": SANS, "size": 13, "color": MUTED},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=height,
        margin={"l": 60, "r": 30, "t": 50, "b": 90},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        modebar={"remove": ["select2d", "lasso2d", "autoScale2d"], "bgcolor": "rgba(0,0,0,0)"},
    )
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID)
    return figure


def give_title(figure: go.Figure, title: str, note: str) -> go.Figure:
    """For a picture that stands alone: a title, small print, a white ground."""
    figure.update_layout(
        title=heading(title, note) | {"font": {"size": 17, "color": INK}},
        paper_bgcolor="white",
        plot_bgcolor="white",
        width=1000,
        height=(figure.layout.height or HEIGHT) + 70,
        margin_t=120,
    )
    return figure


def save_whole(figure: go.Figure, path: Path) -> None:
    """`save_plot`, whole or not at all."""
    with writing(path) as part:
        save_plot(figure, part)
