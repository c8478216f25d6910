"""How alike two parameters read: how much each gives to the words that stand first for the other.

A correlation over all tokens is decided by the thousands that neither parameter is about. With
T(x) the first 50 tokens of x, and s_x(T) its mean score on some tokens, standardised along its own
list (`lexray.find.prominence`), the likeness of x and y is

    (s_y(T(x)) + s_x(T(y))) / (s_x(T(x)) + s_y(T(y))):

1 for the same words, never more, about 0 for strangers. A y that reads more like x when it is
negated counts as −y does, and its likeness is negative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.find.prominence import Score, prominence
from lexray.space.kinds import Kind
from lexray.space.space import EmbeddingSpace

FIRST = 50
"""So many tokens are what a parameter is about,"""
SHARE = 8
"""or one in so many, where there are few."""
CANDIDATES = 256
"""Of so many, those that give most to the first words of a parameter, the likeness is taken."""


@dataclass(frozen=True, eq=False)
class Likeness:
    """Of other vectors with one of them, x."""

    words: Int[Tensor, "first"]
    """T(x)."""
    scores: Float[Tensor, "e"]
    """s_x of every row of the embedding."""

    @classmethod
    def to(cls, space: EmbeddingSpace, kind: Kind, x: Float[Tensor, "d_model"]) -> Likeness:
        usual = prominence(space, kind)
        first = max(1, min(FIRST, usual.n_tokens // SHARE))
        mean, spread = usual.moments(x[None])
        scores = space.whole(kind).project(space.shift(x[None], kind))
        words = space.top(x[None], kind, first).top_ids[0]
        return cls(words, ((scores - mean[:, None]) / spread[:, None])[0])

    def towards(self, space: EmbeddingSpace, kind: Kind) -> Score:
        """s_y(T(x)) of vectors of a kind."""
        return prominence(space, kind).towards(self.words.tolist())

    def of(
        self, space: EmbeddingSpace, kind: Kind, Y: Float[Tensor, "n d_model"]
    ) -> Float[Tensor, "n"]:
        """Of vectors of a kind, each by the end of its list that is more like x."""
        there, best = self.towards(space, kind)(Y), space.top(Y, kind, len(self.words))
        mean, spread = prominence(space, kind).moments(Y)
        own = self.scores[self.words].mean()
        both = []
        for sign, ids, values in (
            (1, best.top_ids, best.top_values),
            (-1, best.bottom_ids, best.bottom_values),
        ):
            theirs = sign * (values.mean(1) - mean) / spread
            most = (own + theirs).clamp(min=torch.finfo(theirs.dtype).tiny)
            both.append((sign * there + self.scores[ids].mean(1)) / most)
        up, down = both
        return torch.where(up >= down, up, -down)
