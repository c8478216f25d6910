"""A first pass in whole numbers of eight bits, for products whose bounds rule out little.

Processors with dot products of bytes (VNNI) multiply these four times as fast as float32. With the
coordinates P = A·TA, Q = B·TB of `leading`, which are bounded as the pairs are, the columns less
their mean m, and both rounded to bytes,

    p·q = p·m + p·(q − m),    p = s·x + e,    q − m = t·y + g,    x, y ∈ {−127, …, 127},

    |p·(q − m) − s·t·(x·y)| ≤ ‖e‖‖q − m‖ + ‖s·x‖‖g‖,

and x·y is exact. s is a row's own unit, t that of a bin of columns, whose sizes are alike. The
norms of e and g are those of the rounding that took place, widened by the error of computing them;
only entries that can reach the threshold are multiplied again in float32.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor
from torch.nn import functional

from lexray.scratch import join_rows, take_rows
from lexray.space.topk.arithmetic import rounding, row_norms
from lexray.space.topk.basis import Basis, sample
from lexray.space.topk.bounds import NormTerms
from lexray.space.topk.leading import CHUNK_ROWS, coordinates, error_of
from lexray.space.topk.operands import Cols, LeftRows

MOST = 127
_LEAST_UNIT = 2.0**-90
_UNITS = 16 * 2.0**-24
"""What rounding takes off a computed difference, relative to what it is taken from."""


@cache
def has_byte_products(device: torch.device) -> bool:
    """Whether products of bytes are fast here, and whole: without VNNI, partial sums of the usual
    instructions saturate."""
    supported = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    if device.type != "cpu" or not hasattr(torch, "_int_mm") or not supported():
        return False
    x = torch.full((32, 96), MOST, dtype=torch.int8)
    x[::2, ::3] = -MOST
    signs = torch.arange(48)[:, None] % 2 * 2 - 1
    y = (signs * MOST).to(torch.int8).expand(48, 96).contiguous()
    return torch.equal(multiply_bytes(x, y, torch.empty(32, 48)).long(), x.long() @ y.long().T)


def multiply_bytes(
    x: Int8[Tensor, "rows h"], y: Int8[Tensor, "cols h"], out: Float[Tensor, "rows cols"]
) -> Int[Tensor, "rows cols"]:
    """x·yᵀ, in the memory of `out`. Their width is a multiple of 4: of a single column, torch 2.13
    makes zeros."""
    product: Tensor = torch._int_mm(x, y.T, out=out.view(torch.int32))
    return product


class Rough(NamedTuple):
    """Both factors' coordinates, rounded to bytes when they are asked for."""

    A: Float[Tensor, "rows r"]
    B: Float[Tensor, "cols r"]
    norms: NormTerms
    basis: Basis
    width: int
    """How many leading coordinates are kept; the size of the rest is one more."""
    middle: Float[Tensor, " h"]
    """What is taken off every column."""
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
        P = coordinates(take_rows(self.A, index), self.basis.TA, self.width)
        base, size = P @ self.middle, row_norms(P)
        units = torch.maximum(P.amax(1), -P.amin(1)).div_(MOST).clamp_(min=_LEAST_UNIT)
        x = (P / units[:, None]).round_().clamp_(-MOST, MOST)
        error = row_norms(P.addcmul_(x, units[:, None], value=-1)) + _UNITS * size
        sizes = torch.stack([self.norms.rows[index], error, size + error], 1)
        return _bytes(x), sizes, base, units

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
        Q = coordinates(take_rows(self.B, index), self.basis.TB, self.width) - self.middle
        most = _largest(torch.maximum(Q.amax(1), -Q.amin(1)), lengths)
        units = (most / MOST).clamp_(min=_LEAST_UNIT)
        each = units.repeat_interleave(lengths)[:, None]
        sizes = _largest(row_norms(Q), lengths)
        y = (Q / each).round_().clamp_(-MOST, MOST)
        errors = _largest(row_norms(Q.addcmul_(y, each, value=-1)), lengths) + _UNITS * sizes
        sums = 2 * rounding(Q.shape[1]) * (sizes + self.middle.norm())
        drift = error_of(self.basis) * _largest(self.norms.cols[index], lengths)
        terms = torch.stack([drift, sizes, errors + sums], 1).tolist()
        parts = torch.split(_bytes(y), lengths.tolist())
        return [
            Cols(part, tuple(some), unit)
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


def _bytes(X: Float[Tensor, "n h"]) -> Int8[Tensor, "n padded"]:
    return functional.pad(X.to(torch.int8), (0, -X.shape[1] % 4))


def rough(
    A: Float[Tensor, "rows r"],
    B: Float[Tensor, "cols r"],
    norms: NormTerms,
    width: int,
    *,
    centred: bool,
) -> Rough:
    """Bytes of the leading `width` coordinates; `centred` where columns are read less their mean
    (a bound on |a·b| has no sign to centre)."""
    assert norms.basis is not None
    basis = norms.basis.reversed()
    some = coordinates(sample(B), basis.TB, width)
    middle = some.mean(0) if centred else torch.zeros_like(some[0])
    return Rough(A, B, norms, basis, width, middle)
