"""Which cheap product to look at first, if any: bytes (`rough`), leading directions (`leading`).

Heads of 64 coordinates are multiplied in bytes where the processor has products of bytes: a third
of the time on flat spectra. Of wide heads a sample of the work tells how many leading directions
are enough.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.space.topk.bounds import Bound, NormTerms
from lexray.space.topk.leading import leading
from lexray.space.topk.operands import Operands, least
from lexray.space.topk.rough import has_byte_products, multiply_bytes, rough

SEGMENT = 64
WIDE = 96
"""Coordinates from which on fewer of them are worth a try."""
_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)
_LOOK, _LOOK_AT_BYTES, _BYTE = 5.0, 8.0, 0.22
"""What looking at an entry costs, in units of an entry's product of width 1; the same of bytes;
what a byte's product of width 1 costs."""
_HIT = 60.0
"""An entry that passes, for each coordinate; one of a segment in which one does."""
_WORTH = 0.9
_BINS, _ROWS = 6, 128


def choose_sieve(
    A: Float[Tensor, "rows r"],
    B: Float[Tensor, "cols r"],
    norms: NormTerms,
    bound: Bound,
    threshold: float,
    *,
    absolute: bool,
) -> Operands | None:
    """What promises the least work; None where that is the product itself. Bounds on |a·b| from
    leading directions would take two products."""
    r, in_bytes = A.shape[1], has_byte_products(A.device)
    if r < WIDE or absolute:
        return rough(A, B, norms, r, centred=not absolute) if in_bytes else None
    best, cost = None, _WORTH * (r + _LOOK)
    sample = list(_sample(bound, threshold))
    for width in sorted(
        {max(1, round(share * r)) for share in _SHARES} | ({r} if in_bytes else set())
    ):
        way = rough(A, B, norms, width, centred=True) if in_bytes else leading(A, B, norms, width)
        each = _BYTE * width + _LOOK_AT_BYTES if in_bytes else width + 1 + _LOOK
        if each < cost and (each := each + _passing(way, sample, threshold, r)) < cost:
            best, cost = way, each
    return best


def _passing(
    way: Operands,
    sample: list[tuple[Int[Tensor, " some"], Int[Tensor, " bin"], int]],
    threshold: float,
    r: int,
) -> float:
    """What an entry's share of those that pass costs, on the mean over the sample."""
    cost, weight = 0.0, 0
    for index, bin_cols, active in sample:
        rows, cols = way.rows(index), way.bins([bin_cols])(0)
        product = multiply(rows.matrix, cols.matrix, torch.empty(len(index), len(bin_cols)))
        passing = product >= least(rows, cols, threshold)[:, None]
        some = passing.view(len(index), -1, segment(len(bin_cols))).any(2).float().mean()
        again = (passing.sum(1) * _HIT).clamp(max=len(bin_cols)).float().mean() * r
        cost += active * (float(again) + _HIT * len(bin_cols) * float(some))
        weight += active * len(bin_cols)
    return cost / max(1, weight)


def multiply(a: Tensor, b: Tensor, out: Float[Tensor, "rows cols"]) -> Tensor:
    """a·bᵀ in the memory of `out`, bytes or not."""
    if a.dtype == torch.int8:
        return multiply_bytes(a, b, out)
    return torch.mm(a, b.T, out=out)


def _sample(
    bound: Bound, threshold: float
) -> Iterator[tuple[Int[Tensor, " some"], Int[Tensor, " bin"], int]]:
    """Rows and columns of some bins, and how many rows these stand for."""
    for index in range(0, len(bound.bins), max(1, len(bound.bins) // _BINS)):
        rows = bound.rows[bound.active(index, threshold)]
        if len(rows):
            yield rows[:: max(1, len(rows) // _ROWS)], bound.bins[index], len(rows)


def segment(cols: int) -> int:
    """How many columns are looked at together: an even part of them."""
    return math.gcd(cols, SEGMENT)
