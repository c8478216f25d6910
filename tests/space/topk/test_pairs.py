"""`top_pairs` equals a dense float64 reference, index by index, on hostile factors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.errors import LexrayError
from lexray.space import TopPairs, top_pairs
from lexray.space.topk import pairs
from lexray.space.topk.arithmetic import exact_values, full_precision
from lexray.space.topk.basis import balanced_basis
from lexray.space.topk.bounds import MeanBound, NormBound, mean_terms, norm_terms
from lexray.space.topk.pairs import Sign
from lexray.space.topk.sides import Tiling

SIGNS: list[Sign] = ["largest", "smallest", "absolute"]
TINY_TILES = Tiling(rows=4, cols=3, corner=2)


def reference(
    A: Tensor,
    B: Tensor,
    k: int,
    sign: Sign = "largest",
    excluded: Tensor | None = None,
    rows: Tensor | None = None,
    cols: Tensor | None = None,
) -> tuple[list[int], list[int], list[float]]:
    """Every admissible pair's value, sorted by NumPy."""
    A, B = (X if X.dtype == torch.float64 else X.float() for X in (A, B))
    i, j = torch.cartesian_prod(torch.arange(len(A)), torch.arange(len(B))).unbind(1)
    values = exact_values(A, B, i, j).numpy()
    admissible = torch.ones(len(A), len(B), dtype=torch.bool)
    if excluded is not None:
        admissible &= ~excluded
    if rows is not None:
        admissible &= torch.isin(torch.arange(len(A)), rows)[:, None]
    if cols is not None:
        admissible &= torch.isin(torch.arange(len(B)), cols)
    keys = {"largest": -values, "smallest": values, "absolute": -np.abs(values)}[sign]
    order = np.lexsort((np.arange(len(values)), keys))
    best = order[admissible.flatten().numpy()[order]][:k]
    return i.numpy()[best].tolist(), j.numpy()[best].tolist(), values[best].tolist()


def assert_same(found: TopPairs, expected: tuple[list[int], list[int], list[float]]) -> None:
    assert (found.rows.tolist(), found.cols.tolist(), found.values.tolist()) == expected


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gaussian(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=seeded(seed))


def heavy_tailed(rows: int, width: int, seed: int, mean: float = 0.0) -> Tensor:
    """Rows of log-normal size in a basis with decaying spectrum, around a common mean."""
    mix = gaussian(width, width, seed + 1) / torch.arange(1, width + 1)[:, None]
    sizes = torch.randn(rows, 1, generator=seeded(seed + 2)).exp()
    return gaussian(rows, width, seed) @ mix * sizes + mean * gaussian(1, width, 7)


NUMBERS = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -7.25, 1e-3, 1e30, -1e30, 3e38, 1e-30, -1e-30, 1e-45, 1e-40]
)


