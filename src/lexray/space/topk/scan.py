"""Scanning tiles of A·Bᵀ for entries that reach a threshold, and keeping the best of them."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.space.topk.arithmetic import Factor, exact_values, rounding, row_norms, underflow
from lexray.space.topk.bounds import Bound
from lexray.space.topk.leading import Leading, segment

_SEGMENT = 64
_FEW = 4096
_MANY = 32768
_MASK_ENTRIES = 2**22
_LOOK_EVERY = 0.1
_CROWDED = 1 / 32
"""The share of a tile's entries above which it is cheaper to multiply all of it."""

Look = Callable[[float], bool]
"""Told, several times a second, which share of the work is done; False ends the search."""


@dataclass(frozen=True)
class Tiling:
    """How many rows and columns are multiplied at once, and the side of the first corner."""

    rows: int
    cols: int
    corner: int

    @classmethod
    def suited_to(cls, device: torch.device) -> "Tiling":
        return cls(1024, 512, 512) if device.type == "cpu" else cls(8192, 2048, 2048)


@dataclass(frozen=True)
class Side:
    """One factor with what identifies its rows: their original indices and their groups."""

    factor: Factor
    ids: Int[Tensor, " rows"]
    groups: Int[Tensor, " rows"] | None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Int[Tensor, " some"] | Bool[Tensor, " rows"]) -> "Side":
        groups = None if self.groups is None else self.groups[index]
        return Side(self.factor.take(index), self.ids[index], groups)


