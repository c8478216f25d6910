"""Upper bounds on the entries of A·Bᵀ, from which most of the product need not be computed.

With the balanced basis of `basis`, taken from the factors or from the centred factors
a′ = a − μ_a and b′ = b − μ_b:

    norms   a_i·b_j ≤ ‖a_i TA‖·‖b_j TB‖
    means   a_i·b_j ≤ f_i + g_j + ‖a′_i TA‖·‖b′_j TB‖,   f_i = a_i·μ_b,   g_j = μ_a·b_j − μ_a·μ_b

The second helps where the factors have a large common mean and costs more where they do not.
Every term is widened by the rounding error of its own computation (see `arithmetic`), so the
bounds hold for the exact values. Columns are taken in bins; a row is active for a bin when its
bound reaches the threshold. Factors and thresholds are the scaled ones.
"""

import math
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.scratch import each_part
from lexray.space.topk.arithmetic import largest_first, rounding, row_norms, underflow
from lexray.space.topk.basis import Balanced, balanced_basis, projected_norms, sample

_SAFE = 1 + 1e-6
_BINS_PER_SLAB = 3
_COUNTED_BINS = 16
"""How many bins tell what a bound leaves, where rows of every bin have to be looked at."""
_ROWS_WORTH_A_BIN = 256
"""Bins with fewer active rows are joined."""


@runtime_checkable
class Bound(Protocol):
    """What the search asks of a bound, made for a threshold that may rise afterwards."""

    @property
    def rows(self) -> Int[Tensor, " active"]:
        """Rows that can reach the threshold in any bin."""

    @property
    def bins(self) -> list[Int[Tensor, " bin"]]:
        """Columns in bins, the most promising first."""

    def active(self, bin_index: int, threshold: float) -> slice | Int[Tensor, " active"]:
        """Which of `rows` can reach the threshold in a bin."""

    def work(self, threshold: float) -> int:
        """About how many entries have to be multiplied if the threshold does not rise."""

    def limit(self, bin_index: int) -> float:
        """What no entry of this bin or a later one exceeds."""


class NormTerms(NamedTuple):
    """‖a_i TA‖ and ‖b_j TB‖, from above."""

    rows: Float[Tensor, " rows"]
    cols: Float[Tensor, " cols"]
    tiny: float
    balanced: Balanced | None = None
    """None: the norms are the plain ones."""

    def corner(self, side: int) -> tuple[Int[Tensor, " rows"], Int[Tensor, " cols"]]:
        """The rows and columns with the largest norms."""
        return _largest(self.rows, side), _largest(self.cols, side)


def norm_terms(A: Float[Tensor, "rows r"], B: Float[Tensor, "cols r"]) -> NormTerms:
    both = Balanced.of(A, B)
    widen = (1 + 2 * both.basis.slack) * (1 + both.basis.residue) * _SAFE
    return NormTerms(both.P.norms * widen, both.Q.norms * widen, underflow(A.shape[1]), both)


def plain_terms(A: Float[Tensor, "rows r"], B: Float[Tensor, "cols r"]) -> NormTerms:
    """‖a_i‖ and ‖b_j‖ themselves, which cost next to nothing."""
    return NormTerms(row_norms(A) * _SAFE, row_norms(B) * _SAFE, underflow(A.shape[1]))


class NormBound:
    """Rows and columns sorted by norm: the active rows of a bin are the first few."""

    def __init__(self, terms: NormTerms, bin_size: int, threshold: float) -> None:
        self._tiny = terms.tiny
        self.rows = self._reaching(terms.rows, terms.cols, threshold)
        cols = self._reaching(terms.cols, terms.rows, threshold)
        self._ascending = terms.rows[self.rows].cpu().double().flip(0)
        sizes = _growing_sizes(len(cols), bin_size)
        norms = terms.cols[cols].cpu().double()
        self._bin_norms = _firsts(norms, sizes)
        sizes = _merge(sizes, self._count(threshold), bin_size * _ROWS_WORTH_A_BIN)
        self._bin_norms = _firsts(norms, sizes)
        self.bins = list(torch.split(cols, sizes))
        self._counted: tuple[float, list[int]] = threshold, self._count(threshold)

    def _reaching(
        self, norms: Float[Tensor, " n"], partners: Float[Tensor, " m"], threshold: float
    ) -> Int[Tensor, " active"]:
        """Indices that reach the threshold with the best partner, largest norm first."""
        least = self._least_norm(partners.amax().item(), threshold)
        places = (norms >= least).nonzero()[:, 0]
        return places[largest_first(norms[places])]

    def _least_norm(self, partner: float, threshold: float) -> float:
        return max(0.0, threshold - self._tiny) / partner / _SAFE

    def _count(self, threshold: float) -> list[int]:
        """The active rows of every bin."""
        least = max(0.0, threshold - self._tiny) / self._bin_norms / _SAFE
        below = torch.searchsorted(self._ascending, least)
        return (len(self._ascending) - below).tolist()

    def active(self, bin_index: int, threshold: float) -> slice:
        if threshold != self._counted[0]:
            self._counted = threshold, self._count(threshold)
        return slice(0, self._counted[1][bin_index])

    def work(self, threshold: float) -> int:
        sizes = (len(cols) for cols in self.bins)
        return sum(n * size for n, size in zip(self._count(threshold), sizes, strict=True))

    def limit(self, bin_index: int) -> float:
        return float(self._ascending[-1] * self._bin_norms[bin_index]) * _SAFE + self._tiny


