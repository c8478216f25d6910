"""Results as pictures: bars of tokens, a map of tokens, pairs as threads between words.

Each is a `Chart`: it shows itself in a notebook, and `save_plot` writes it as a page, SVG, PNG or
PDF. `.to_plotly()` gives a figure of plotly instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.result.charts.bars import Bars, simple_bars
from lexray.result.charts.chart import ENDINGS, Chart
from lexray.result.charts.cloud import Cloud, Point
from lexray.result.charts.threads import Thread, Threads
from lexray.result.format import show_number, show_percent
from lexray.result.readings import SIDES, Embeds, Pairs, Reading

__all__ = ["ENDINGS", "Chart", "bars", "principal_plane", "save_plot", "threads", "token_map"]


def bars(reading: Reading) -> Bars:
    """The top tokens and the bottom tokens of a vector, side by side."""
    ends = (
        ("top", reading.top, "positive"),
        ("bottom: the negated direction", reading.bottom, "negative"),
    )
    lists = tuple(
        simple_bars(
            title,
            [scored.token.shown for scored in listed],
            [scored.score for scored in listed],
            colour,
            [f"{s.token.shown} (id {s.token.id}): {show_number(s.score)}" for s in listed],
        )
        for title, listed, colour in ends
    )
    return Bars(f"{reading.source.address} as tokens", _note(reading), lists)


def token_map(reading: Reading, model: Embeds) -> Cloud:
    """The top tokens in the plane in which their centred embeddings differ most."""
    tokens = [scored.token for scored in reading.top]
    places, shares = principal_plane(model.embeddings([token.id for token in tokens]))
    points = tuple(
        Point(x, y, s.token.shown, s.score, f"{s.token.shown} (id {s.token.id}): {s.score:.4g}")
        for (x, y), s in zip(places.tolist(), reading.top, strict=True)
    )
    first, second = (
        f"{name} direction, {show_percent(share, 0)} of the variance"
        for name, share in zip(("first", "second"), shares, strict=True)
    )
    title = f"{reading.source.address}: where its top tokens lie"
    return Cloud(title, _note(reading), (first, second), points)


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


def threads(pairs: Pairs, n: int = 50) -> Threads:
    """The n best pairs as threads from row tokens to column tokens; strong ones are thick."""
    shown = list(pairs)[:n]
    some = f" · the first {len(shown)} of {len(pairs)} pairs" if len(shown) < len(pairs) else ""
    said = " · ".join(filter(None, [str(pairs.source), pairs.note]))
    return Threads(
        f"{pairs.source.address}.{pairs.matrix}, {pairs.sign} of all token pairs",
        said + some,
        SIDES[pairs.matrix],
        {pair.row.id: pair.row.shown for pair in shown},
        {pair.col.id: pair.col.shown for pair in shown},
        tuple(Thread(pair.row.id, pair.col.id, pair.score) for pair in shown),
    )


def save_plot(chart: Chart | Any, path: str | Path) -> Path:
    """Writes `.html` that needs no network, `.svg`, `.png` or `.pdf`.

    A figure of plotly is written by plotly itself: a page of 5 MB, or images by a browser.
    """
    if isinstance(chart, Chart):
        return chart.save(path)
    from lexray.result.charts.plotly import save_figure

    return save_figure(chart, Path(path))


def _note(reading: Reading) -> str:
    return f"{reading.source} · legibility {reading.legibility:.2f}"
