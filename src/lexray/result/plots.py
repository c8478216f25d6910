"""Results as pictures, by plotly: bars of tokens, a map of tokens, pairs as threads between words.

Plotly takes labels for HTML. A vocabulary contains `<b>` and `<script`, so whatever a model or a
user wrote passes through `literal` on its way into a figure.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from jaxtyping import Float
from plotly.subplots import make_subplots
from torch import Tensor

from lexray.errors import LexrayError
from lexray.result.format import show_number, show_percent
from lexray.result.readings import SIDES, Embeds, Pairs, Reading, Scored
from lexray.result.theme import LIGHT, MIDDLE, MONOSPACE, SANS

POSITIVE, NEGATIVE, INK, FAINT = LIGHT.positive, LIGHT.negative, LIGHT.ink, MIDDLE
IMAGES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
ROW = 22
"""The height of a token's row in pixels."""
WIDTH = 900
CURVE = 24
"""Points along a thread."""


def bars(reading: Reading) -> go.Figure:
    """The top tokens and the bottom tokens of a vector, side by side."""
    ends = ((reading.top, POSITIVE), (reading.bottom, NEGATIVE))
    figure = make_subplots(
        rows=1,
        cols=2,
        subplot_titles=("top", "bottom: the negated direction"),
        horizontal_spacing=0.2,
    )
    for col, (listed, colour) in enumerate(ends, 1):
        _add_bars(figure, listed, colour, col)
    rows = max(len(reading.top), len(reading.bottom), 1)
    dress(figure, f"{reading.source.address} as tokens", _note(reading), 150 + ROW * rows)
    figure.update_annotations(font={"size": 13, "color": FAINT})
    return figure


def _add_bars(figure: go.Figure, listed: Sequence[Scored], colour: str, col: int) -> None:
    places = list(range(len(listed)))
    labels = [literal(scored.token.shown) for scored in listed]
    scores = [scored.score for scored in listed]
    figure.add_trace(
        go.Bar(
            x=scores,
            y=places,
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            text=[show_number(score) for score in scores],
            textposition="outside",
            textfont={"color": FAINT, "size": 11},
            cliponaxis=False,
            customdata=[
                [label, scored.token.id] for label, scored in zip(labels, listed, strict=True)
            ],
            hovertemplate="%{customdata[0]} (id %{customdata[1]}): %{x:.4g}<extra></extra>",
        ),
        row=1,
        col=col,
    )
    figure.update_yaxes(
        tickvals=places,
        ticktext=labels,
        tickfont={"family": MONOSPACE, "size": 13},
        ticklabelstandoff=6,
        range=[len(listed) - 0.5, -0.5],
        showgrid=False,
        row=1,
        col=col,
    )
    figure.update_xaxes(range=_reach(scores), zeroline=True, zerolinecolor=FAINT, row=1, col=col)


def _reach(scores: list[float]) -> list[float]:
    """From zero to the longest bar, with room for the number behind it."""
    low, high = min([0.0, *scores]), max([0.0, *scores])
    room = 0.22 * ((high - low) or 1.0)
    return [low - room if low < 0 else 0.0, high + room if high > 0 or low == 0 else 0.0]


def token_map(reading: Reading, model: Embeds) -> go.Figure:
    """The top tokens in the plane in which their centred embeddings differ most."""
    tokens = [scored.token for scored in reading.top]
    scores = [scored.score for scored in reading.top]
    points, shares = principal_plane(model.embeddings([token.id for token in tokens]))
    x, y = points[:, 0].tolist(), points[:, 1].tolist()
    labels = [literal(token.shown) for token in tokens]
    figure = go.Figure(
        go.Scatter(
            x=x,
            y=y,
            mode="markers+text",
            text=labels,
            textposition=_label_places(x, y, [token.shown for token in tokens]),
            textfont={"family": MONOSPACE, "size": 12, "color": INK},
            cliponaxis=False,
            marker={
                "size": _sizes(scores),
                "color": scores,
                "colorscale": [[0, "#a9cfe8"], [1, "#12466f"]],
                "colorbar": {
                    "title": {"text": "score", "font": {"size": 12, "color": FAINT}},
                    "tickfont": {"size": 11, "color": FAINT},
                    "thickness": 12,
                    "outlinewidth": 0,
                },
                "line": {"width": 1, "color": "white"},
                "opacity": 0.9,
            },
            customdata=[
                [token.id, show_number(score)] for token, score in zip(tokens, scores, strict=True)
            ],
            hovertemplate="%{text} (id %{customdata[0]}): %{customdata[1]}<extra></extra>",
        )
    )
    title = f"{reading.source.address}: where its top tokens lie"
    dress(figure, title, _note(reading), 680)
    for update, share, name, values in (
        (figure.update_xaxes, shares[0], "first", x),
        (figure.update_yaxes, shares[1], "second", y),
    ):
        update(
            title={
                "text": f"{name} direction, {show_percent(share, 0)} of the variance",
                "font": {"size": 12, "color": FAINT},
            },
            range=_margins(values),
            showticklabels=False,
            zeroline=False,
        )
    return figure


