"""Which cheap product to look at first, if any: bytes (`rough`), leading directions (`leading`).

Heads of 64 coordinates are multiplied in bytes where the processor has products of bytes: a third
of the time on flat spectra. Of wide heads a sample of the work tells how many leading directions
are enough.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.space.topk.bounds import Bound, NormTerms
from lexray.space.topk.leading import Leading, leading
from lexray.space.topk.operands import Operands, least
from lexray.space.topk.rough import Rough, rough
from lexray.space.topk.whole_products import WholeProducts, multiply_whole, whole_products

SEGMENT = 64
WIDE = 96
"""Coordinates from which on fewer of them are worth a try."""
_STEPS, _SMALL_STEPS = 8, 16
"""Widths are looked at in such parts of all coordinates; in smaller ones when that is done again.
"""
_LOOK, _LOOK_AT_BYTES = 5.0, 20.0
"""What looking at an entry costs, in units of an entry's product of width 1; the same of bytes."""
_HIT = 150.0
"""An entry that passes, for each coordinate; one of a segment in which one does."""
_WORTH = 0.9
_BINS, _ROWS = 6, 128


def choose_sieve(
    norms: NormTerms,
    bound: Bound,
    threshold: float,
    *,
    absolute: bool,
    first: int = 0,
    now: Operands | None = None,
) -> Operands | None:
    """What promises the least work in the bins from `first` on; None where that is the product
    itself. A search that has a sieve (`now`) may ask again when its threshold has risen: fewer
    coordinates may do then. Bounds on |a·b| from leading directions would take two products."""
    assert norms.balanced
    A = norms.balanced.P.X
    r, whole = A.shape[1], whole_products(A.device, A.shape[1])
    if r < WIDE or absolute:
        return now or (rough(norms, r, whole, centred=not absolute) if whole else None)
    some = list(_sample(bound, threshold, first))
    best, cost = now, _WORTH * (r + _LOOK if now is None else sum(_cost(now, some, threshold, r)))
    for width in _widths(r, whole, now):
        way: Operands = leading(norms, width)
        if whole:
            way = rough(norms, width, whole, centred=True)
        each, passing = _cost(way, some, threshold, r)
        if passing > cost:
            break
        if each + passing < cost:
            best, cost = way, each + passing
    return best


def _widths(r: int, whole: WholeProducts | None, now: Operands | None) -> Sequence[int]:
    """Fewer and fewer coordinates: all of them first, which in bytes are cheaper, too."""
    step = max(1, r // (_SMALL_STEPS if now else _STEPS))
    most = now.width - 1 if isinstance(now, Rough | Leading) else r if whole else r - 1
    return range(most // step * step, 0, -step)


def _cost(
    way: Operands,
    sample: list[tuple[Int[Tensor, " some"], Int[Tensor, " bin"], int]],
    threshold: float,
    r: int,
) -> tuple[float, float]:
    """What an entry costs by itself, and its share of those that pass."""
    assert isinstance(way, Rough | Leading)
    each = way.width + 1 + _LOOK
    if isinstance(way, Rough):
        each = way.products.cost * way.width + _LOOK_AT_BYTES
    return each, _passing(way, sample, threshold, r)


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
    """a·bᵀ, bytes or not; in the memory of `out` if that can be said."""
    if a.is_floating_point():
        return torch.mm(a, b.T, out=out)
    return multiply_whole(a, b, out)


def _sample(
    bound: Bound, threshold: float, first: int
) -> Iterator[tuple[Int[Tensor, " some"], Int[Tensor, " bin"], int]]:
    """Rows and columns of some bins, and how many rows these stand for."""
    for index in range(first, len(bound.bins), max(1, (len(bound.bins) - first) // _BINS)):
        rows = bound.rows[bound.active(index, threshold)]
        if len(rows):
            yield rows[:: max(1, len(rows) // _ROWS)], bound.bins[index], len(rows)


def segment(cols: int) -> int:
    """How many columns are looked at together: an even part of them."""
    return math.gcd(cols, SEGMENT)
