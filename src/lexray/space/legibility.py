"""Whether a list of tokens reads as something: how alike the words in it are.

    legibility = mean cosine between the first ten words among the first thirty tokens

of their centred embeddings, less that of random words. Words are what `vocabulary.words` takes for
telling and training has touched: punctuation, digits, bytes, glitch tokens, function words and
pieces of words do not score. Fewer than five words count as five, the missing ones like nothing.

A reader's tokens are compared as it sees them, through the effective embedding where the view
reads through that; a writer's through the output embedding. How well this predicts what a parameter
does is measured in docs/readings.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from lexray.model.fold import at_least_float32
from lexray.space.side import Side

WINDOW = 30
"""How many of the top tokens are looked at."""
WORDS = 10
"""How many words among them."""
LEAST = 5
"""Fewer words than these count as so many."""
LEAST_SIZE = 1e-18


class WordColumns(NamedTuple):
    """What legibility needs of an embedding."""

    rows: Float[Tensor, "e width"]
    mean: Float[Tensor, "width"]
    says: Bool[Tensor, "e"]
    """Which tokens are words that say something."""
    inverse: Float[Tensor, "e"]
    """1 / ‖w − μ‖ of each of these; 0 for others."""
    expected: Float[Tensor, ""]
    """The mean cosine over all pairs of such words."""

    def to(self, device: torch.device) -> WordColumns:
        return WordColumns(self.rows, *(x.to(device) for x in self[1:]))


def words_of(
    rows: Float[Tensor, "e width"], mean: Float[Tensor, "width"], says: Bool[Tensor, "e"]
) -> dict[str, Tensor]:
    """All but the rows, with the mean cosine of random pairs, from the sum of all unit vectors."""
    total, some = torch.zeros_like(mean), says.nonzero()[:, 0]
    sizes, start = torch.zeros(len(rows), device=rows.device), 0
    for block in Side(rows).blocks(some):
        centred = block - mean
        inverse = 1 / centred.norm(dim=-1).clamp(min=LEAST_SIZE)
        total = total + inverse @ centred
        sizes[some[start : start + len(block)]] = inverse.float()
        start += len(block)
    n = len(some)
    expected = (total.square().sum() - n) / max(1, n * (n - 1))
    return {"mean": mean, "says": says, "inverse": sizes, "expected": expected}


def legibility(words: WordColumns, ids: Int[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """Of each list of ids, best first: from the sum of its words' unit vectors,
    Σ (w − μ)/‖w − μ‖ = Σ w/‖w − μ‖ − μ Σ 1/‖w − μ‖, for which no vector is copied."""
    some = ids[:, :WINDOW].to(words.rows.device)
    if some.shape[1] < 2:
        return torch.zeros(len(ids))
    at = words.says[some].int().argsort(dim=1, descending=True, stable=True)[:, :WORDS]
    chosen = some.gather(1, at)
    weights, n = words.inverse[chosen], words.says[chosen].sum(1)
    total = _weigh(words.rows, chosen, weights) - weights.sum(1, keepdim=True) * words.mean
    alike = total.square().sum(-1) - n - words.expected * n * (n - 1)
    whole = n.clamp(min=min(LEAST, some.shape[1]))
    score: Tensor = alike / (whole * (whole - 1))
    return torch.where(n > 1, score, 0.0).cpu()


def _weigh(
    rows: Float[Tensor, "e width"], at: Int[Tensor, "n k"], weights: Float[Tensor, "n k"]
) -> Float[Tensor, "n width"]:
    """The weighted sums of rows."""
    if rows.dtype == weights.dtype and rows.device.type == "cpu":
        return embedding_bag(at, rows, per_sample_weights=weights, mode="sum")
    return (at_least_float32(rows[at]) * weights[..., None]).sum(1)
