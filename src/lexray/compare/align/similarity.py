"""How alike each two layers of two models are, and which belongs to which."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Space = Literal["embedding", "feature"]
Pair = tuple[int, int]


def diagonal(layers_a: int, layers_b: int) -> tuple[Pair, ...]:
    """The layers of the same relative depth: first with first, last with last.

    Every layer of the shallower model has one partner, the nearest to its depth.
    """
    short, long = sorted((layers_a, layers_b))
    step = (long - 1) / max(1, short - 1)
    pairs = [(i, int(i * step + 0.5)) for i in range(short)]
    return tuple(pairs if layers_a <= layers_b else [(j, i) for i, j in pairs])


@dataclass(frozen=True, eq=False)
class Similarity:
    """S: the mean absolute correlation between the vectors of two layers, for each two layers."""

    space: Space
    S: Float[NDArray[np.float64], "layers_a layers_b"]
    constant: tuple[int, int] = (0, 0)
    """How many vectors of A and B project to a constant: they correlate with nothing, and are left
    out of the means."""

    @cached_property
    def assignment(self) -> tuple[Pair, ...]:
        """One layer of B for each of A (as many as the shallower has), the sum of S the largest."""
        rows, cols = linear_sum_assignment(self.S, maximize=True)
        return tuple(zip(rows.tolist(), cols.tolist(), strict=True))

    @property
    def diagonal(self) -> tuple[Pair, ...]:
        return diagonal(*self.S.shape)

    @property
    def total(self) -> float:
        """ΣS over the assigned pairs."""
        return sum(float(self.S[pair]) for pair in self.assignment)

    @property
    def share(self) -> float:
        """Of the assigned pairs, how many have the same relative depth."""
        return len(set(self.assignment) & set(self.diagonal)) / len(self.assignment)

    @property
    def chance(self) -> float:
        """The share that a random assignment has on average."""
        return 1 / max(len(self.S), len(self.S.T))

    @property
    def on_diagonal(self) -> float:
        """The mean of S on the diagonal."""
        return float(np.mean([self.S[pair] for pair in self.diagonal]))

    @property
    def off_diagonal(self) -> float:
        """The mean of S elsewhere; 0 where there is no elsewhere."""
        n = self.S.size - len(self.diagonal)
        rest = float(self.S.sum()) - self.on_diagonal * len(self.diagonal)
        return rest / n if n else 0.0

    @property
    def gap(self) -> float:
        """How much more alike layers of the same relative depth are than others, on average."""
        return self.on_diagonal - self.off_diagonal

    def to_dict(self) -> dict[str, Any]:
        return {
            "S": self.S.tolist(),
            "assignment": [list(pair) for pair in self.assignment],
            "total": self.total,
            "diagonal_share": self.share,
            "chance": self.chance,
            "diagonal_mean": self.on_diagonal,
            "off_diagonal_mean": self.off_diagonal,
            "gap": self.gap,
            "constant": list(self.constant),
        }
