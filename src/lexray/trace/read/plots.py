"""The lens as a heat map, and contributions as bars, by plotly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lexray.result.format import show_number
from lexray.result.plots import FAINT, NEGATIVE, POSITIVE, ROW, WIDTH, dress, literal
from lexray.result.theme import MONOSPACE
from lexray.trace.backwards import Kind
from lexray.trace.read.grid import clipped

if TYPE_CHECKING:
    from lexray.trace.contributions import Contributions
    from lexray.trace.read.lens import Lens

CELL = 86
"""The width of a heat map's cell in pixels."""
COLOURS: dict[Kind, str] = {
    "embedding": "#8a97a3",
    "head": "#2b7bba",
    "neuron": "#e0a030",
    "bias": "#c06aa0",
}


def lens(found: Lens) -> go.Figure:
    """Lines by positions, the last line on top; colours are probabilities, of the target or of
    the best token, whose name stands in the cell."""
    probabilities = found.top_probs[..., 0] if found.target_probs is None else found.target_probs
    grids = found.cells()
    figure = go.Figure(
        go.Heatmap(
            z=probabilities.tolist(),
            x=[str(at) for at in found.positions],
            y=list(range(len(found.lines))),
            text=[[literal(clipped(cell.token)) for cell in line] for line in grids],
            texttemplate="%{text}",
            textfont={"family": MONOSPACE, "size": 11},
            customdata=[[literal(cell.more) for cell in line] for line in grids],
            hovertemplate="%{customdata}<extra></extra>",
            zmin=0,
            zmax=1,
            colorscale=[[0, "#ffffff"], [0.25, "#a9cfe8"], [1, "#12466f"]],
            xgap=1,
            ygap=1,
            colorbar={"title": {"text": "probability", "font": {"size": 12, "color": FAINT}}},
        )
    )
    target = f" · colours: {found.target.shown}" if found.target else ""
    dress(figure, found.title, found.note + target, 170 + ROW * len(found.lines))
    words = [f"{at}<br>{literal(clipped(found.tokens[at].shown))}" for at in found.positions]
    figure.update_xaxes(
        type="category", tickvals=[str(at) for at in found.positions], ticktext=words, side="bottom"
    )
    figure.update_yaxes(
        tickvals=list(range(len(found.lines))), ticktext=[literal(name) for name in found.names]
    )
    width = 240 + CELL * len(found.positions)
    figure.update_layout(width=max(WIDTH, width), margin={"b": 70})
    return figure


def contributions(found: Contributions) -> go.Figure:
    """What each layer added, by kind, and the components that added or took most."""
    figure = make_subplots(
        rows=1,
        cols=2,
        column_widths=[0.5, 0.5],
        horizontal_spacing=0.16,
        subplot_titles=("by layer", "largest components"),
    )
    sums = found.by_layer()
    places = list(sums)
    kinds = [kind for kind in COLOURS if any(group.kind == kind for group in found.groups)]
    for kind in kinds:
        figure.add_trace(
            go.Bar(
                y=places,
                x=[sums[place][kind] for place in places],
                name=f"{kind}s" if kind != "bias" else "biases",
                orientation="h",
                marker={"color": COLOURS[kind]},
                hovertemplate="%{y}: %{x:.3g}<extra>%{fullData.name}</extra>",
            ),
            row=1,
            col=1,
        )
    figure.add_trace(_largest(found), row=1, col=2)
    dress(
        figure,
        f"What added to the logit of {found.what}",
        f"{found.model.name} · logit {found.logit:.3f}" + f" · {found.note}" * bool(found.note),
        180 + ROW * max(len(places), 2 * found.shown),
    )
    figure.update_layout(
        barmode="relative", showlegend=True, legend={"orientation": "h", "y": -0.05}
    )
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_annotations(font={"size": 13, "color": FAINT})
    return figure


def _largest(found: Contributions) -> Any:
    most, least = found.top(found.shown), found.top(found.shown, negative=True)
    leaves = {found.label(leaf): leaf.contribution for leaf in [*most, *reversed(least)]}
    values = list(leaves.values())
    return go.Bar(
        y=[literal(label) for label in leaves],
        x=values,
        orientation="h",
        showlegend=False,
        marker={"color": [POSITIVE if value >= 0 else NEGATIVE for value in values]},
        text=[show_number(value) for value in values],
        textposition="auto",
        hovertemplate="%{y}: %{x:.4g}<extra></extra>",
    )
