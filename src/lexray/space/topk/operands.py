"""What is multiplied in place of token pairs: the factors themselves, or something cheaper.

The scan multiplies rows with a bin of columns and asks what an entry of that product has to reach
for its pair to reach the threshold. Each way of multiplying answers with sizes of its rows and
errors of its columns: entries err by at most sizes · errors.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from lexray.scratch import take_rows
from lexray.space.topk.arithmetic import rounding, row_norms

_SAFE = 1 + 1e-4
"""Covers the rounding of the margins themselves."""
_TINY = 2.0**-20
_FAR = 2.0**30
"""More than any product of bytes."""


class LeftRows(NamedTuple):
    """Rows of the left operand, and what is known of them."""

    matrix: Num[Tensor, "rows h"]
    sizes: Float[Tensor, "rows terms"]
    """What the errors of a bin are relative to."""
    base: Float[Tensor, " rows"] | None = None
    """What is added to every entry of the row, known beforehand."""
    units: Float[Tensor, " rows"] | None = None
    """What 1 in this row's products stands for, with columns in units of their own."""
    at: Int[Tensor, " rows"] | None = None
    """Where these rows lie in the matrix, if it has others too."""

    def take(self, index: slice | Int[Tensor, " some"]) -> "LeftRows":
        """Some of the rows. The matrix of those that are far apart is cut when a run of them is
        taken: all of them together might be a copy of the whole."""
        sizes = _take(self.sizes, index)
        base, units, at = (
            None if part is None else _take(part, index)
            for part in (self.base, self.units, self.at)
        )
        if not isinstance(index, slice):
            return LeftRows(self.matrix, sizes, base, units, index if at is None else at)
        matrix = self.matrix[index] if at is None else take_rows(self.matrix, at)
        return LeftRows(matrix, sizes, base, units)


class Cols(NamedTuple):
    """A bin of columns of the right operand."""

    matrix: Num[Tensor, "..."]
    """Packed, where a way of multiplying has a layout of its own."""
    errors: tuple[float, ...]
    unit: float = 1.0


@runtime_checkable
class Operands(Protocol):
    """A way of multiplying; `exact` where products are the pairs' values up to their errors, not
    bounds that only tell where to look."""

    @property
    def exact(self) -> bool: ...

    def rows(self, index: Int[Tensor, " some"]) -> LeftRows:
        """What is multiplied of these rows."""

    def bins(self, bins: Sequence[Int[Tensor, " bin"]]) -> Callable[[int], Cols]:
        """The columns of each of these bins, by its place among them; asked for in that order."""


def margin(rows: LeftRows, cols: Cols) -> Float[Tensor, " rows"]:
    """By how much products of these rows with the bin may fall short."""
    return rows.sizes @ rows.sizes.new_tensor([_SAFE * error for error in cols.errors])


def least(rows: LeftRows, cols: Cols, threshold: float) -> Num[Tensor, " rows"]:
    """What an entry has to reach, in the product's own dtype, rounded down."""
    reach = (threshold - _TINY * abs(threshold)) - margin(rows, cols)
    if rows.units is None:
        return reach
    if rows.base is not None:
        reach -= rows.base
    reach = (reach / (rows.units * cols.unit)).floor_().clamp_(-_FAR, _FAR)
    return reach.to(torch.int32) if rows.matrix.dtype == torch.int8 else reach


class Whole(NamedTuple):
    """The factors themselves."""

    A: Float[Tensor, "rows r"]
    B: Float[Tensor, "cols r"]
    exact: bool = True

    def rows(self, index: Int[Tensor, " some"]) -> LeftRows:
        A = take_rows(self.A, index)
        return LeftRows(A, row_norms(A)[:, None])

    def bins(self, bins: Sequence[Int[Tensor, " bin"]]) -> Callable[[int], Cols]:
        return lambda place: self.cols(bins[place])

    def cols(self, index: Int[Tensor, " bin"]) -> Cols:
        B = take_rows(self.B, index)
        return Cols(B, (rounding(B.shape[1]) * row_norms(B).amax().item(),))


def _take(part: Tensor, index: slice | Int[Tensor, " some"]) -> Tensor:
    return part[index] if isinstance(index, slice) else part.index_select(0, index)
