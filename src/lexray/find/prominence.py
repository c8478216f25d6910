"""How unusual a word is for a parameter: its score, standardised along the parameter's own list.

By token a score is standardised with the mean μ and covariance Σ of all parameters of the kind, as
the standard view does, z_j = (x − μ) · u_j with u_j = c_j / √(c_jᵀ Σ c_j). Along the list,

    s_j = (z_j − mean_j z) / std_j z,   mean_j z = (x − μ) · ū,   std_j z = ‖(x − μ) L‖,

where ū is the mean of the columns u_j over the tokens and L Lᵀ their covariance: O(d²) for a
parameter, whatever the size of the vocabulary. A parameter that is loud for every word does not
stand first any more, nor one that is loud for rare words only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.model.cache import Drawer
from lexray.model.fold import at_least_float32
from lexray.model.kept import keep
from lexray.space.correlation import Coordinates, chart
from lexray.space.kinds import WRITES, Kind
from lexray.space.space import EmbeddingSpace
from lexray.space.topk.arithmetic import full_precision
from lexray.view import STANDARD, View

Score = Callable[[Float[Tensor, "n d_model"]], Float[Tensor, "n"]]
"""What a search ranks vectors by."""
MADE: Drawer[tuple[Hashable, Kind, View, bool], Prominence] = Drawer(most=4)


@dataclass(frozen=True, eq=False)
class Prominence:
    """What standardising along the lists of a kind needs of the columns, over all tokens."""

    space: EmbeddingSpace
    """Of a view that standardises."""
    kind: Kind
    centre: Float[Tensor, "d_model"]
    """ū."""
    chart: Coordinates
    n_tokens: int

    def towards(self, ids: Sequence[int]) -> Score:
        """How many standard deviations of its own list a vector gives these tokens, on average."""
        some = self.space.whole(self.kind).only(torch.tensor(list(ids)))
        direction = torch.cat(list(some.columns())).mean(0) - self.centre

        def score(X: Float[Tensor, "n d_model"]) -> Float[Tensor, "n"]:
            Y, spread = self._spread(X)
            with full_precision():
                return Y @ direction.to(Y) / spread

        return score

    def moments(
        self, X: Float[Tensor, "n d_model"]
    ) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """The mean and the spread of each vector's own list."""
        Y, spread = self._spread(X)
        with full_precision():
            return Y @ self.centre.to(Y), spread

    def _spread(
        self, X: Float[Tensor, "n d_model"]
    ) -> tuple[Float[Tensor, "n d_model"], Float[Tensor, "n"]]:
        """The vectors less the mean of their kind, and std_j z of each."""
        Y = at_least_float32(self.space.shift(X, self.kind))
        with full_precision():
            return Y, self.chart.sizes(Y)[:, 0] / sqrt(self.n_tokens)


def prominence(space: EmbeddingSpace, kind: Kind) -> Prominence:
    """Over the tokens that lists may show; made once for a model, a view and a kind."""
    first = space.first and kind not in WRITES
    view = replace(space.weights.options, offset=0)
    key = space.sharing(kind), kind, view, first
    return MADE.get(space.weights.cache, key, partial(_prominence, space, kind, view, first))


def _prominence(space: EmbeddingSpace, kind: Kind, view: View, first: bool) -> Prominence:
    if type(space) is not EmbeddingSpace or view not in (STANDARD, STANDARD.expects) or space.note:
        moments = _moments(space, kind)
    else:
        side = "writing" if kind in WRITES else view.reading
        name = f"prominence-{kind}-{side}{'-first' * first}"
        moments = keep(space.weights, name, lambda: _moments(space, kind))
    root = moments["root"].to(space.weights.device)
    listed = space.whole(kind).count(space.list_ids(None))
    largest = float(root.norm(dim=0).max()) if root.numel() else 1.0
    return Prominence(space, kind, moments["centre"], Coordinates(root, largest), listed)


def _moments(space: EmbeddingSpace, kind: Kind) -> dict[str, Tensor]:
    whole = space.whole(kind)
    mean = space.mean(whole)
    own, _ = chart(whole, space.list_ids(None))
    assert own.L is not None
    centre = mean if whole.P is None else whole.P.to(mean) @ mean
    return {"centre": centre, "root": own.L.float()}
