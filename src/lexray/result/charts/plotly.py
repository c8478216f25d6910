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
from lexray.result.theme import LIGHT, MIDDLE, MONOSPACE, SANS

if TYPE_CHECKING:
    import plotly.graph_objects as go


ROW, WIDTH = 22, 900
HEAT = [[0, LIGHT.cold], [1, LIGHT.hot]]
SIGNED = [[0, LIGHT.negative], [0.5, LIGHT.card], [1, LIGHT.positive]]
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


def side_by_side(titles: list[str], across: int, **more: Any) -> go.Figure:
    import_plotly()
    from plotly.subplots import make_subplots

    across = max(1, min(across, len(titles)))
    rows = max(1, -(-len(titles) // across))
    return make_subplots(
        rows=rows, cols=across, subplot_titles=[literal(title) for title in titles], **more
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