def principal_plane(
    X: Float[Tensor, "n width"],
) -> tuple[Float[Tensor, "n 2"], tuple[float, float]]:
    """Coordinates in the first two principal directions, and these directions' variance shares.

    A direction's sign is such that its largest entry is positive: a list is always drawn alike.
    """
    exact = X.cpu().double()
    U, S, Vt = torch.linalg.svd(exact - exact.mean(0), full_matrices=False)
    signs = Vt.gather(1, Vt.abs().argmax(1, keepdim=True)).sign()[:, 0]
    points = torch.zeros(len(X), 2, dtype=torch.float64)
    n = min(2, len(S))
    points[:, :n] = (U * S * signs)[:, :n]
    shares = torch.zeros(2, dtype=torch.float64)
    shares[:n] = (S.square() / S.square().sum().clamp(min=1e-300))[:n]
    return points, (float(shares[0]), float(shares[1]))


def threads(pairs: Pairs, n: int = 50) -> go.Figure:
    """The n best pairs as threads from row tokens to column tokens; strong ones are thick."""
    shown = list(pairs)[:n]
    rows, cols = _untangle([(pair.row.id, pair.col.id) for pair in shown])
    texts = {pair.row.id: pair.row for pair in shown}, {pair.col.id: pair.col for pair in shown}
    height = max(len(rows), len(cols), 1)
    left, right = (_spread(order, height) for order in (rows, cols))
    figure = go.Figure()
    strongest = max((abs(pair.score) for pair in shown), default=1.0) or 1.0
    weakest = min((abs(pair.score) for pair in shown), default=0.0)
    for pair in reversed(shown):
        strength = (abs(pair.score) - weakest) / ((strongest - weakest) or 1.0)
        figure.add_trace(_thread(pair.score, strength, left[pair.row.id], right[pair.col.id]))
    figure.add_trace(_beads(shown, left, right))
    for x, places, tokens, position in (
        (0.0, left, texts[0], "middle left"),
        (1.0, right, texts[1], "middle right"),
    ):
        figure.add_trace(
            go.Scatter(
                x=[x] * len(places),
                y=list(places.values()),
                mode="markers+text",
                text=[f"&nbsp;{literal(tokens[token].shown)}&nbsp;" for token in places],
                textposition=position,
                textfont={"family": MONOSPACE, "size": 13, "color": INK},
                marker={"size": 6, "color": INK},
                hoverinfo="skip",
                cliponaxis=False,
            )
        )
    some = f" · the first {len(shown)} of {len(pairs)} pairs" if len(shown) < len(pairs) else ""
    title = f"{pairs.source.address}.{pairs.matrix}, {pairs.sign} of all token pairs"
    said = " · ".join(filter(None, [str(pairs.source), pairs.note]))
    dress(figure, title, said + some, 150 + ROW * height)
    for x, name, anchor in zip((0.0, 1.0), SIDES[pairs.matrix], ("right", "left"), strict=True):
        figure.add_annotation(
            x=x,
            y=-1.1,
            text=name,
            xanchor=anchor,
            showarrow=False,
            font={"size": 13, "color": FAINT},
        )
    figure.update_xaxes(visible=False, range=[-0.45, 1.45])
    figure.update_yaxes(visible=False, range=[height - 0.5, -1.6])
    return figure


def _thread(score: float, strength: float, start: float, stop: float) -> go.Scatter:
    """An S-curve from a row at the left to a column at the right."""
    steps = torch.linspace(0, 1, CURVE, dtype=torch.float64)
    bend = steps * steps * (3 - 2 * steps)
    return go.Scatter(
        x=steps.tolist(),
        y=(start + (stop - start) * bend).tolist(),
        mode="lines",
        line={"width": 1 + 5 * strength, "color": POSITIVE if score >= 0 else NEGATIVE},
        opacity=0.3 + 0.5 * strength,
        hoverinfo="skip",
    )


def _beads(shown: Sequence[Any], left: dict[int, float], right: dict[int, float]) -> go.Scatter:
    """Where the pointer finds a pair's score: the middle of its thread."""
    return go.Scatter(
        x=[0.5] * len(shown),
        y=[(left[pair.row.id] + right[pair.col.id]) / 2 for pair in shown],
        mode="markers",
        marker={"size": 10, "opacity": 0, "color": INK},
        text=[
            f"{literal(pair.row.shown)} → {literal(pair.col.shown)}: {show_number(pair.score)}"
            for pair in shown
        ],
        hovertemplate="%{text}<extra></extra>",
    )