class Best:
    """The k best pairs so far, by (score descending, flat index ascending)."""

    def __init__(self, k: int, *, absolute: bool) -> None:
        self.k = k
        self.absolute = absolute
        self.values = torch.empty(0, dtype=torch.float64)
        self.flat = torch.empty(0, dtype=torch.int64)

    @property
    def threshold(self) -> float:
        """The score a pair has to reach to be among the best; −∞ while there are fewer than k."""
        if len(self.values) < self.k:
            return -math.inf
        return float(self._scores(self.values[-1:]))

    def _scores(self, values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        return values.abs() if self.absolute else values

    def add(self, values: Float[Tensor, " n"], flat: Int[Tensor, " n"]) -> None:
        values, flat = torch.cat([self.values, values]), torch.cat([self.flat, flat])
        kept = self._select(self._scores(values), flat)
        values, flat = values[kept], flat[kept]
        by_index = flat.argsort()
        order = by_index[self._scores(values[by_index]).argsort(descending=True, stable=True)]
        self.values, self.flat = values[order], flat[order]

    def joined(self, others: Iterable["Best"]) -> "Best":
        """The best of this list and others, whose pairs may be in it already."""
        both = Best(self.k, absolute=self.absolute)
        for part in (self, *others):
            new = ~torch.isin(part.flat, both.flat)
            both.add(part.values[new], part.flat[new])
        return both

    def _select(
        self, scores: Float[Tensor, " n"], flat: Int[Tensor, " n"]
    ) -> Int[Tensor, " kept"] | slice:
        """The k best, unsorted: all above the k-th score and the first of those equal to it."""
        if len(scores) <= self.k:
            return slice(None)
        last = scores.topk(self.k).values[-1]
        above, tied = (scores > last).nonzero()[:, 0], (scores == last).nonzero()[:, 0]
        first = flat[tied].topk(self.k - len(above), largest=False).indices
        return torch.cat([above, tied[first]])


@dataclass(frozen=True)
class Whole:
    """The factors themselves, to be multiplied."""

    A: Float[Tensor, "rows r"]
    B: Float[Tensor, "cols r"]

    def rows(self, index: Int[Tensor, " some"]) -> tuple[Tensor, Tensor]:
        """What is multiplied, and the sizes that its error is relative to."""
        A = self.A.index_select(0, index)
        return A, row_norms(A)

    def cols(self, index: Int[Tensor, " bin"]) -> tuple[Tensor, float]:
        """What is multiplied, and the largest error, relative to the rows' sizes."""
        B = self.B.index_select(0, index)
        return B, rounding(B.shape[1]) * row_norms(B).amax().item()


class Scanner:
    """Multiplies tiles and hands entries that can be among the k best to `best`."""

    def __init__(self, A: Side, B: Side, stride: int, best: Best, tiling: Tiling) -> None:
        self._A, self._B, self._stride, self._tiling = A, B, stride, tiling
        self.best = best
        self.floor = -math.inf
        self.multiplied = 0
        self._ahead: tuple[Bound, int] | None = None
        """The bound and the first bin that is not yet multiplied to its end."""
        self._shift = A.factor.shift + B.factor.shift
        self._gamma = rounding(A.factor.width)
        self._tiny = underflow(A.factor.width)
        self._buffer = torch.empty(tiling.rows * tiling.cols, device=A.factor.scaled.device)

    @property
    def threshold(self) -> float:
        """The score to reach, in units of the scaled factors."""
        return math.ldexp(max(self.best.threshold, self.floor), self._shift)

    @property
    def limit(self) -> float:
        """What no entry exceeds that is still to be multiplied; −∞ if none is."""
        if self._ahead is None:
            return -math.inf
        bound, index = self._ahead
        return math.ldexp(bound.limit(index), -self._shift)

    def scan(self, bound: Bound, look: Look | None = None, sieve: Leading | None = None) -> None:
        """Multiplies what the bound leaves at the threshold, which rises on the way; through the
        sieve, if there is one."""
        operands = sieve or Whole(self._A.factor.scaled, self._B.factor.scaled)
        A, sizes = operands.rows(bound.rows)
        go_on = self._clock(look, bound) if look else _always
        for index, cols in enumerate(bound.bins):
            self._ahead = bound, index
            active = bound.active(index, self.threshold)
            some = A[active] if isinstance(active, slice) else A.index_select(0, active)
            if not self._scan_bin(bound.rows[active], some, sizes[active], cols, operands, go_on):
                return
        self._ahead = None

    def _clock(self, look: Look, bound: Bound) -> Callable[[], bool]:
        """Asks `look` whether to go on, not more often than it makes sense."""
        total, start = max(1, bound.work(self.threshold)), self.multiplied
        due = time.monotonic() + _LOOK_EVERY

        def go_on() -> bool:
            nonlocal due
            if time.monotonic() < due:
                return True
            heard = look(min(1.0, (self.multiplied - start) / total))
            due = time.monotonic() + _LOOK_EVERY
            return heard

        return go_on

    def scan_corner(self, rows: Int[Tensor, " some"], cols: Int[Tensor, " others"]) -> None:
        whole = Whole(self._A.factor.scaled, self._B.factor.scaled)
        A, sizes = whole.rows(rows)
        for part in torch.split(cols, self._tiling.cols):
            self._scan_bin(rows, A, sizes, part, whole, _always)

    def _scan_bin(
        self,
        rows: Int[Tensor, " some"],
        A: Float[Tensor, "some r"],
        sizes: Float[Tensor, " some"],
        cols: Int[Tensor, " bin"],
        operands: "Whole | Leading",
        go_on: Callable[[], bool],
    ) -> bool:
        """Whether the bin was multiplied to its end."""
        if len(rows) == 0:
            return True
        B, error = operands.cols(cols)
        step = self._tiling.rows
        scan = self._scan_tile if isinstance(operands, Whole) else self._sieve_tile
        for start in range(0, len(rows), step):
            if not go_on():
                return False
            tile = slice(start, start + step)
            scan(rows[tile], A[tile], cols, B, sizes[tile] * error + self._tiny)
        return True

    def _sieve_tile(
        self,
        rows: Int[Tensor, " tile_rows"],
        A: Float[Tensor, "tile_rows h1"],
        cols: Int[Tensor, " tile_cols"],
        B: Float[Tensor, "tile_cols h1"],
        margin: Float[Tensor, " tile_rows"],
    ) -> None:
        """Bounds first, the largest of each segment; only what reaches the threshold is multiplied
        whole. Where too much does, all of the tile is."""
        bounds, least = self._product(A, B), self.threshold - margin
        parts = bounds.view(len(rows), -1, segment(len(cols)))
        i, part = (parts.amax(2) >= least[:, None]).nonzero(as_tuple=True)
        if len(i) == 0:
            return
        which, inside = (parts[i, part] >= least[i, None]).nonzero(as_tuple=True)
        if len(which) > _CROWDED * bounds.numel():
            whole = Whole(self._A.factor.scaled, self._B.factor.scaled)
            (left, sizes), (right, error) = whole.rows(rows), whole.cols(cols)
            self._scan_tile(rows, left, cols, right, sizes * error + self._tiny)
            return
        i, j = i[which], part[which] * parts.shape[2] + inside
        kept = self._admissible(rows[i], cols[j])
        i, j = i[kept], j[kept]
        left, right = self._A.factor.scaled[rows[i]], self._B.factor.scaled[cols[j]]
        margin = self._gamma * row_norms(left) * row_norms(right) + self._tiny
        reaching = (left * right).sum(1) + margin >= self.threshold
        self._rescore(rows, cols, i[reaching], j[reaching])

    def _scan_tile(
        self,
        rows: Int[Tensor, " tile_rows"],
        A: Float[Tensor, "tile_rows r"],
        cols: Int[Tensor, " tile_cols"],
        B: Float[Tensor, "tile_cols r"],
        margin: Float[Tensor, " tile_rows"],
    ) -> None:
        """Row maxima first; only rows that can reach the threshold are looked at."""
        scores = self._product(A, B)
        threshold = self.threshold
        if threshold == -math.inf:
            self._erase_excluded(scores, rows, cols)
            threshold = self._threshold_within(scores, margin)
        hit = (scores.amax(1) >= threshold - margin).nonzero()[:, 0]
        if len(hit) == 0:
            return
        scores, margin, rows = scores[hit], margin[hit], rows[hit]
        i, j = (scores >= (threshold - margin)[:, None]).nonzero(as_tuple=True)
        kept = self._admissible(rows[i], cols[j])
        i, j = i[kept], j[kept]
        if len(i) > max(_FEW, 4 * self.best.k):
            kept = _can_be_among(self.best.k, scores[i, j], margin[i])
            i, j = i[kept], j[kept]
        self._rescore(rows, cols, i, j)

    def _product(
        self, A: Float[Tensor, "tile_rows r"], B: Float[Tensor, "tile_cols r"]
    ) -> Float[Tensor, "tile_rows tile_cols"]:
        entries = len(A) * len(B)
        self.multiplied += entries
        product = torch.mm(A, B.T, out=self._buffer[:entries].view(len(A), len(B)))
        return product.abs_() if self.best.absolute else product

    def _erase_excluded(
        self,
        scores: Float[Tensor, "tile_rows tile_cols"],
        rows: Int[Tensor, " tile_rows"],
        cols: Int[Tensor, " tile_cols"],
    ) -> None:
        if self._A.groups is not None and self._B.groups is not None:
            same = self._A.groups[rows][:, None] == self._B.groups[cols]
            scores.masked_fill_(same, -math.inf)

    def _threshold_within(
        self, scores: Float[Tensor, "tile_rows tile_cols"], margin: Float[Tensor, " tile_rows"]
    ) -> float:
        """The k-th best segment maximum, less its margin: k entries of the tile reach it."""
        segment = math.gcd(scores.shape[1], _SEGMENT)
        lower = scores.view(len(scores), -1, segment).amax(2) - margin[:, None]
        if lower.numel() < self.best.k:
            return -math.inf
        return float(lower.flatten().topk(self.best.k).values[-1])

    def _admissible(
        self, rows: Int[Tensor, " n"], cols: Int[Tensor, " n"]
    ) -> Bool[Tensor, " n"] | slice:
        if self._A.groups is None or self._B.groups is None:
            return slice(None)
        return self._A.groups[rows] != self._B.groups[cols]

    def _rescore(
        self,
        rows: Int[Tensor, " tile_rows"],
        cols: Int[Tensor, " tile_cols"],
        i: Int[Tensor, " n"],
        j: Int[Tensor, " n"],
    ) -> None:
        """Gives the candidates (rows[i], cols[j]) their exact values."""
        A, B = self._A.factor.exact, self._B.factor.exact
        if len(i) <= max(_MANY, 4 * self.best.k):
            values = exact_values(A, B, rows[i], cols[j])
        else:
            i, j, values = self._rescore_many(A[rows].cpu().double(), B[cols].cpu().double(), i, j)
        self.best.add(values, (self._A.ids[rows[i]] * self._stride + self._B.ids[cols[j]]).cpu())

    def _rescore_many(
        self,
        A: Float[Tensor, "tile_rows r"],
        B: Float[Tensor, "tile_cols r"],
        i: Int[Tensor, " n"],
        j: Int[Tensor, " n"],
    ) -> tuple[Int[Tensor, " kept"], Int[Tensor, " kept"], Float[Tensor, " kept"]]:
        """Hostile ranges are thinned out by a float64 product, tied rows are scored only once."""
        kept = self._can_be_among_in_float64(A, B, i.cpu(), j.cpu()).to(i.device)
        i, j = i[kept], j[kept]
        distinct_A, which_A = torch.unique(A, dim=0, return_inverse=True)
        distinct_B, which_B = torch.unique(B, dim=0, return_inverse=True)
        if len(distinct_A) * len(distinct_B) >= len(i):
            return i, j, exact_values(A, B, i, j)
        grid = torch.cartesian_prod(torch.arange(len(distinct_A)), torch.arange(len(distinct_B)))
        values = exact_values(distinct_A, distinct_B, grid[:, 0], grid[:, 1])
        return i, j, values[which_A[i.cpu()] * len(distinct_B) + which_B[j.cpu()]]

    def _can_be_among_in_float64(
        self,
        A: Float[Tensor, "tile_rows r"],
        B: Float[Tensor, "tile_cols r"],
        i: Int[Tensor, " n"],
        j: Int[Tensor, " n"],
    ) -> Bool[Tensor, " n"]:
        gamma, tiny = rounding(A.shape[1], 2.0**-53), A.shape[1] * 2.0**-1000
        sizes_A, sizes_B = (torch.linalg.vector_norm(X, dim=1) for X in (A, B))
        margin: Tensor = gamma * sizes_A[i] * sizes_B[j] + tiny
        scores = (A @ B.T)[i, j]
        scores = scores.abs() if self.best.absolute else scores
        reaching: Tensor = scores + margin >= max(self.best.threshold, self.floor)
        return reaching & _can_be_among(self.best.k, scores, margin)


def _always() -> bool:
    return True


def _can_be_among(
    k: int, scores: Float[Tensor, " n"], margin: Float[Tensor, " n"]
) -> Bool[Tensor, " n"]:
    """Which of n ≥ k scores, each known up to its margin, can be among the k best of them."""
    sure: Tensor = (scores - margin).topk(k).values[-1]
    return scores + margin >= sure


def first_zero_pairs(
    k: int, A: Side, B: Side, zero_rows: Bool[Tensor, " rows"], zero_cols: Bool[Tensor, " cols"]
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """The first k admissible pairs, by flat index, that have a zero row or a zero column."""
    found: list[Tensor] = []
    missing = k
    for rows in torch.split(torch.arange(len(A)), max(1, _MASK_ENTRIES // len(B))):
        mask = zero_rows[rows, None] | zero_cols
        if A.groups is not None and B.groups is not None:
            mask &= A.groups[rows, None] != B.groups
        pairs = mask.nonzero()[:missing] + torch.tensor([int(rows[0]), 0])
        found.append(pairs)
        missing -= len(pairs)
        if missing == 0:
            break
    i, j = torch.cat(found).unbind(1)
    return A.ids[i], B.ids[j]
