"""A sieve for products whose bounds rule out little: a narrow product that is itself a bound.

In the balanced basis of `basis`, directions in the order of what they carry, P = A·TA, Q = B·TB,

    a·b = p·q ≤ p₁·q₁ + ‖p₂‖·‖q₂‖,    p₁ the first h coordinates, p₂ the others,

which is one product of width h + 1: the sizes of the rests are one more coordinate. Only the
entries that reach the threshold in it are multiplied whole. With γ and the basis's slack and
residue (see there), what was computed errs by at most 4·slack + 4·slack² + residue + γ, relative
to ‖p‖‖q‖.

It pays where heads are wide: four heads of SmolLM2 side by side (256 coordinates) take 0.6 of the
time; those of 64 coordinates none less, as looking at the bounds costs what the product saves.
Intersecting the two bounds of `bounds`, and cones around clusters of columns, ruled out no more.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.space.topk.arithmetic import rounding
from lexray.space.topk.basis import Basis, projected_norms
from lexray.space.topk.bounds import Bound, NormTerms

SEGMENT = 64
_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8)
_MAXIMUM, _HIT, _SEGMENT_HIT = (10, 25), 60, 60
"""What the rest costs, in units of an entry's product of width 1: looking for the maxima, of rows
and of segments; an entry that passes, for each coordinate; one of a segment in which one does."""
_WORTH = 0.8
_BINS, _ROWS = 8, 128


class Leading(NamedTuple):
    """Leading coordinates and the size of the rest, of the rows of both factors."""

    A: Float[Tensor, "rows h1"]
    B: Float[Tensor, "cols h1"]
    row_sizes: Float[Tensor, " rows"]
    col_sizes: Float[Tensor, " cols"]
    slack: float
    """What a computed bound may lack, relative to the sizes of its row and its column."""

    def rows(self, index: Int[Tensor, " some"]) -> tuple[Tensor, Tensor]:
        """What is multiplied, and the sizes that its error is relative to."""
        return self.A.index_select(0, index), self.row_sizes.index_select(0, index)

    def cols(self, index: Int[Tensor, " bin"]) -> tuple[Tensor, float]:
        """What is multiplied, and the largest error, relative to the rows' sizes."""
        return self.B.index_select(0, index), self.slack * self.col_sizes[index].amax().item()


def leading(
    A: Float[Tensor, "rows r"],
    B: Float[Tensor, "cols r"],
    norms: NormTerms,
    bound: Bound,
    threshold: float,
) -> Leading | None:
    """The sieve of the width that promises the least work; None where none pays."""
    assert norms.basis is not None
    basis = norms.basis.reversed()
    slack = error_of(basis)
    width = _cheapest(A, B, basis, norms, slack, bound, threshold)
    if width is None:
        return None
    return Leading(
        _coordinates(A, basis.TA, width),
        _coordinates(B, basis.TB, width),
        norms.rows,
        norms.cols,
        slack,
    )


def error_of(basis: Basis) -> float:
    width = basis.TA.shape[0]
    return 4 * basis.slack + 4 * basis.slack**2 + basis.residue + 4 * rounding(width + 1)


def _coordinates(
    X: Float[Tensor, "n r"], T: Float[Tensor, "r r"], width: int
) -> Float[Tensor, "n h1"]:
    found = torch.empty(len(X), width + 1, device=X.device)
    torch.mm(X, T[:, :width].contiguous(), out=found[:, :width])
    found[:, width] = projected_norms(X, T[:, width:].contiguous())
    return found


def _cheapest(
    A: Float[Tensor, "rows r"],
    B: Float[Tensor, "cols r"],
    basis: Basis,
    norms: NormTerms,
    slack: float,
    bound: Bound,
    threshold: float,
) -> int | None:
    """The number of leading coordinates for which a sample of the work is done soonest."""
    r = A.shape[1]
    cost = dict.fromkeys(sorted({max(1, round(share * r)) for share in _SHARES} - {r}), 0.0)
    weight = 0
    for rows, cols, active in _sample(bound, threshold):
        P, Q = A[rows] @ basis.TA, B[cols] @ basis.TB
        reach = threshold - slack * norms.rows[rows] * norms.cols[cols].amax()
        for h in cost:
            rest = torch.outer(P[:, h:].norm(dim=1), Q[:, h:].norm(dim=1))
            passing = torch.addmm(rest, P[:, :h], Q[:, :h].T) >= reach[:, None]
            some = passing.view(len(rows), -1, segment(len(cols))).any(2)
            share, segments = float(passing.float().mean()), float(some.float().mean())
            each = h + 1 + _MAXIMUM[1] + _HIT * r * share + _SEGMENT_HIT * segments
            cost[h] += active * len(cols) * each
        weight += active * len(cols)
    if not weight or not cost:
        return None
    best = min(cost, key=lambda h: cost[h])
    return best if cost[best] < _WORTH * weight * (r + _MAXIMUM[0]) else None


def _sample(
    bound: Bound, threshold: float
) -> list[tuple[Int[Tensor, " some"], Int[Tensor, " bin"], int]]:
    """Rows and columns of some bins, and how many rows these stand for."""
    found = []
    for index in range(0, len(bound.bins), max(1, len(bound.bins) // _BINS)):
        rows = bound.rows[bound.active(index, threshold)]
        if len(rows):
            some = rows[:: max(1, len(rows) // _ROWS)]
            found.append((some, bound.bins[index], len(rows)))
    return found


def segment(cols: int) -> int:
    """How many columns are looked at together: an even part of them."""
    return math.gcd(cols, SEGMENT)
