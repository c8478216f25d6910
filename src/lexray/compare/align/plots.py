"""Alignments as pictures: a heat map for each group, embedding space above, feature space below."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from lexray.compare.align.alignment import Alignment
from lexray.compare.align.similarity import Similarity
from lexray.result.format import show_percent
from lexray.result.plots import FAINT, INK, NEGATIVE, WIDTH, dress, literal
from lexray.space.kinds import Kind

PANEL, LEFT, TOP, BETWEEN = 190, 90, 150, 46
"""Sizes in pixels: of a heat map, and of the room around and between them."""
COLOURS = [[0, "#f4f8fb"], [0.5, "#7fb2d6"], [1, "#12466f"]]
NAMES: dict[Kind, str] = {"key": "FF keys", "gate": "FF gates", "value": "FF values"}


def heat_maps(alignment: Alignment) -> go.Figure:
    """S of every group, as in Fig. 3 of the paper; assigned cells are marked by a dot."""
    groups = alignment.groups
    n_rows = 2 if groups[0].feature else 1
    width = max(WIDTH, LEFT + (PANEL + BETWEEN) * len(groups))
    height = TOP + (PANEL + BETWEEN) * n_rows
    figure = make_subplots(
        rows=n_rows,
        cols=len(groups),
        column_titles=[NAMES.get(group.kind, f"W_{group.kind}") for group in groups],
        horizontal_spacing=BETWEEN / width,
        vertical_spacing=BETWEEN / height if n_rows > 1 else 0,
    )
    figure.update_annotations(font={"size": 13, "color": INK}, yshift=4)
    a, b = literal(alignment.a.model), literal(alignment.b.model)
    for col, group in enumerate(groups, 1):
        for row, similarity in enumerate(group.spaces, 1):
            below = f"<br>layer of {b}" if row == n_rows else ""
            _add_panel(figure, similarity, row, col, below)
    for row, space in enumerate(("embedding space", "feature space")[:n_rows], 1):
        figure.update_yaxes(title=_small(f"<b>{space}</b><br>layer of {a}"), row=row, col=1)
    title = f"Which layer does what: {alignment.a.model} and {alignment.b.model}"
    said = f"{alignment.note} · each panel from its least to its largest · dots: assigned"
    dress(figure, title, said, height)
    figure.update_layout(width=width, margin={"l": LEFT, "r": 30, "t": 110, "b": 60})
    return figure


def _add_panel(figure: go.Figure, similarity: Similarity, row: int, col: int, below: str) -> None:
    S = similarity.S
    rows, cols = S.shape
    figure.add_trace(
        go.Heatmap(
            z=S.tolist(),
            x=list(range(cols)),
            y=list(range(rows)),
            colorscale=COLOURS,
            showscale=False,
            xgap=1,
            ygap=1,
            hovertemplate="L%{y} · L%{x}: %{z:.4f}<extra></extra>",
        ),
        row=row,
        col=col,
    )
    figure.add_trace(
        go.Scatter(
            x=[j for _, j in similarity.assignment],
            y=[i for i, _ in similarity.assignment],
            mode="markers",
            marker={
                "size": max(4, min(14, 0.4 * PANEL / max(rows, cols))),
                "color": NEGATIVE,
                "line": {"width": 1, "color": "white"},
            },
            hoverinfo="skip",
        ),
        row=row,
        col=col,
    )
    note = f"{show_percent(similarity.share, 0)} on the diagonal{below}"
    figure.update_xaxes(
        title=_small(note), range=[-0.5, cols - 0.5], **_ticks(cols), row=row, col=col
    )
    figure.update_yaxes(range=[rows - 0.5, -0.5], **_ticks(rows), row=row, col=col)


def _ticks(n: int) -> dict[str, object]:
    step = max(1, -(-n // 12))
    return {
        "tickvals": list(range(0, n, step)),
        "tickfont": {"size": 10, "color": FAINT},
        "showgrid": False,
        "zeroline": False,
    }


def _small(text: str) -> dict[str, object]:
    return {"text": text, "font": {"size": 11, "color": FAINT}, "standoff": 4}
