"""The sweep over layers as curves, like the paper's Fig. 4."""

from __future__ import annotations

import plotly.graph_objects as go

from lexray.compare.stitch.sweep import Sweep
from lexray.result.plots import FAINT, INK, NEGATIVE, POSITIVE, WIDTH, literal
from lexray.result.theme import SANS

COLOURS = (POSITIVE, NEGATIVE, "#3c9d5d", "#8d5fb8", "#c49a1a", "#3aa6a6", "#b8487a", "#6b6b6b")
DASHES = ("solid", "dash", "dot", "dashdot")


def curves(sweep: Sweep) -> go.Figure:
    """A colour for each variant, a dash for each fine-tuned model, intervals as bars."""
    figure = go.Figure()
    names = [point.b for point in sweep.ceilings]
    for i, recipe in enumerate(sweep.recipes):
        for j, name in enumerate(names):
            points = sorted((p for p in sweep.of(recipe) if p.b == name), key=lambda p: p.after)
            label = recipe if len(names) == 1 else f"{recipe} → {name}"
            figure.add_trace(
                go.Scatter(
                    x=[p.after for p in points],
                    y=[p.accuracy for p in points],
                    error_y={
                        "symmetric": False,
                        "array": [p.interval[1] - p.accuracy for p in points],
                        "arrayminus": [p.accuracy - p.interval[0] for p in points],
                        "thickness": 1,
                    },
                    mode="lines+markers",
                    name=literal(label),
                    line={"color": COLOURS[i % len(COLOURS)], "dash": DASHES[j % len(DASHES)]},
                )
            )
    lines = [(sweep.majority, "the most frequent class")]
    lines += [(p.accuracy, f"{p.b} by itself") for p in sweep.ceilings]
    for height, label in lines:
        figure.add_hline(
            y=height,
            line={"color": FAINT, "dash": "dot", "width": 1},
            annotation={"text": literal(label), "font": {"size": 11, "color": FAINT}},
        )
    title = f"{sweep.a} stitched to the last {sweep.layers} layers of {', '.join(names)}"
    figure.update_layout(
        template="plotly_white",
        title={"text": f"<b>{literal(title)}</b>", "x": 0.02},
        font={"family": SANS, "size": 13, "color": INK},
        xaxis={"title": {"text": literal(f"after layer of {sweep.a}")}, "dtick": 1},
        yaxis={"title": {"text": "accuracy, with 95 % intervals"}, "tickformat": ".0%"},
        width=WIDTH,
        height=520,
        legend={"orientation": "h", "y": -0.2},
        showlegend=True,
    )
    return figure
