"""The best pairs that a search has found."""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Best:
    """The k best pairs so far, by (score descending, flat index ascending)."""

    def __init__(self, k: int, *, absolute: bool) -> None:
        self.k = k
        self.absolute = absolute
        self.values = torch.empty(0, dtype=torch.float64)
        self.flat = torch.empty(0, dtype=torch.int64)

    @property
    def threshold(self) -> float:
        """The score a pair has to reach to be among the best; −∞ while there are fewer than k."""
        if len(self.values) < self.k:
            return -math.inf
        return float(self._scores(self.values[-1:]))

    def _scores(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return values.abs() if self.absolute else values

    def add(self, values: Float[Tensor, " n"], flat: Int[Tensor, " n"]) -> None:
        values, flat = torch.cat([self.values, values]), torch.cat([self.flat, flat])
        kept = self._select(self._scores(values), flat)
        values, flat = values[kept], flat[kept]
        by_index = flat.argsort()
        order = by_index[self._scores(values[by_index]).argsort(descending=True, stable=True)]
        self.values, self.flat = values[order], flat[order]

    def joined(self, others: Iterable["Best"]) -> "Best":
        """The best of this list and others, whose pairs may be in it already."""
        both = Best(self.k, absolute=self.absolute)
        for part in (self, *others):
            new = ~torch.isin(part.flat, both.flat)
            both.add(part.values[new], part.flat[new])
        return both

    def _select(
        self, scores: Float[Tensor, " n"], flat: Int[Tensor, " n"]
    ) -> Int[Tensor, " kept"] | slice:
        """The k best, unsorted: all above the k-th score and the first of those equal to it."""
        if len(scores) <= self.k:
            return slice(None)
        last = scores.topk(self.k).values[-1]
        above, tied = (scores > last).nonzero()[:, 0], (scores == last).nonzero()[:, 0]
        first = flat[tied].topk(self.k - len(above), largest=False).indices
        return torch.cat([above, tied[first]])
