"""What chance would do: targets shuffled among sources, and q-values over everything tested."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from lexray.errors import LexrayError

SHUFFLES = 1000
FEWEST = 100


def shuffles(n_pairs: int, n: int, seed: int) -> Int[Tensor, "shuffles pairs"]:
    """Which target each source gets, every time."""
    if n < FEWEST:
        raise LexrayError(f"chance from {n} shuffles? at least {FEWEST}, and 1000 is the default")
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, n_pairs, generator=generator).argsort(1)


@dataclass(frozen=True)
class Chance:
    """What a score would be for shuffled targets."""

    mean: float
    """Of the number of hits: exact, over all permutations."""
    variance: float
    reached: int
    """In how many shuffles there were at least as many hits."""


def chance_of(
    rows: Int[Tensor, "hits"],
    cols: Int[Tensor, "hits"],
    observed: int,
    orders: Int[Tensor, "shuffles pairs"],
) -> Chance:
    """For a matrix of hits, given by the places of its ones: source i finds the target of j.

    The mean is Σ h_ij / n, and the variance Σ d_ij² / (n − 1) with d the matrix less the means of
    its rows and columns: both hold for all n! permutations.
    """
    n = orders.shape[1]
    total = len(rows)
    if not total:
        return Chance(0.0, 0.0, len(orders))
    by_row, by_col = (torch.bincount(at, minlength=n).double() for at in (rows, cols))
    squares = total - float(by_row @ by_row + by_col @ by_col) / n + (total / n) ** 2
    counts = (orders[:, rows] == cols).sum(1)
    reached = int((counts >= observed).sum())
    return Chance(total / n, max(0.0, squares) / max(1, n - 1), reached)


def p_values(
    observed: NDArray[np.int64],
    mean: NDArray[np.float64],
    variance: NDArray[np.float64],
    reached: NDArray[np.int64],
    n_pairs: NDArray[np.int64],
    n_shuffles: int,
) -> NDArray[np.float64]:
    """How often chance does as well.

    The share of shuffles that reach the score; where none does, the tail of the binomial (or, if
    the variance is larger than its, the beta-binomial) distribution with the exact mean and
    variance of all permutations, for a thousand shuffles say nothing below 0.001.
    """
    from scipy import stats  # which starts slowly

    counted = (1 + reached) / (1 + n_shuffles)
    n = np.maximum(n_pairs, 2)
    share = np.clip(mean / n, 1e-12, 1 - 1e-12)
    spread = variance / (n * share * (1 - share))
    excess = np.clip((spread - 1) / (n - 1), 0, 1 - 1e-9)
    plain = stats.binom.sf(observed - 1, n, share)
    tail = np.array(plain)
    for at in zip(*np.nonzero((excess > 1e-6) & (reached == 0)), strict=True):
        tail[at] = _wide_tail(int(observed[at]), int(n[at]), float(share[at]), float(excess[at]))
    p = np.where(reached > 0, counted, np.minimum(1 / (1 + n_shuffles), tail))
    return np.where(observed > 0, np.clip(p, 0, 1), 1.0)


def _wide_tail(observed: int, n: int, share: float, excess: float) -> float:
    """The beta-binomial's tail, summed from the far end: 1 − cdf would lose it."""
    from scipy import stats  # which starts slowly

    size = 1 / excess - 1
    k = np.arange(observed, n + 1)
    return float(np.exp(stats.betabinom.logpmf(k, n, share * size, (1 - share) * size)).sum())


def q_values(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Benjamini and Hochberg's: the share of false finds among all at least as good."""
    flat = p.reshape(-1)
    if not flat.size:
        return p.copy()
    order = flat.argsort(kind="stable")
    ranked = flat[order] * flat.size / np.arange(1, flat.size + 1)
    q = np.empty_like(flat)
    q[order] = np.minimum(1, np.minimum.accumulate(ranked[::-1])[::-1])
    return q.reshape(p.shape)


def q_of_some(p: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Benjamini and Hochberg's q for some out of n tested: from above, for what is not known could
    only lower them."""
    order = p.argsort(kind="stable")
    ranked = p[order] * n / np.arange(1, len(p) + 1)
    q = np.empty_like(p)
    q[order] = np.minimum(1, np.minimum.accumulate(ranked[::-1])[::-1])
    return q


def cosine_tail(cosine: NDArray[np.float64], typical: NDArray[np.float64]) -> NDArray[np.float64]:
    """How often two random directions have at least this cosine, of either sign, in a space of so
    many dimensions (1 / typical²) that its root mean square is the typical one."""
    from scipy import stats  # which starts slowly

    rest = np.maximum(1 / np.square(typical) - 1, 1e-9) / 2
    return np.asarray(stats.beta.sf(np.minimum(np.square(cosine), 1), 0.5, rest))


def normal_tail(z: Float[Tensor, "*shape"]) -> NDArray[np.float64]:
    """How often a normal variable is at least so many standard deviations up."""
    from scipy import stats  # which starts slowly

    return np.asarray(stats.norm.sf(z.double().cpu().numpy()))
