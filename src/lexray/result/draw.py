"""Lists and pairs of tokens as charts, from plain words and numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.result.charts.bars import BarList, Bars, simple_bars
from lexray.result.charts.cloud import Cloud, CloudPoint
from lexray.result.charts.threads import Thread, Threads
from lexray.result.format import show_number, show_percent

Word = tuple[int, str]
"""A token's number, and how it is shown."""
ScoredWord = tuple[int, str, float]


def draw_ends(
    title: str, note: str, top: Sequence[ScoredWord], bottom: Sequence[ScoredWord]
) -> Bars:
    """The tokens at either end of a list, side by side."""
    low = "bottom: the negated direction"
    return Bars(title, note, (_list("top", top, "positive"), _list(low, bottom, "negative")))


def _list(title: str, words: Sequence[ScoredWord], colour: str) -> BarList:
    said = [f"{shown} (id {i}): {show_number(score)}" for i, shown, score in words]
    return simple_bars(
        title, [word[1] for word in words], [word[2] for word in words], colour, said
    )


def draw_plane(
    title: str, note: str, words: Sequence[ScoredWord], X: Float[Tensor, "n width"]
) -> Cloud:
    """Words as points in the plane in which their embeddings differ most."""
    places, shares = principal_plane(X)
    points = tuple(
        CloudPoint(x, y, shown, score, f"{shown} (id {i}): {score:.4g}")
        for (x, y), (i, shown, score) in zip(places.tolist(), words, strict=True)
    )
    first, second = (
        f"{name} direction, {show_percent(share, 0)} of the variance"
        for name, share in zip(("first", "second"), shares, strict=True)
    )
    return Cloud(title, note, (first, second), points)


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


def draw_pairs(
    title: str, note: str, sides: tuple[str, str], pairs: Sequence[tuple[Word, Word, float]]
) -> Threads:
    """Pairs as threads between two columns of words; strong ones are thick."""
    threads = tuple(Thread(row[0], col[0], score) for row, col, score in pairs)
    left, right = dict(row for row, _, _ in pairs), dict(col for _, col, _ in pairs)
    return Threads(title, note, sides, left, right, threads)
