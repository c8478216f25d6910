"""The exact top-k entries of a low-rank product A·Bᵀ that is never built.

A head's token pairs are the entries of EᵀW_VO E = A·Bᵀ with A, B ∈ R^{e×r}: billions of entries, of
which a few dozen are wanted. The search

    1. bounds every entry from above by terms of its row and its column (`bounds`),
    2. multiplies the most promising corner, whose k-th best value is the first threshold,
    3. counts the work that each bound leaves at that threshold and takes the cheaper one (where
       finding bounds would cost as much as the product, as for wide vectors, plain norms do),
    4. multiplies, bin of columns by bin of columns, the rows whose bound reaches the threshold,
       looks only at rows whose largest entry does, and re-scores what is left in float64,
       which raises the threshold (`search`).

The value of a pair is the float64 dot product of the factors as given (float16 and bfloat16 are
upcast to float32; float64 factors stay as they are), summed in one fixed order; ties go to the
lower flat index i·n_cols + j. Nothing is approximate: float32 products and bounds only ever
discard what their proven error margins (`arithmetic`) put below the threshold.

A search can be watched, and ended early: it then gives the best pairs that it has seen, and what
no other pair exceeds. As the most promising bins come first, that falls quickly.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.scratch import map_parts, take_rows
from lexray.space.topk.arithmetic import factor, full_precision
from lexray.space.topk.best import Best
from lexray.space.topk.bounds import (
    Bound,
    MeanBound,
    MeanTerms,
    NormBound,
    NormTerms,
    mean_terms,
    norm_terms,
    plain_terms,
)
from lexray.space.topk.scan import Look, Scanner
from lexray.space.topk.sides import ScanSide, Tiling, first_zero_pairs
from lexray.space.topk.sieve import choose_sieve
from lexray.space.topk.whole_products import whole_products

Sign = Literal["largest", "smallest", "absolute"]

_WORK_WORTH_A_SECOND_BOUND = 0.03
_WORK_IN_BYTES_WORTH_A_SECOND_BOUND = 0.08
_WORK_WORTH_A_SIEVE = 0.01
_LARGEST_CORNER = 4096
_BOUNDS_WORTH = 0.25
"""The share of the whole product's work that finding a basis for the bounds may cost."""
_BASIS_ROWS, _BASIS_CUBES = 4, 40
"""Its work: products with both factors, and decompositions of r×r matrices, which are slow."""


class TopPairs(NamedTuple):
    """The best pairs in order, on the CPU; `work`: the share of admissible entries multiplied."""

    rows: Int[Tensor, " k"]
    cols: Int[Tensor, " k"]
    values: Float[Tensor, " k"]
    work: float
    limit: float | None = None
    """What no other pair goes beyond, where the search was ended before it could prove the list;
    None: the list is exact."""


class SearchState(NamedTuple):
    """A search under way: the share of its work that is done, and what it has found by now."""

    done: float
    found: Callable[[], TopPairs]


Watch = Callable[[SearchState], bool]
"""Sees a search several times a second; False ends it."""


def top_pairs(
    A: Float[Tensor, "n_rows r"],
    B: Float[Tensor, "n_cols r"],
    k: int,
    *,
    sign: Sign = "largest",
    row_groups: Int[Tensor, " n_rows"] | None = None,
    col_groups: Int[Tensor, " n_cols"] | None = None,
    rows: Int[Tensor, " some_rows"] | None = None,
    cols: Int[Tensor, " some_cols"] | None = None,
    tiling: Tiling | None = None,
    watch: Watch | None = None,
) -> TopPairs:
    """The k pairs (i, j) with the largest, smallest or largest absolute value of a_i·b_j.

    Pairs with row_groups[i] == col_groups[j] are left out, and so are rows and columns that are
    not among `rows` and `cols` when these are given. All of that restricts the search: the result
    is the exact top-k of what is left, shorter than k only if fewer than k pairs are left.
    `watch` sees the search as it goes and may end it.

    >>> A, B = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [-1.0]])
    >>> top_pairs(A, B, 1).values
    tensor([6.], dtype=torch.float64)
    >>> top_pairs(A, B, 1, sign="smallest").values
    tensor([-2.], dtype=torch.float64)
    """
    _check(A, B, k, row_groups, col_groups)
    signed_A = map_parts(torch.neg, A) if sign == "smallest" else A
    row_side = _admissible_side("A", signed_A, row_groups, rows)
    col_side = _admissible_side("B", B.to(A.device), col_groups, cols)
    search = _Search(row_side, col_side, len(B), Best(k, absolute=sign == "absolute"))
    finish = partial(search.found, negate=sign == "smallest")
    if len(row_side) and len(col_side):
        tiling = tiling or Tiling.suited_to(A.device)
        with full_precision():
            search.run(tiling, watch and (lambda done: watch(SearchState(done, finish))))
    return finish()


def _check(
    A: Float[Tensor, "n_rows r"],
    B: Float[Tensor, "n_cols other_r"],
    k: int,
    row_groups: Int[Tensor, " n_rows"] | None,
    col_groups: Int[Tensor, " n_cols"] | None,
) -> None:
    if k <= 0:
        raise LexrayError(f"asked for the top {k} pairs; k must be at least 1")
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[1] or A.shape[1] == 0:
        raise LexrayError(
            f"factors of shapes {tuple(A.shape)} and {tuple(B.shape)} do not form a product A·Bᵀ: "
            "both need the same, non-zero number of columns"
        )
    if (row_groups is None) != (col_groups is None):
        raise LexrayError("groups are compared across a pair: give row_groups and col_groups")


