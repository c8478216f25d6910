"""Products of embeddings, summed over the vocabulary: the d×d matrices that stand for e columns.

All that asks how two sides are related, or how a side's columns are spread, needs no more of them
than E Eᵀ, or E C Eᵀ with C = I − 11ᵀ/e, which takes away the mean over the tokens. The sums are
float64: what is made of them (roots, inverses, correlations) divides by their small eigenvalues.
Where d is in the thousands they lie in files (`lexray.scratch`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.fold import at_least_float32
from lexray.progress import track
from lexray.scratch import empty_rows, is_held, join_rows
from lexray.space.side import LONG, Side
from lexray.space.topk.arithmetic import has_float64

RANK_TOLERANCE = 1e-12
"""The least eigenvalue of E Eᵀ that is inverted, as a share of the largest."""
AT_ONCE = 512
"""Rows of a d×d matrix that are multiplied together."""


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
    like = exactly(a.rows[:0])
    widths = a.rows.shape[1], b.rows.shape[1]
    total = empty_rows(widths, like).zero_()
    sums = [like.new_zeros(width) for width in widths]
    for x, y in _pairs_of_blocks(a, b, among):
        total.addmm_(x.T, y)
        sums[0] += x.sum(0)
        sums[1] += y.sum(0)
    if centred:
        total.addr_(*sums, alpha=-1 / max(1, a.count(among[0])))
    if a.P is not None:
        total = multiply(a.P, total)
    return total if b.P is None else multiply(b.P, total.T).T


def multiply(A: Float[Tensor, "n d"], M: Float[Tensor, "d m"]) -> Float[Tensor, "n m"]:
    """A M in M's precision, some rows at a time: what is large lies in a file."""
    return join_rows(len(A), (rows.to(M) @ M for rows in torch.split(A, AT_ONCE)))


def _pairs_of_blocks(
    a: Side, b: Side, among: tuple[Places, Places]
) -> Iterator[tuple[Float[Tensor, "n d_a"], Float[Tensor, "n d_b"]]]:
    """Columns of the same tokens in float64, some at a time; a side with itself is read once."""
    same = a is b and among[0] is among[1]
    step = a.rows_at_once if same else min(a.rows_at_once, b.rows_at_once)
    ours = a.blocks(among[0], step)
    pairs = ((x, x) for x in ours) if same else zip(ours, b.blocks(among[1], step), strict=True)
    for x, y in _track_long(pairs, a, among[0], step):
        exact = exactly(x)
        yield exact, exact if same else exactly(y)


def _track_long(
    pairs: Iterable[tuple[Tensor, Tensor]], side: Side, among: Places, step: int
) -> Iterable[tuple[Tensor, Tensor]]:
    """Progress, where there are more than some seconds of it."""
    n = side.count(among)
    if n * side.rows.shape[1] ** 2 < LONG:
        return pairs
    return track(pairs, -(-n // step), "how tokens vary among each other")


def root(own: Float[Tensor, "d d"]) -> tuple[Float[Tensor, "d r"], Float[Tensor, "r"]]:
    """L with L Lᵀ = E C Eᵀ and as many columns as that has rank, and its eigenvalues λ: L⁺ is
    (L / λ)ᵀ. What is given is written over."""
    try:
        values, vectors = _decompose(own)
    except RuntimeError as error:  # torch's own kind has no public type
        if "converge" not in str(error):
            raise
        raise LexrayError(
            "these vectors differ too much in size to be compared by their correlation "
            f"({str(error)[:100]}); leave out those that are damaged"
        ) from error
    least = RANK_TOLERANCE * values.max().clamp(min=1e-300)
    first = len(values) - int((values > least).sum())  # they ascend
    values = values[first:]
    return vectors[:, first:].mul_(values.sqrt()), values


def _decompose(own: Float[Tensor, "d d"]) -> tuple[Float[Tensor, "d"], Float[Tensor, "d d"]]:
    """Eigenvalues, which ascend, and eigenvectors. Where these are large, by a way that needs no
    more room than both: torch's takes four times as much."""
    if own.device.type != "cpu" or is_held(own.nbytes):
        values, vectors = torch.linalg.eigh(own)
        return values, vectors
    import scipy.linalg  # which starts slowly

    M = own.T.numpy() if own.is_contiguous() else own.numpy()  # symmetric; LAPACK's order
    try:
        found = scipy.linalg.eigh(M, overwrite_a=True, check_finite=False, driver="evr")
    except scipy.linalg.LinAlgError as error:
        raise RuntimeError(f"did not converge: {error}") from error
    values, vectors = map(torch.from_numpy, found)
    return values, vectors


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
    mean, n = torch.zeros(d).double(), 0
    second = empty_rows((d, d), mean).zero_()
    for block in vectors:
        exact = exactly(block)
        second, mean = second.to(exact.device), mean.to(exact.device)
        second.addmm_(exact.T, exact)
        mean += exact.sum(0)
        n += len(block)
    return mean / max(1, n), second.div_(max(1, n))
