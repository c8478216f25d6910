"""A sieve for products whose bounds rule out little: a narrow product that is itself a bound.

In the balanced basis of `basis`, directions in the order of what they carry, P = A·TA, Q = B·TB,

    a·b = p·q ≤ p₁·q₁ + ‖p₂‖·‖q₂‖,    p₁ the first h coordinates, p₂ the others,

which is one product of width h + 1: the sizes of the rests are one more coordinate. Only the
entries that reach the threshold in it are multiplied whole. With γ and the basis's slack and
residue (see there), what was computed errs by at most 4·slack + 4·slack² + residue + γ, relative
to ‖p‖‖q‖. With all coordinates the product is the pairs' own, up to that error, in both signs.

Intersecting the two bounds of `bounds`, and cones around clusters of columns, ruled out no more.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from lexray.scratch import join_rows
from lexray.space.topk.arithmetic import rounding
from lexray.space.topk.basis import Balanced, Basis
from lexray.space.topk.bounds import NormTerms
from lexray.space.topk.operands import Cols, LeftRows

CHUNK_ROWS = 8192
"""Rows whose coordinates are made at once."""


class Leading(NamedTuple):
    """Leading coordinates and the size of the rest, of the rows of both factors."""

    both: Balanced
    norms: NormTerms
    width: int
    exact: bool = False

    def rows(self, index: Int[Tensor, " some"]) -> LeftRows:
        P = (self.both.P.take(some, self.width) for some in torch.split(index, CHUNK_ROWS))
        return LeftRows(join_rows(len(index), P), self.norms.rows[index, None])

    def bins(self, bins: Sequence[Int[Tensor, " bin"]]) -> Callable[[int], Cols]:
        return lambda place: self._cols(bins[place])

    def _cols(self, index: Int[Tensor, " bin"]) -> Cols:
        Q = self.both.Q.take(index, self.width)
        return Cols(Q, (error_of(self.both.basis) * self.norms.cols[index].amax().item(),))


def leading(norms: NormTerms, width: int) -> Leading:
    assert norms.balanced
    return Leading(norms.balanced, norms, width)


def error_of(basis: Basis) -> float:
    width = basis.TA.shape[0]
    return 4 * basis.slack + 4 * basis.slack**2 + basis.residue + 4 * rounding(width + 1)