@st.composite
def factors(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Small factors made of few numbers, with repeated, scaled and zeroed rows."""
    width = draw(st.integers(1, 5))
    return draw(matrices(width)), draw(matrices(width))


@st.composite
def matrices(draw: st.DrawFn, width: int) -> Tensor:
    row = st.lists(NUMBERS, min_size=width, max_size=width)
    kinds = draw(st.lists(row, min_size=1, max_size=6))
    picks = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=14))
    X = torch.tensor(kinds)[torch.tensor(picks)]
    if draw(st.booleans()):
        X = X + gaussian(len(X), width, draw(st.integers(0, 99)))
    if draw(st.booleans()):
        sizes = st.sampled_from([1.0, 0.0, 1e-20, 1e-38])
        X = X * torch.tensor([draw(sizes) for _ in picks])[:, None]
    return X.clamp(-3.3e38, 3.3e38)


@pytest.mark.slow
@settings(max_examples=250, suppress_health_check=list(HealthCheck))
@given(factors(), st.integers(1, 250), st.sampled_from(SIGNS), st.booleans(), st.data())
def test_equals_the_dense_reference_on_hostile_factors(
    both: tuple[Tensor, Tensor], k: int, sign: Sign, small_tiles: bool, data: st.DataObject
) -> None:
    A, B = both
    groups = data.draw(st.none() | st.integers(1, 4))
    row_groups = None if groups is None else torch.arange(len(A)) % groups
    col_groups = None if groups is None else torch.arange(len(B)) % groups
    excluded = None
    if row_groups is not None and col_groups is not None:
        excluded = row_groups[:, None] == col_groups
    index = lambda n: st.none() | st.lists(st.integers(0, n - 1), max_size=n)  # noqa: E731
    rows, cols = (
        None if chosen is None else torch.tensor(chosen, dtype=torch.int64)
        for chosen in (data.draw(index(len(A))), data.draw(index(len(B))))
    )
    found = top_pairs(
        A,
        B,
        k,
        sign=sign,
        row_groups=row_groups,
        col_groups=col_groups,
        rows=rows,
        cols=cols,
        tiling=TINY_TILES if small_tiles else None,
    )
    assert_same(found, reference(A, B, k, sign, excluded, rows, cols))


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 9),
    st.sampled_from([1, 3, 20]),
    st.sampled_from(SIGNS),
    st.sampled_from([0.0, 10.0]),
    st.integers(0, 10**6),
)
def test_equals_the_dense_reference_through_many_tiles(
    n: int, m: int, width: int, k: int, sign: Sign, mean: float, seed: int
) -> None:
    A, B = heavy_tailed(n, width, seed, mean), heavy_tailed(m, width, seed + 9, mean)
    found = top_pairs(A, B, k, sign=sign, tiling=TINY_TILES)
    assert_same(found, reference(A, B, k, sign))


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_equals_the_dense_product_at_size(sign: Sign, mean: float) -> None:
    A, B = heavy_tailed(3000, 16, 1, mean), heavy_tailed(2500, 16, 2, mean)
    found = top_pairs(A, B, 40, sign=sign)
    M = A.double() @ B.double().T
    score = {"largest": M, "smallest": -M, "absolute": M.abs()}[sign].flatten()
    flat = score.topk(40).indices
    assert (found.rows * 2500 + found.cols).tolist() == flat.tolist()
    torch.testing.assert_close(found.values, M.flatten()[flat], rtol=1e-12, atol=0)


@pytest.mark.parametrize("absolute", [False, True])
def test_bounds_hold_for_every_entry(absolute: bool) -> None:
    A, B = heavy_tailed(300, 8, 3, 2.0), heavy_tailed(200, 8, 4, 2.0)
    values = A.double() @ B.double().T
    scores = values.abs() if absolute else values
    norms, means = norm_terms(A, B), mean_terms(A, B, absolute=absolute)
    for threshold in scores.flatten().quantile(torch.tensor([0.2, 0.9, 1.0]).double()).tolist():
        for bound in (NormBound(norms, 16, threshold), MeanBound(means, 16, threshold)):
            covered = torch.zeros(300, 200, dtype=torch.bool)
            for index, cols in enumerate(bound.bins):
                covered[bound.rows[bound.active(index, threshold)][:, None], cols] = True
            assert bool(covered[scores >= threshold].all())
            assert int(covered.sum()) == bound.work(threshold)
            assert threshold < scores.max() or int(covered.sum()) < 0.5 * covered.numel()


def test_prunes_heavy_tailed_factors() -> None:
    A, B = heavy_tailed(20000, 16, 5), heavy_tailed(20000, 16, 6)
    assert top_pairs(A, B, 50).work < 0.02


def test_prunes_factors_with_a_large_mean() -> None:
    direction = gaussian(1, 16, 8)
    A, B = gaussian(20000, 16, 9) + 8 * direction, heavy_tailed(20000, 16, 10) - 8 * direction
    found = top_pairs(A, B, 50)
    norms_alone = norm_terms(A, B)
    least = found.values[-1].item()
    assert found.work < 0.5 * NormBound(norms_alone, 512, least).work(least) / 20000**2


def test_multiplies_gaussian_factors_about_once() -> None:
    assert top_pairs(gaussian(6000, 64, 11), gaussian(6000, 64, 12), 10).work < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("sign", SIGNS)
def test_thousands_of_tied_rows_and_columns(sign: Sign) -> None:
    A, B = gaussian(4000, 8, 13), gaussian(3000, 8, 14)
    A[::2], B[1::3] = A[0] * 10, A[0] * 10 * (-1 if sign == "smallest" else 1)
    found = top_pairs(A, B, 1500, sign=sign)
    tied_cols = list(range(1, 3000, 3))
    assert found.rows.tolist() == [0] * 1000 + [2] * 500
    assert found.cols.tolist() == tied_cols + tied_cols[:500]


def test_a_zero_factor_is_answered_without_multiplying() -> None:
    found = top_pairs(torch.zeros(50000, 4), gaussian(50000, 4, 1), 3)
    assert (found.rows.tolist(), found.cols.tolist()) == ([0, 0, 0], [0, 1, 2])
    assert found.values.tolist() == [0.0, 0.0, 0.0]
    assert found.work == 0


def test_zero_pairs_beat_negative_ones() -> None:
    A, B = torch.ones(5, 2), -torch.ones(4, 2)
    A[3], B[1] = 0, 0
    assert_same(top_pairs(A, B, 9), reference(A, B, 9))


def test_excluded_pairs_that_fill_the_corner() -> None:
    """The 600 strongest rows and columns all belong to one group."""
    A, B = gaussian(1500, 8, 15).abs(), gaussian(1400, 8, 16).abs()
    A[:600] *= 100
    B[:600] *= 100
    row_groups, col_groups = torch.arange(1500), torch.arange(1400) + 5000
    row_groups[:600] = col_groups[:600] = 0
    found = top_pairs(A, B, 30, row_groups=row_groups, col_groups=col_groups)
    M = (A.double() @ B.double().T).masked_fill(row_groups[:, None] == col_groups, -math.inf)
    assert (found.rows * 1400 + found.cols).tolist() == M.flatten().topk(30).indices.tolist()


def test_everything_excluded_gives_an_empty_result() -> None:
    same = torch.zeros(20, dtype=torch.int64)
    A = gaussian(20, 3, 1)
    A[4] = 0
    found = top_pairs(A, A, 5, row_groups=same, col_groups=same)
    assert len(found.rows) == len(found.cols) == len(found.values) == 0


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_no_rows_or_no_columns(shape: tuple[int, int]) -> None:
    assert len(top_pairs(torch.ones(shape[0], 2), torch.ones(shape[1], 2), 3).values) == 0


def test_an_empty_filter_gives_an_empty_result() -> None:
    nothing = torch.tensor([], dtype=torch.int64)
    assert len(top_pairs(torch.ones(4, 2), torch.ones(4, 2), 3, rows=nothing).values) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    A, B = gaussian(60, 5, 17).to(dtype), gaussian(50, 5, 18).to(dtype)
    assert_same(top_pairs(A, B, 70), reference(A, B, 70))


def test_float64_factors_keep_their_precision() -> None:
    A = 1 + torch.arange(40, dtype=torch.float64)[:, None] * 1e-12
    assert top_pairs(A, torch.ones(1, 1).double(), 3).rows.tolist() == [39, 38, 37]


def test_nearly_tied_values_are_ordered_in_float64() -> None:
    """Float32 products cannot tell these apart."""
    A = torch.ones(2000, 64)
    A[:, 1] += torch.randint(-3, 4, (2000,), generator=seeded(1)) * 2.0**-23
    A[:, 0] = 1000
    assert_same(top_pairs(A, A[:3], 20), reference(A, A[:3], 20))


def test_products_that_overflow_float32() -> None:
    A, B = gaussian(700, 6, 19) * 1e37, gaussian(600, 6, 20) * 1e37
    found = top_pairs(A, B, 10)
    M = A.double() @ B.double().T
    assert (found.rows * 600 + found.cols).tolist() == M.flatten().topk(10).indices.tolist()
    assert bool(found.values.isfinite().all())


def test_products_that_underflow_float32() -> None:
    """One huge row; the next best lie sixty orders of magnitude below it."""
    A, B = gaussian(300, 6, 21) * 1e-30, gaussian(200, 6, 22)
    A[7:9] = gaussian(2, 6, 33) * torch.tensor([[1e30], [1e-40]])
    found = top_pairs(A, B, 400)
    M = A.double() @ B.double().T
    assert (found.rows * 200 + found.cols).tolist() == M.flatten().topk(400).indices.tolist()


def test_cancellation_far_beyond_float32() -> None:
    """Huge components that B does not see: float32 margins exceed every value."""
    A, B = gaussian(400, 6, 23), gaussian(300, 6, 24)
    A[:, 0] = 1e12
    B[:, 0] = 0
    assert_same(top_pairs(A, B, 25), reference(A, B, 25))


def test_rank_deficient_factors() -> None:
    A, B = gaussian(500, 1, 25) @ gaussian(1, 12, 26), gaussian(400, 2, 27) @ gaussian(2, 12, 28)
    assert_same(top_pairs(A, B, 25, sign="absolute"), reference(A, B, 25, "absolute"))


@pytest.mark.parametrize("k", [0, -3])
def test_k_below_one_is_an_error(k: int) -> None:
    with pytest.raises(LexrayError, match="at least 1"):
        top_pairs(torch.ones(2, 2), torch.ones(2, 2), k)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["A", "B"])
def test_non_finite_factors_are_named_and_counted(bad: float, name: str) -> None:
    factors = {"A": torch.ones(4, 3), "B": torch.ones(5, 3)}
    factors[name][2, 1] = factors[name][3, 0] = bad
    counts = "2 NaN and 0 infinite" if math.isnan(bad) else "0 NaN and 2 infinite"
    with pytest.raises(LexrayError, match=f"factor {name} has {counts}"):
        top_pairs(factors["A"], factors["B"], 1)


def test_other_mistakes_are_explained() -> None:
    A = torch.ones(3, 2)
    with pytest.raises(LexrayError, match=r"\(3, 2\) and \(3, 4\)"):
        pairs._check(A, torch.ones(3, 4), 1, None, None)
    with pytest.raises(LexrayError, match="from 0 to 3 do not fit factor B"):
        top_pairs(A, A, 1, cols=torch.tensor([3, 0]))
    with pytest.raises(LexrayError, match="row_groups and col_groups"):
        top_pairs(A, A, 1, row_groups=torch.arange(3))
    with pytest.raises(LexrayError, match="leave float64's range"):
        top_pairs(A.double() * 1e200, A.double(), 1)


def test_the_basis_makes_both_gram_matrices_equal() -> None:
    A, B = heavy_tailed(900, 6, 29), heavy_tailed(800, 6, 30)
    basis = balanced_basis(A, B)
    GA, GB = ((X @ T).T @ (X @ T) for X, T in ((A, basis.TA), (B, basis.TB)))
    torch.testing.assert_close(GA / GA.norm(), GB / GB.norm(), rtol=0.05, atol=0.02)
    torch.testing.assert_close(basis.TA @ basis.TB.T, torch.eye(6), rtol=0, atol=1e-4)


def test_precision_settings_are_restored() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with full_precision():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
