"""Scanning tiles of A·Bᵀ for entries that reach a threshold."""

import math
import time
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from lexray.scratch import let_go, take_rows
from lexray.space.topk.arithmetic import exact_values, rounding, row_norms, underflow
from lexray.space.topk.best import Best
from lexray.space.topk.bounds import Bound
from lexray.space.topk.operands import Cols, LeftRows, Operands, Whole, least, margin
from lexray.space.topk.sides import ScanSide, Tiling
from lexray.space.topk.sieve import multiply, segment

_SEGMENT = 64
_FEW = 4096
_MANY = 32768
_LOOK_EVERY = 0.1
_CROWDED = 1 / 64
"""The share of a tile's row that passes a sieve above which it is cheaper to multiply all of it."""
_FUTILE = 1 / 4
"""The share of a tile's segments above which it is not looked at which of their entries pass."""
_SIEVED_TILES = 15 / 8
"""How many go through a sieve at once: products that torch allocates stay below what `scratch` has
go back to the system at once."""
_WAITING = 1024
"""How many single entries that pass a sieve are multiplied together; of tiles where more pass,
whole rows may be."""
_PATIENCE = 8
"""How many tiles a sieve is given to show that it holds back more than half of their rows."""

_CHOSEN_AGAIN, _RISEN, _LEFT = 32, 1.01, 2**32
"""A sieve is chosen again when this part of the work is done (then twice as much, and so on), if
the threshold has risen by that much and so many entries are left."""

Look = Callable[[float], bool]
"""Told, several times a second, which share of the work is done; False ends the search."""


@runtime_checkable
class Choose(Protocol):
    """Chooses a sieve for a threshold, if one is worth it; asked again with the one in use and the
    first bin that is left."""

    def __call__(
        self, threshold: float, *, first: int = 0, now: Operands | None = None
    ) -> Operands | None: ...


