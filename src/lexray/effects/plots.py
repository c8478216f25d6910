"""Effects as pictures, by plotly: heat maps whose colours go both ways, and a scatter."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from lexray.result.plots import FAINT, INK, NEGATIVE, POSITIVE, ROW, WIDTH, dress, literal
from lexray.result.theme import MONOSPACE

LABELLED = 12
"""How many points of a scatter have their name beside them."""
BOTH_WAYS = [[0, NEGATIVE], [0.5, "#ffffff"], [1, POSITIVE]]


def heat(
    values: Sequence[Sequence[float | None]],
    columns: Sequence[str],
    lines: Sequence[str],
    largest: float,
    **more: object,
) -> go.Heatmap:
    """A heat map around zero: white is no change."""
    return go.Heatmap(
        z=values,
        x=list(range(len(columns))),
        y=list(range(len(lines))),
        customdata=[[f"{literal(line)} {literal(c)}" for c in columns] for line in lines],
        hovertemplate="%{customdata}: %{z:.3g}<extra></extra>",
        zmin=-largest,
        zmax=largest,
        colorscale=BOTH_WAYS,
        xgap=1,
        ygap=1,
        **more,
    )


def largest_of(values: Sequence[Sequence[float | None]]) -> float:
    return max((abs(v) for line in values for v in line if v is not None), default=0.0) or 1.0


def as_lists(grid: Float[Tensor, "lines columns"]) -> list[list[float | None]]:
    """Numbers, and None for what is none."""
    return [[None if v != v else float(v) for v in line] for line in grid.tolist()]


def draw_effects(
    title: str,
    note: str,
    grid: Float[Tensor, "lines columns"] | None,
    names: Sequence[str],
    direct: Sequence[float | None],
    change: Sequence[float],
) -> go.Figure:
    """The heat map (if there is a grid), and what was added directly against what changed."""
    known = [(n, d, c) for n, d, c in zip(names, direct, change, strict=True) if d is not None]
    parts = [part for part, there in (("map", grid is not None), ("scatter", bool(known))) if there]
    if not parts:
        figure = go.Figure(go.Bar(x=list(names), y=list(change)))
        dress(figure, title, note, 420)
        return figure
    figure = make_subplots(rows=1, cols=len(parts), horizontal_spacing=0.14)
    height = 480
    if grid is not None:
        _add_map(figure, grid, len(parts))
        height = max(height, 190 + ROW * len(grid))
    if known:
        _add_scatter(figure, known, len(parts))
    dress(figure, title, note, height)
    figure.update_layout(width=WIDTH if len(parts) == 1 else WIDTH + 300)
    return figure


def _add_map(figure: go.Figure, grid: Float[Tensor, "lines columns"], parts: int) -> None:
    values = as_lists(grid)
    columns = [f"H{i}" if grid.shape[1] > 1 else "" for i in range(grid.shape[1])]
    lines = [f"L{n}" for n in range(len(grid))]
    bar = {"title": {"text": "change"}, "thickness": 12, "x": 0.44 if parts > 1 else 1.02}
    figure.add_trace(heat(values, columns, lines, largest_of(values), colorbar=bar), row=1, col=1)
    figure.update_xaxes(tickvals=list(range(len(columns))), ticktext=columns, row=1, col=1)
    figure.update_yaxes(tickvals=list(range(len(lines))), ticktext=lines, row=1, col=1)


def _add_scatter(figure: go.Figure, known: Sequence[tuple[str, float, float]], col: int) -> None:
    """On the dashed line a component's removal takes what it had added, no more and no less."""
    far = sorted(known, key=lambda point: -(abs(point[1]) + abs(point[2])))
    shown = {name for name, _, _ in far[:LABELLED]}
    figure.add_trace(
        go.Scatter(
            x=[d for _, d, _ in known],
            y=[c for _, _, c in known],
            mode="markers+text",
            text=[literal(name) if name in shown else "" for name, _, _ in known],
            textposition="top center",
            textfont={"family": MONOSPACE, "size": 11, "color": INK},
            customdata=[literal(name) for name, _, _ in known],
            hovertemplate="%{customdata}: added %{x:.3g}, removed %{y:+.3g}<extra></extra>",
            marker={"size": 7, "color": POSITIVE, "opacity": 0.7},
            cliponaxis=False,
        ),
        row=1,
        col=col,
    )
    low, high = min(d for _, d, _ in known), max(d for _, d, _ in known)
    figure.add_trace(
        go.Scatter(
            x=[low, high],
            y=[-low, -high],
            mode="lines",
            line={"dash": "dash", "color": FAINT, "width": 1},
            hoverinfo="skip",
        ),
        row=1,
        col=col,
    )
    figure.update_xaxes(title={"text": "added directly"}, zeroline=True, row=1, col=col)
    figure.update_yaxes(title={"text": "change when removed"}, zeroline=True, row=1, col=col)