def _growing_sizes(count: int, largest: int) -> list[int]:
    """Sizes of bins that hold `count` columns: small where the norms fall steeply, then equal."""
    sizes: list[int] = []
    while (left := count - sum(sizes)) > 0:
        sizes.append(min(left, largest, max(sum(sizes), largest // 16, 1)))
    return sizes


def _firsts(norms: Float[Tensor, " cols"], sizes: list[int]) -> Float[Tensor, " bins"]:
    """The largest norm of every bin, which is its first."""
    starts = torch.tensor([0, *sizes[:-1]], dtype=torch.long).cumsum(0)
    return norms[starts[: len(sizes)]]


def _merge(sizes: list[int], counts: list[int], entries: int) -> list[int]:
    """Neighbours joined where their rows are few: as many entries at a time, in fewer steps."""
    merged: list[int] = []
    first = 0
    for size, count in zip(sizes, counts, strict=True):
        if merged and first * (merged[-1] + size) <= entries:
            merged[-1] += size
        else:
            merged.append(size)
            first = count
    return merged


class Extent(NamedTuple):
    """What a bin's columns have in common: their largest norm and the range of g."""

    norm: float
    low: float
    high: float


class MeanSide(NamedTuple):
    """The terms of one side: f (or g), its rounding error, and the centred norms."""

    along: Float[Tensor, " n"]
    error: Float[Tensor, " n"]
    norms: Float[Tensor, " n"]

    def take(self, index: Int[Tensor, " m"]) -> "MeanSide":
        return MeanSide(self.along[index], self.error[index], self.norms[index])

    def extent(self) -> Extent:
        return Extent(
            self.norms.amax().item(),
            (self.along - self.error).amin().item(),
            (self.along + self.error).amax().item(),
        )

    def promise(self, partner: float, absolute: bool) -> Float[Tensor, " n"]:
        """The bound with a partner of that norm, short of the partner's own mean term."""
        along = self.along.abs() if absolute else self.along
        return along + self.norms * partner


class MeanTerms(NamedTuple):
    """Both sides of the bound by means."""

    rows: MeanSide
    cols: MeanSide
    tiny: float
    absolute: bool

    def corner(self, side: int) -> tuple[Int[Tensor, " rows"], Int[Tensor, " cols"]]:
        """The rows and columns that do best with an average partner."""
        rows = self.rows.promise(self.cols.norms.mean().item(), self.absolute)
        cols = self.cols.promise(self.rows.norms.mean().item(), self.absolute)
        return _largest(rows, side), _largest(cols, side)


def mean_terms(
    A: Float[Tensor, "rows r"], B: Float[Tensor, "cols r"], *, absolute: bool
) -> MeanTerms:
    """The terms of the bound by means; the centred factors are never formed.

    Rounding, with γ from `arithmetic`: f_i errs by γ‖a_i‖‖μ_b‖, g_j by γ‖μ_a‖(‖b_j‖ + ‖μ_b‖), and
    ‖a′_i T‖ by γ(‖a_i‖ + ‖μ_a‖)‖T‖_F.
    """
    mean_a, mean_b = _mean(A), _mean(B)
    basis = balanced_basis(sample(A) - mean_a, sample(B) - mean_b)
    gamma, widen = rounding(A.shape[1]), (1 + basis.residue) * _SAFE
    sizes_a, sizes_b = row_norms(A), row_norms(B)
    size_a, size_b = row_norms(mean_a[None]), row_norms(mean_b[None])
    norms_a = projected_norms(A, basis.TA, mean_a)
    norms_b = projected_norms(B, basis.TB, mean_b)
    both_means = float(mean_a.cpu().double() @ mean_b.cpu().double())
    rows = MeanSide(
        along=torch.cat([part @ mean_b for part in each_part(A)]),
        error=gamma * sizes_a * size_b,
        norms=(norms_a + gamma * _SAFE * basis.TA.norm() * (sizes_a + size_a)) * widen,
    )
    cols = MeanSide(
        along=torch.cat([part @ mean_a for part in each_part(B)]) - both_means,
        error=gamma * size_a * (sizes_b + size_b),
        norms=(norms_b + gamma * _SAFE * basis.TB.norm() * (sizes_b + size_b)) * widen,
    )
    return MeanTerms(rows, cols, underflow(A.shape[1]), absolute)


def _mean(X: Float[Tensor, "n r"]) -> Float[Tensor, " r"]:
    return torch.stack([part.sum(0) for part in each_part(X)]).sum(0) / len(X)


class MeanBound:
    """Columns binned by norm and g; every row is tested against every bin."""

    def __init__(self, terms: MeanTerms, bin_size: int, threshold: float) -> None:
        self._tiny, self._absolute = terms.tiny, terms.absolute
        self._rows = terms.rows
        self.rows = self._reaching(terms.cols.extent(), threshold)
        self._rows = terms.rows.take(self.rows)
        bins = [(cols, terms.cols.take(cols).extent()) for cols in _bins(terms.cols, bin_size)]
        typical = terms.rows.norms.mean().item()
        bins.sort(key=lambda entry: -self._promise(entry[1], typical))
        self.bins = [cols for cols, _ in bins]
        self._boxes = [box for _, box in bins]
        self._worked = math.nan, 0

    def _promise(self, box: Extent, partner: float) -> float:
        along = max(box.high, -box.low) if self._absolute else box.high
        return along + box.norm * partner

    def _reaching(self, box: Extent, threshold: float) -> Int[Tensor, " active"]:
        """f_i + g_j + ‖a′_i‖‖b′_j‖ ≥ threshold; for |a_i·b_j| also with f and g negated."""
        f, error, norms = self._rows
        rest = torch.add(error, norms, alpha=box.norm)
        reaches = (f + rest) >= threshold - box.high - self._tiny
        if self._absolute:
            reaches |= (rest - f) >= threshold + box.low - self._tiny
        return reaches.nonzero()[:, 0]

    def active(self, bin_index: int, threshold: float) -> Int[Tensor, " active"]:
        return self._reaching(self._boxes[bin_index], threshold)

    def limit(self, bin_index: int) -> float:
        f, error, norms = self._rows
        return max(self._limit(box, f, error, norms) for box in self._boxes[bin_index:])

    def _limit(self, box: Extent, f: Tensor, error: Tensor, norms: Tensor) -> float:
        rest = torch.add(error, norms, alpha=box.norm)
        most = (f + rest).amax().item() + box.high
        if self._absolute:
            most = max(most, (rest - f).amax().item() - box.low)
        return most + abs(most) * (_SAFE - 1) + self._tiny

    def work(self, threshold: float) -> int:
        """From some of the bins, evenly spaced."""
        if threshold != self._worked[0]:
            step = max(1, len(self.bins) // _COUNTED_BINS)
            some = range(step // 2, len(self.bins), step)
            entries = sum(len(self.active(i, threshold)) * len(self.bins[i]) for i in some)
            cols, every = sum(len(self.bins[i]) for i in some), sum(map(len, self.bins))
            self._worked = threshold, round(entries / cols * every) if cols else 0
        return self._worked[1]


def _bins(cols: MeanSide, bin_size: int) -> list[Int[Tensor, " bin"]]:
    """Slabs of similar norm, each cut into bins of similar g."""
    by_norm = largest_first(cols.norms)
    slabs = torch.split(by_norm, _BINS_PER_SLAB * bin_size)
    by_mean = [slab[largest_first(cols.along[slab])] for slab in slabs]
    return [part for slab in by_mean for part in torch.split(slab, bin_size)]


def _largest(values: Float[Tensor, " n"], count: int) -> Int[Tensor, " count"]:
    return values.topk(min(count, len(values))).indices
