"""A first pass in whole numbers of eight bits, for products whose bounds rule out little.

Processors multiply these two to four times as fast as float32 (`whole_products`). With the
coordinates P = A·TA, Q = B·TB of `leading`, which are bounded as the pairs are, the columns less
their mean m, and both rounded to bytes,

    p·q = p·m + p·(q − m),    p = s·x + e,    q − m = t·y + g,    x, y whole,

    |p·(q − m) − s·t·(x·y)| ≤ ‖e‖‖q − m‖ + ‖s·x‖‖g‖,

and x·y is exact. s is a row's own unit, t that of a bin of columns, whose sizes are alike. The
norms of e and g are those of the rounding that took place, widened by the error of computing them;
only entries that can reach the threshold are multiplied again in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.scratch import join_rows
from lexray.space.topk.arithmetic import rounding, row_norms
from lexray.space.topk.basis import Balanced, sampled
from lexray.space.topk.bounds import NormTerms
from lexray.space.topk.leading import CHUNK_ROWS, error_of
from lexray.space.topk.operands import Cols, LeftRows
from lexray.space.topk.whole_products import MOST, WholeProducts

_LEAST_UNIT = 2.0**-90
_UNITS = 16 * 2.0**-24
"""What rounding takes off a computed difference, relative to what it is taken from."""


class Rough(NamedTuple):
    """Both factors' coordinates, rounded to bytes when they are asked for."""

    both: Balanced
    norms: NormTerms
    width: int
    """How many leading coordinates are kept; the size of the rest is one more."""
    middle: Float[Tensor, " h"]
    """What is taken off every column."""
    products: WholeProducts
    exact: bool = False

    def rows(self, index: Int[Tensor, " some"]) -> LeftRows:
        known: list[tuple[Tensor, Tensor, Tensor]] = []

        def each_part() -> Iterator[Tensor]:
            for some in torch.split(index, CHUNK_ROWS):
                matrix, *rest = self._rows(some)
                known.append((rest[0], rest[1], rest[2]))
                yield matrix

        matrix = join_rows(len(index), each_part())
        sizes, base, units = (torch.cat(part) for part in zip(*known, strict=True))
        return LeftRows(matrix, sizes, base, units)

    def _rows(self, index: Int[Tensor, " some"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bytes, sizes, base and units of so many."""
        P = self.both.P.take(index, self.width)
        base, size = P @ self.middle, row_norms(P)
        most = self.products.most
        units = torch.maximum(P.amax(1), -P.amin(1)).div_(most).clamp_(min=_LEAST_UNIT)
        x = (P / units[:, None]).round_().clamp_(-most, most)
        error = row_norms(P.addcmul_(x, units[:, None], value=-1)) + _UNITS * size
        sizes = torch.stack([self.norms.rows[index], error, size + error], 1)
        return self.products.rows(x), sizes, base, units

    def bins(self, bins: Sequence[Int[Tensor, " bin"]]) -> Callable[[int], Cols]:
        """Several bins are rounded at once; all of them would be a third factor."""
        held: dict[int, Cols] = {}

        def give(place: int) -> Cols:
            if place not in held:
                held.clear()
                some = _some(bins, place)
                held.update(enumerate(self._cols(some), place))
            return held[place]

        return give

    def _cols(self, bins: Sequence[Int[Tensor, " bin"]]) -> list[Cols]:
        index, lengths = torch.cat(list(bins)), torch.tensor([len(some) for some in bins])
        Q = self.both.Q.take(index, self.width) - self.middle
        most = _largest(torch.maximum(Q.amax(1), -Q.amin(1)), lengths)
        units = (most / MOST).clamp_(min=_LEAST_UNIT)
        each = units.repeat_interleave(lengths)[:, None]
        sizes = _largest(row_norms(Q), lengths)
        y = (Q / each).round_().clamp_(-MOST, MOST)
        errors = _largest(row_norms(Q.addcmul_(y, each, value=-1)), lengths) + _UNITS * sizes
        sums = 2 * rounding(Q.shape[1]) * (sizes + self.middle.norm())
        drift = error_of(self.both.basis) * _largest(self.norms.cols[index], lengths)
        terms = torch.stack([drift, sizes, errors + sums], 1).tolist()
        parts = torch.split(y, lengths.tolist())
        return [
            Cols(self.products.cols(part), tuple(some), unit)
            for part, some, unit in zip(parts, terms, units.tolist(), strict=True)
        ]


def _some(bins: Sequence[Int[Tensor, " _"]], first: int) -> list[Int[Tensor, " _"]]:
    """Bins from the first on, of some thousand columns together."""
    taken = [bins[first]]
    for index in bins[first + 1 :]:
        if sum(map(len, taken)) + len(index) > CHUNK_ROWS:
            break
        taken.append(index)
    return taken


def _largest(X: Float[Tensor, " n"], lengths: Int[Tensor, " bins"]) -> Float[Tensor, " bins"]:
    """The largest of each bin."""
    largest: Tensor = torch.segment_reduce(X, "max", lengths=lengths)
    return largest


def rough(norms: NormTerms, width: int, products: WholeProducts, *, centred: bool) -> Rough:
    """Bytes of the leading `width` coordinates; `centred` where columns are read less their mean
    (a bound on |a·b| has no sign to centre)."""
    both = norms.balanced
    assert both
    some = both.Q.take(sampled(both.Q.X), width)
    middle = some.mean(0) if centred else torch.zeros_like(some[0])
    return Rough(both, norms, width, middle, products)
