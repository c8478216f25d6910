"""Contributions as bars, by plotly."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lexray.result.format import show_number
from lexray.result.plots import FAINT, NEGATIVE, POSITIVE, ROW, dress, literal

COLOURS = {
    "embeddings": "#8a97a3",
    "heads": "#2b7bba",
    "neurons": "#e0a030",
    "biases": "#c06aa0",
}


def draw_contributions(
    title: str,
    note: str,
    sums: Mapping[str, Mapping[str, float]],
    largest: Mapping[str, float],
    rows: int,
) -> go.Figure:
    """What each layer added, by kind (`sums[kind][layer]`), and the components that added or took
    most."""
    figure = make_subplots(
        rows=1,
        cols=2,
        column_widths=[0.5, 0.5],
        horizontal_spacing=0.16,
        subplot_titles=("by layer", "largest components"),
    )
    for kind, by_layer in sums.items():
        figure.add_trace(
            go.Bar(
                y=list(by_layer),
                x=list(by_layer.values()),
                name=kind,
                orientation="h",
                marker={"color": COLOURS[kind]},
                hovertemplate="%{y}: %{x:.3g}<extra>%{fullData.name}</extra>",
            ),
            row=1,
            col=1,
        )
    figure.add_trace(_bars(largest), row=1, col=2)
    layers = max((len(by_layer) for by_layer in sums.values()), default=0)
    dress(figure, title, note, 180 + ROW * max(layers, rows))
    figure.update_layout(
        barmode="relative", showlegend=True, legend={"orientation": "h", "y": -0.05}
    )
    figure.update_yaxes(autorange="reversed", type="category")
    figure.update_annotations(font={"size": 13, "color": FAINT})
    return figure


def _bars(largest: Mapping[str, float]) -> go.Bar:
    values = list(largest.values())
    return go.Bar(
        y=[literal(label) for label in largest],
        x=values,
        orientation="h",
        showlegend=False,
        marker={"color": [POSITIVE if value >= 0 else NEGATIVE for value in values]},
        text=[show_number(value) for value in values],
        textposition="auto",
        hovertemplate="%{y}: %{x:.4g}<extra></extra>",
    )
