"""The lens as a heat map, by plotly."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from lexray.result.plots import FAINT, ROW, WIDTH, dress, literal
from lexray.result.theme import MONOSPACE
from lexray.trace.read.grid import Grid, clip

CELL = 86
"""The width of a heat map's cell in pixels."""


def heat_map(
    grid: Grid, positions: Sequence[int], strengths: Sequence[Sequence[float]], meaning: str
) -> go.Figure:
    """Lines by positions, the last line on top; in each cell stands its best token, and the colour
    is a strength from 0 to 1, whose meaning stands beside the scale."""
    columns = [str(at) for at in positions]
    figure = go.Figure(
        go.Heatmap(
            z=strengths,
            x=columns,
            y=list(range(len(grid.names))),
            text=[[literal(clip(cell.token)) for cell in line] for line in grid.cells],
            texttemplate="%{text}",
            textfont={"family": MONOSPACE, "size": 11},
            customdata=[[literal(cell.more) for cell in line] for line in grid.cells],
            hovertemplate="%{customdata}<extra></extra>",
            zmin=0,
            zmax=1,
            colorscale=[[0, "#ffffff"], [0.25, "#a9cfe8"], [1, "#12466f"]],
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": meaning, "font": {"size": 12, "color": FAINT}}},
        )
    )
    dress(figure, grid.title, grid.note, 170 + ROW * len(grid.names))
    words = [f"{at}<br>{literal(word)}" for at, word in zip(positions, grid.columns, strict=True)]
    figure.update_xaxes(type="category", tickvals=columns, ticktext=words, side="bottom")
    figure.update_yaxes(
        tickvals=list(range(len(grid.names))), ticktext=[literal(name) for name in grid.names]
    )
    figure.update_layout(width=max(WIDTH, 240 + CELL * len(positions)), margin={"b": 70})
    return figure