def _untangle(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Orders of both sides with few crossings: each token at the mean place of its partners."""
    rows, cols = list(dict.fromkeys(i for i, _ in pairs)), list(dict.fromkeys(j for _, j in pairs))
    for _ in range(8):
        rows, cols = _by_partners(rows, cols, pairs), cols
        cols = _by_partners(cols, rows, [(j, i) for i, j in pairs])
    return rows, cols


def _by_partners(own: list[int], other: list[int], pairs: list[tuple[int, int]]) -> list[int]:
    place = {token: n / max(1, len(other) - 1) for n, token in enumerate(other)}
    partners: dict[int, list[float]] = {token: [] for token in own}
    for i, j in pairs:
        partners[i].append(place[j])
    return sorted(own, key=lambda token: sum(partners[token]) / len(partners[token]))


def _spread(order: list[int], height: int) -> dict[int, float]:
    """Evenly from top to bottom, the shorter list as tall as the longer one."""
    step = height / max(1, len(order))
    return {token: (n + 0.5) * step - 0.5 for n, token in enumerate(order)}


def save_plot(figure: go.Figure, path: str | Path) -> Path:
    """Writes `.html` that needs no network, or an image, for which plotly needs a browser."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in (".html", ".htm"):
        config = {"displaylogo": False, "typesetMath": False, "responsive": True}
        figure.write_html(path, include_plotlyjs=True, include_mathjax=False, config=config)
    elif suffix in IMAGES:
        _save_image(figure, path)
    else:
        raise LexrayError(f"{path.name}: plots are saved as .html or as one of {', '.join(IMAGES)}")
    return path


def _save_image(figure: go.Figure, path: Path) -> None:
    try:
        figure.write_image(path, scale=2)
    except OSError:
        raise
    except Exception as error:  # plotly, kaleido and the browser each have errors of their own
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise LexrayError(
            f"{path.name} was not written, {path.with_suffix('.html').name} could be: for images "
            "plotly needs the package kaleido (pip install kaleido) and Chrome or Chromium; it "
            f"says: {said}"
        ) from error


def literal(text: str) -> str:
    """A text that plotly shows as it is: no tags, no entities, no TeX."""
    return html.escape(text, quote=False).replace("$", "&#36;")


def _note(reading: Reading) -> str:
    return f"{reading.source} · legibility {reading.legibility:.2f}"


def heading(title: str, note: str) -> dict[str, Any]:
    """A figure's title, and under it the small print."""
    return {
        "text": f"<b>{literal(title)}</b>",
        "subtitle": {"text": literal(note), "font": {"size": 12, "color": FAINT}},
        "x": 0.02,
        "xanchor": "left",
        "y": 1,
        "yref": "container",
        "yanchor": "top",
        "pad": {"t": 18},
    }


def dress(figure: go.Figure, title: str, note: str, height: int) -> None:
    """What all figures share: title, small print, colours, sizes."""
    figure.update_layout(
        template="plotly_white",
        title=heading(title, note),
        font={"family": SANS, "size": 13, "color": INK},
        showlegend=False,
        width=WIDTH,
        height=height,
        margin={"l": 110, "r": 60, "t": 100, "b": 40},
        bargap=0.25,
        hoverlabel={"font": {"family": MONOSPACE}},
        modebar={"remove": ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"]},
    )


def _sizes(scores: list[float]) -> list[float]:
    """Markers between 9 and 22 pixels wide."""
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [9 + 13 * (score - low) / ((high - low) or 1.0) for score in scores]


def _margins(values: list[float]) -> list[float]:
    low, high = min(values, default=0.0), max(values, default=0.0)
    room = 0.12 * ((high - low) or 1.0)
    return [low - room, high + room]


PLACES = ("top center", "bottom center", "middle right", "middle left")


def _label_places(x: list[float], y: list[float], labels: list[str]) -> list[str]:
    """Beside each point the place where its label covers least of what is already there."""
    (x0, x1), (y0, y1) = _margins(x), _margins(y)
    at = [
        (700 * (a - x0) / (x1 - x0), 540 * (b - y0) / (y1 - y0)) for a, b in zip(x, y, strict=True)
    ]
    taken = [(a - 9, b - 9, a + 9, b + 9) for a, b in at]
    chosen = []
    for (a, b), label in zip(at, labels, strict=True):
        wide, high = 7.3 * len(label), 15
        boxes = {
            "top center": (a - wide / 2, b + 9, a + wide / 2, b + 9 + high),
            "bottom center": (a - wide / 2, b - 9 - high, a + wide / 2, b - 9),
            "middle right": (a + 10, b - high / 2, a + 10 + wide, b + high / 2),
            "middle left": (a - 10 - wide, b - high / 2, a - 10, b + high / 2),
        }
        best = min(PLACES, key=lambda place: sum(_overlap(boxes[place], box) for box in taken))
        taken.append(boxes[best])
        chosen.append(best)
    return chosen


Rectangle = tuple[float, float, float, float]


def _overlap(a: Rectangle, b: Rectangle) -> float:
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
