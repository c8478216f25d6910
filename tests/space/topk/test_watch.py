"""A search that is watched, and one that is ended early: what it says of the rest is true."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.space import TopPairs, top_pairs
from lexray.space.topk import scan
from lexray.space.topk.pairs import SearchState, Sign
from lexray.space.topk.sides import Tiling
from tests.space.topk.test_pairs import (
    SIGNS,
    assert_same,
    factors,
    gaussian,
    heavy_tailed,
    reference,
)

TILES = Tiling(rows=16, cols=8, corner=8)


@pytest.fixture(autouse=True)
def _every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_LOOK_EVERY", 0.0)


def end_after(tiles: int, A: Tensor, B: Tensor, k: int, sign: Sign) -> TopPairs:
    """The search, ended when it has been seen so often."""
    left = tiles

    def watch(_: SearchState) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    return top_pairs(A, B, k, sign=sign, tiling=TILES, watch=watch)


def check(found: TopPairs, A: Tensor, B: Tensor, k: int, sign: Sign) -> None:
    """Against all pairs: values true, and no other pair beyond the limit."""
    rows, cols, values = reference(A, B, len(A) * len(B), sign)
    if found.limit is None:
        assert_same(found, (rows[:k], cols[:k], values[:k]))
        return
    true = dict(zip(zip(rows, cols, strict=True), values, strict=True))
    listed = list(zip(found.rows.tolist(), found.cols.tolist(), strict=True))
    assert [true[pair] for pair in listed] == found.values.tolist()
    assert len(set(listed)) == len(listed)
    size = {"largest": lambda x: x, "smallest": lambda x: -x, "absolute": abs}[sign]
    limit = abs(found.limit) if sign == "absolute" else size(found.limit)
    others = [size(value) for pair, value in true.items() if pair not in set(listed)]
    last = size(found.values[-1].item()) if len(listed) == k else -math.inf
    assert max(others, default=-math.inf) <= max(limit, last)
    sure = [pair for pair, value in true.items() if size(value) > limit]
    assert listed[: len(sure)] == sure[: len(listed)]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("mean", [0.0, 3.0])
@pytest.mark.parametrize("tiles", [0, 1, 5, 40])
def test_what_is_said_of_the_rest(sign: Sign, mean: float, tiles: int) -> None:
    A, B = heavy_tailed(150, 6, 1, mean), heavy_tailed(130, 6, 5, mean)
    check(end_after(tiles, A, B, 12, sign), A, B, 12, sign)


def test_a_flat_product_is_ended_unproven() -> None:
    A, B = gaussian(200, 24, 0), gaussian(180, 24, 1)
    found = end_after(3, A, B, 10, "largest")
    assert found.limit is not None
    assert len(found.values) == 10
    check(found, A, B, 10, "largest")


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(factors(), st.integers(1, 40), st.sampled_from(SIGNS), st.integers(0, 6))
def test_hostile_factors(both: tuple[Tensor, Tensor], k: int, sign: Sign, tiles: int) -> None:
    check(end_after(tiles, *both, k, sign), *both, k, sign)


@pytest.mark.slow
def test_a_search_that_goes_on_is_exact_and_tells_how_far_it_is() -> None:
    A, B = gaussian(150, 8, 2), gaussian(150, 8, 3)
    seen: list[SearchState] = []
    limits: list[float] = []

    def watch(standing: SearchState) -> bool:
        seen.append(standing)
        found = standing.found()
        check(found, A, B, 20, "largest")
        limits.append(math.inf if found.limit is None else found.limit)
        return True

    found = top_pairs(A, B, 20, tiling=TILES, watch=watch)
    assert_same(found, reference(A, B, 20))
    shares = [standing.done for standing in seen]
    assert len(seen) > 5
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] <= 1
    assert torch.tensor(limits).diff().max() <= 0 or math.inf in limits
