"""The embedding space as a dictionary's features are read in it.

The same columns as the model's; but what is usual for a token is what is usual among the features,
not among the model's own neurons.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.model.cache import Drawer
from lexray.model.fold import at_least_float32
from lexray.model.weights import Weights
from lexray.space.kinds import WRITES, Kind
from lexray.space.side import Side
from lexray.space.space import EmbeddingSpace
from lexray.space.usual import CENTRED
from lexray.view import View
from lexray.vocabulary.filters import Filter

SIDES: Drawer[tuple[int, Kind, View, Filter | None], Side] = Drawer(most=4)


@dataclass
class Moments:
    """Mean and covariance of a kind's vectors, in float64."""

    mean: Float[Tensor, "d_model"]
    covariance: Float[Tensor, "d_model d_model"]

    @classmethod
    def of(cls, blocks: Iterable[Float[Tensor, "_ d_model"]]) -> Moments:
        total: Any = 0.0
        sums: Any = 0.0
        n = 0
        for block in blocks:
            exact = block.cpu().double()
            total, sums, n = total + exact.T @ exact, sums + exact.sum(0), n + len(exact)
        mean = sums / max(1, n)
        return cls(mean, total / max(1, n) - torch.outer(mean, mean))


@dataclass
class UsualFeatures:
    """The moments of a dictionary's keys and values, made when first needed."""

    blocks: Any
    made: dict[Kind, Moments] = field(default_factory=dict)

    def of(self, kind: Kind) -> Moments:
        if kind not in self.made:
            self.made[kind] = Moments.of(self.blocks(kind))
        return self.made[kind]


class FeatureSpace(EmbeddingSpace):
    """Where features are read as words."""

    def __init__(self, weights: Weights, layer: int, usual: UsualFeatures) -> None:
        super().__init__(weights, layer)
        self._layer, self._usual = layer, usual

    def with_view(self, **changes: Any) -> FeatureSpace:
        return FeatureSpace(self.weights.view(**changes), self._layer, self._usual)

    def sharing(self, kind: Kind) -> Hashable:
        return "features", id(self._usual), kind

    def whole(self, kind: Kind) -> Side:
        return self.side_of(kind, None, everything=True)

    def side(self, kind: Kind, filter: Filter | None = None) -> Side:
        return self.side_of(kind, filter)

    def side_of(self, kind: Kind, filter: Filter | None, *, everything: bool = False) -> Side:
        ids = None if everything else self.list_ids(filter)
        if ids is not None:
            return self.whole(kind).only(ids)
        view = replace(self.weights.options, offset=0)
        key = id(self._usual), kind, view, None
        return SIDES.get(self.weights.cache, key, lambda: self._make(kind))

    def _make(self, kind: Kind) -> Side:
        side = self.writing if kind in WRITES else self.reading
        options = self.weights.options
        if not (options.standardised or options.calibrated):
            return side
        moments = self._usual.of(kind)
        spread = moments.covariance
        if not options.standardised or kind not in CENTRED:
            spread = spread + torch.outer(moments.mean, moments.mean)
        return side.calibrate(spread, self.list_ids(None))

    def shift(self, X: Float[Tensor, "n d_model"], kind: Kind) -> Float[Tensor, "n d_model"]:
        if not self.weights.options.standardised or kind not in CENTRED:
            return X
        X = at_least_float32(X)
        return X - self._usual.of(kind).mean.to(X)
