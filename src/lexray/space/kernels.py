"""Products of embeddings, summed over the vocabulary: the d×d matrices that stand for e columns.

All that asks how two sides are related, or how a side's columns are spread, needs no more of them
than E Eᵀ, or E C Eᵀ with C = I − 11ᵀ/e, which takes away the mean over the tokens. The sums are
float64: what is made of them (roots, inverses, correlations) divides by their small eigenvalues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.fold import at_least_float32
from lexray.space.side import Side
from lexray.space.topk.arithmetic import has_float64

RANK_TOLERANCE = 1e-12
"""The least eigenvalue of E Eᵀ that is inverted, as a share of the largest."""


def exactly(X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """float64, on the CPU where the device has none."""
    return (X if has_float64(X.device) else X.cpu()).double()


Places = Int[Tensor, "some"] | None
"""The places of those columns of a side that count; None: all do."""


def gram(
    a: Side, b: Side, *, centred: bool = False, among: tuple[Places, Places] = (None, None)
) -> Float[Tensor, "d_a d_b"]:
    """E Fᵀ = Σ_j a_j b_jᵀ over the tokens in float64; `centred`: E C Fᵀ, their covariance times e.

    The two sides may be of different models, as long as their tokens are the same, one by one:
    those `among` each side's, if these are given.
    P is applied to the sum: applied to the columns, in float32, it would fill directions that the
    embedding does not have with noise.
    """
    place = exactly(a.rows[:0]).device
    widths = [side.rows.shape[1] for side in (a, b)]
    total = torch.zeros(widths, dtype=torch.float64, device=place)
    sums = [torch.zeros(width, dtype=torch.float64, device=place) for width in widths]
    for x, y in _pairs_of_blocks(a, b, among):
        total.addmm_(x.T, y)
        sums[0] += x.sum(0)
        sums[1] += y.sum(0)
    if centred:
        total -= torch.outer(*sums) / a.count(among[0])
    if a.P is not None:
        total = a.P.to(total) @ total
    return total if b.P is None else total @ b.P.to(total).T


def _pairs_of_blocks(
    a: Side, b: Side, among: tuple[Places, Places]
) -> Iterator[tuple[Float[Tensor, "n d_a"], Float[Tensor, "n d_b"]]]:
    """Columns of the same tokens in float64, some at a time; a side with itself is read once."""
    if a is b and among[0] is among[1]:
        yield from ((x, x) for x in map(exactly, a.blocks(among[0])))
    else:
        for x, y in zip(a.blocks(among[0]), b.blocks(among[1]), strict=True):
            yield exactly(x), exactly(y)


def root(own: Float[Tensor, "d d"]) -> tuple[Float[Tensor, "d r"], Float[Tensor, "r d"]]:
    """L with L Lᵀ = E C Eᵀ and as many columns as that has rank, and L⁺."""
    try:
        values, vectors = torch.linalg.eigh(own)
    except RuntimeError as error:  # torch's own kind has no public type
        if "converge" not in str(error):
            raise
        raise LexrayError(
            "these vectors differ too much in size to be compared by their correlation "
            f"({str(error)[:100]}); leave out those that are damaged"
        ) from error
    kept = values > RANK_TOLERANCE * values.max().clamp(min=1e-300)
    roots, vectors = values[kept].sqrt(), vectors[:, kept]
    return vectors * roots, (vectors / roots).T


def invert(side: Side, tokens: Int[Tensor, "some"] | None = None) -> Side:
    """The side of the pseudo-inverse: columns of (E Eᵀ)⁺ E, E the columns of these tokens."""
    own = gram(side, side, among=(tokens, tokens))
    inverse = torch.linalg.pinv(own, hermitian=True, rtol=RANK_TOLERANCE)
    P = inverse if side.P is None else inverse @ side.P.to(inverse)
    return replace(side, P=P.to(at_least_float32(side.rows[:0]).dtype).to(side.rows.device))


def moments(
    d: int, vectors: Iterable[Float[Tensor, "_ d_model"]]
) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
    """The mean of vectors of so many dimensions and XᵀX / N in float64, over blocks of them."""
    second, mean, n = torch.zeros(d, d).double(), torch.zeros(d).double(), 0
    for block in vectors:
        exact = exactly(block)
        second, mean = second.to(exact.device), mean.to(exact.device)
        second.addmm_(exact.T, exact)
        mean += exact.sum(0)
        n += len(block)
    return mean / max(1, n), second / max(1, n)