def _admissible_side(
    name: str,
    X: Float[Tensor, "n r"],
    groups: Int[Tensor, " n"] | None,
    admissible: Int[Tensor, " some"] | None,
) -> ScanSide:
    """The factor restricted to its admissible rows, in ascending order of index."""
    ids = torch.arange(len(X), device=X.device)
    if admissible is not None:
        ids = torch.unique(admissible.to(X.device))
        if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < len(X):
            raise LexrayError(
                f"admissible indices from {int(ids[0])} to {int(ids[-1])} do not fit factor "
                f"{name}, which has {len(X)} rows"
            )
        X = take_rows(X, ids)
    some_groups = None if groups is None else groups.to(X.device)[ids]
    return ScanSide(factor(name, X), ids, some_groups)


class _Search:
    """One search, which fills `best`; it can be asked on the way what it has found."""

    def __init__(self, A: ScanSide, B: ScanSide, stride: int, best: Best) -> None:
        self.A, self.B, self.stride, self.best = A, B, stride, best
        self._seeds: list[Best] = []
        self._scanners: list[Scanner] = []

    def run(self, tiling: Tiling, look: Look | None) -> None:
        """Pairs with a zero row or column, all of value 0, are left to the end."""
        A, B, best = self.A, self.B, self.best
        full_rows, full_cols = A.factor.nonzero_rows(), B.factor.nonzero_rows()
        all_full = bool(full_rows.all()) and bool(full_cols.all())
        if bool(full_rows.any()) and bool(full_cols.any()):
            rows, cols = (A, B) if all_full else (A.take_all(full_rows), B.take_all(full_cols))
            self._run_nonzero(rows, cols, tiling, look)
        if not all_full and best.threshold <= 0:
            i, j = first_zero_pairs(best.k, A, B, ~full_rows, ~full_cols)
            best.add(torch.zeros(len(i), dtype=torch.float64), (i * self.stride + j).cpu())

    def _run_nonzero(self, A: ScanSide, B: ScanSide, tiling: Tiling, look: Look | None) -> None:
        """Chooses the cheaper bound and scans what it leaves."""
        best = self.best
        scanner = Scanner(A, B, self.stride, best, tiling)
        seeds = Scanner(A, B, self.stride, Best(best.k, absolute=best.absolute), tiling)
        self._scanners = [scanner, seeds]
        if not _can_be_worth_bounding(len(A), len(B), A.factor.width):
            plain = plain_terms(A.factor.scaled, B.factor.scaled)
            self._seeds = [_seed(plain, seeds, tiling)]
            scanner.floor = self._seeds[0].threshold
            scanner.scan(NormBound(plain, tiling.cols, scanner.threshold), look)
            return
        norms = norm_terms(A.factor.scaled, B.factor.scaled)
        self._seeds = [_seed(norms, seeds, tiling)]
        scanner.floor = self._seeds[0].threshold
        bound: Bound = NormBound(norms, tiling.cols, scanner.threshold)
        work = bound.work(scanner.threshold)
        in_bytes = whole_products(A.ids.device, A.factor.width) is not None
        worth = _WORK_IN_BYTES_WORTH_A_SECOND_BOUND if in_bytes else _WORK_WORTH_A_SECOND_BOUND
        if work > worth * len(A) * len(B):
            means = mean_terms(A.factor.scaled, B.factor.scaled, absolute=best.absolute)
            self._seeds.append(_seed(means, seeds, tiling))
            scanner.floor = max(scanner.floor, self._seeds[1].threshold)
            other = MeanBound(means, tiling.cols, scanner.threshold)
            if other.work(scanner.threshold) < bound.work(scanner.threshold):
                bound = other
        choose = partial(choose_sieve, norms, bound, absolute=best.absolute)
        leaves_much = bound.work(scanner.threshold) > _WORK_WORTH_A_SIEVE * len(A) * len(B)
        scanner.scan(bound, look, choose if leaves_much else None)

    def found(self, *, negate: bool) -> TopPairs:
        """The best pairs by now, and what no other pair exceeds if that is not yet their least."""
        limit = max((scanner.limit for scanner in self._scanners), default=-math.inf)
        best = self.best if limit == -math.inf else self.best.joined(self._seeds)
        sign, stride = -1.0 if negate else 1.0, max(1, self.stride)
        multiplied = sum(scanner.multiplied for scanner in self._scanners)
        return TopPairs(
            best.flat // stride,
            best.flat % stride,
            0.0 + sign * best.values,
            multiplied / max(1, len(self.A) * len(self.B)),
            None if limit < best.threshold or limit == -math.inf else sign * limit,
        )


def _can_be_worth_bounding(n: int, m: int, width: int) -> bool:
    """Whether what a basis costs is small beside the product that it may spare: it is for tokens
    through a narrow head, and is not for wide vectors against a few thousand others."""
    cost = (_BASIS_ROWS * (n + m) + _BASIS_CUBES * width) * width**2
    return cost <= _BOUNDS_WORTH * n * m * width


def _seed(terms: NormTerms | MeanTerms, seeds: Scanner, tiling: Tiling) -> Best:
    """The best of the most promising corner, whose k-th score is a first threshold.

    The corner grows where exclusions leave fewer than k pairs in it.
    """
    side = max(tiling.corner, math.isqrt(4 * seeds.best.k) + 1)
    while True:
        seeds.best = Best(seeds.best.k, absolute=seeds.best.absolute)
        seeds.scan_corner(*terms.corner(side))
        if seeds.best.threshold > -math.inf or side >= _LARGEST_CORNER:
            return seeds.best
        side *= 2