class Scanner:
    """Multiplies tiles and hands entries that can be among the k best to `best`."""

    def __init__(self, A: ScanSide, B: ScanSide, stride: int, best: Best, tiling: Tiling) -> None:
        self._A, self._B, self._stride, self._tiling = A, B, stride, tiling
        self.best = best
        self.floor = -math.inf
        self.multiplied = 0
        self._ahead: tuple[Bound, int] | None = None
        """The bound and the first bin that is not yet multiplied to its end."""
        self._chosen_at, self._due = -math.inf, 0
        """The threshold for which a sieve was chosen, and the work after which it is again."""
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._n_waiting = 0
        """Rows and columns of single entries that a sieve let pass, not yet multiplied."""
        self._tiles = self._sieved = self._passed = 0
        """Tiles and rows that a sieve has seen, and rows that were multiplied whole after it."""
        self._whole = Whole(A.factor.scaled, B.factor.scaled)
        self._shift = A.factor.shift + B.factor.shift
        self._gamma = rounding(A.factor.width)
        self._tiny = underflow(A.factor.width)
        self._buffer = torch.empty(
            int(_SIEVED_TILES * max(tiling.entries, len(B))), device=A.factor.scaled.device
        )

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

    def scan(self, bound: Bound, look: Look | None = None, choose: Choose | None = None) -> None:
        """Multiplies what the bound leaves at the threshold, which rises on the way; through a
        sieve, if one is chosen, as long as that holds something back."""
        operands = choose(self.threshold) if choose else None
        operands, self._chosen_at = operands or self._whole, self.threshold
        self._due = bound.work(self.threshold) // _CHOSEN_AGAIN
        A, B = operands.rows(bound.rows), operands.bins(bound.bins)
        go_on = self._clock(look, bound) if look else _always
        for index, cols in enumerate(bound.bins):
            self._ahead = bound, index
            active = bound.active(index, self.threshold)
            rows = bound.rows[active]
            if not len(rows):
                continue
            scan = self._scan_bin if operands.exact else self._sieve_bin
            if not scan(rows, A.take(active), cols, B(index), go_on):
                return
            if choose and (better := self._choose_again(choose, operands, bound, index + 1)):
                operands = better
                A, B = operands.rows(bound.rows), operands.bins(bound.bins)
        self._ahead = None

    def _choose_again(
        self, choose: Choose, now: Operands, bound: Bound, first: int
    ) -> Operands | None:
        """Another way for the bins from `first` on, if there is a better one: the product itself
        where the sieve holds little back, fewer coordinates where the threshold has risen."""
        if now.exact:
            return None
        if self._tiles > _PATIENCE and self._passed > self._sieved / 2:
            return self._whole
        if self.multiplied < self._due or self.threshold <= _RISEN * self._chosen_at:
            return None
        self._due, self._chosen_at = 2 * self.multiplied, self.threshold
        if bound.work(self.threshold) - self.multiplied < _LEFT:
            return None
        better = choose(self.threshold, first=first, now=now)
        return None if better is now else better

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
        A = self._whole.rows(rows)
        for part in torch.split(cols, self._tiling.cols):
            self._scan_bin(rows, A, part, self._whole.cols(part), _always)

    def _scan_bin(
        self,
        rows: Int[Tensor, " some"],
        A: LeftRows,
        cols: Int[Tensor, " bin"],
        B: Cols,
        go_on: Callable[[], bool],
    ) -> bool:
        """Whether the bin was multiplied to its end."""
        step = max(1, self._tiling.entries // len(cols))
        for start in range(0, len(rows), step):
            if not go_on():
                return False
            tile = slice(start, start + step)
            left = A.take(tile)
            self._scan_tile(rows[tile], left, cols, B)
            let_go(left.matrix)
        return True

    def _sieve_bin(
        self,
        rows: Int[Tensor, " some"],
        A: LeftRows,
        cols: Int[Tensor, " bin"],
        B: Cols,
        go_on: Callable[[], bool],
    ) -> bool:
        """The same through a sieve, in larger tiles: there is less to hold."""
        step = max(1, int(_SIEVED_TILES * self._tiling.entries) // len(cols))
        threshold = self.threshold
        reach = least(A, B, threshold - self._tiny)
        for start in range(0, len(rows), step):
            if not go_on():
                return False
            if self.threshold > threshold:
                threshold = self.threshold
                reach = least(A, B, threshold - self._tiny)
            tile = slice(start, start + step)
            left = A.take(tile).matrix
            self._sieve_tile(rows[tile], left, cols, B.matrix, reach[tile])
            let_go(left)
        self._multiply_waiting()
        return True

    def _sieve_tile(
        self,
        rows: Int[Tensor, " tile_rows"],
        A: Num[Tensor, "tile_rows h"],
        cols: Int[Tensor, " tile_cols"],
        B: Num[Tensor, "..."],
        reach: Num[Tensor, " tile_rows"],
    ) -> None:
        """Bounds first, the largest of each segment; only what reaches the threshold is multiplied
        whole. Of rows where much does, all is."""
        parts = self._product(A, B, len(cols)).view(len(rows), -1, segment(len(cols)))
        i, part = (parts.amax(2) >= reach[:, None]).nonzero(as_tuple=True)
        self._tiles, self._sieved = self._tiles + 1, self._sieved + len(rows)
        if len(i) == 0:
            return
        if len(i) > _FUTILE * parts.shape[0] * parts.shape[1]:
            self._scan_whole(rows[torch.unique(i)], cols)
            return
        which, inside = (parts[i, part] >= reach[i, None]).nonzero(as_tuple=True)
        i, j = i[which], part[which] * parts.shape[2] + inside
        if len(i) > _WAITING:
            crowded = torch.bincount(i, minlength=len(rows)) > max(1, _CROWDED * len(cols))
            self._scan_whole(rows[crowded], cols)
            kept = ~crowded[i]
            self._multiply_some(rows, cols, i[kept], j[kept])
            return
        self._waiting.append((rows[i], cols[j]))
        self._n_waiting += len(i)
        if self._n_waiting > _WAITING:
            self._multiply_waiting()

    def _scan_whole(self, rows: Int[Tensor, " some"], cols: Int[Tensor, " tile_cols"]) -> None:
        self._passed += len(rows)
        if len(rows) == 0:
            return
        self._scan_tile(rows, self._whole.rows(rows), cols, self._whole.cols(cols))

    def _multiply_waiting(self) -> None:
        """What passed in several tiles, together: one by one, they would cost as much as tiles."""
        if self._waiting:
            rows, cols = (torch.cat(part) for part in zip(*self._waiting, strict=True))
            self._waiting, self._n_waiting = [], 0
            each = torch.arange(len(rows), device=rows.device)
            self._multiply_some(rows, cols, each, each)

    def _multiply_some(
        self,
        rows: Int[Tensor, " tile_rows"],
        cols: Int[Tensor, " tile_cols"],
        i: Int[Tensor, " n"],
        j: Int[Tensor, " n"],
    ) -> None:
        """Single entries, in float32 before they are scored."""
        kept = self._admissible(rows[i], cols[j])
        i, j = i[kept], j[kept]
        left, right = take_rows(self._whole.A, rows[i]), take_rows(self._whole.B, cols[j])
        error = self._gamma * row_norms(left) * row_norms(right) + self._tiny
        scores = (left * right).sum(1)
        scores = scores.abs_() if self.best.absolute else scores
        reaching = scores + error >= self.threshold
        if bool(reaching.any()):
            self._rescore(rows, cols, i[reaching], j[reaching])

    def _scan_tile(
        self,
        rows: Int[Tensor, " tile_rows"],
        A: LeftRows,
        cols: Int[Tensor, " tile_cols"],
        B: Cols,
    ) -> None:
        """Row maxima first; only rows that can reach the threshold are looked at."""
        scores, error = self._product(A.matrix, B.matrix, len(cols)), margin(A, B) + self._tiny
        threshold = self.threshold
        if threshold == -math.inf:
            self._erase_excluded(scores, rows, cols)
            threshold = self._threshold_within(scores, error)
        hit = (scores.amax(1) >= threshold - error).nonzero()[:, 0]
        if len(hit) == 0:
            return
        scores, error, rows = scores[hit], error[hit], rows[hit]
        i, j = (scores >= (threshold - error)[:, None]).nonzero(as_tuple=True)
        kept = self._admissible(rows[i], cols[j])
        i, j = i[kept], j[kept]
        if len(i) > max(_FEW, 4 * self.best.k):
            kept = _can_be_among(self.best.k, scores[i, j], error[i])
            i, j = i[kept], j[kept]
        self._rescore(rows, cols, i, j)

    def _product(
        self, A: Num[Tensor, "tile_rows h"], B: Num[Tensor, "..."], cols: int
    ) -> Num[Tensor, "tile_rows tile_cols"]:
        entries = len(A) * cols
        self.multiplied += entries
        product = multiply(A, B, self._buffer[:entries].view(len(A), cols))
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
            tile = (take_rows(A, rows).cpu().double(), take_rows(B, cols).cpu().double())
            i, j, values = self._rescore_many(*tile, i, j)
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
