"""Where bounds would cost more than they spare, the product itself is searched: same answers."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.space import top_pairs
from lexray.space.topk import bounds, pairs
from lexray.space.topk.pairs import Sign
from lexray.space.topk.sides import Tiling
from tests.space.topk.test_pairs import assert_same, factors, gaussian, heavy_tailed, reference

SIGNS: list[Sign] = ["largest", "smallest", "absolute"]
TILES = Tiling(rows=16, cols=8, corner=4)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Never a basis; how often plain norms were taken instead."""
    seen: list[int] = []
    terms = bounds.plain_terms

    def record(A: Tensor, B: Tensor) -> bounds.NormTerms:
        seen.append(len(A))
        return terms(A, B)

    monkeypatch.setattr(pairs, "_BOUNDS_WORTH", 0.0)
    monkeypatch.setattr(pairs, "plain_terms", record)
    return seen


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("make", [gaussian, heavy_tailed])
def test_the_answer_is_the_same(sign: Sign, make: object, plain: list[int]) -> None:
    A, B = make(120, 16, 3), make(100, 16, 9)  # type: ignore[operator]
    groups = torch.arange(120) % 7, torch.arange(100) % 7
    found = top_pairs(A, B, 15, sign=sign, row_groups=groups[0], col_groups=groups[1], tiling=TILES)
    assert_same(found, reference(A, B, 15, sign, groups[0][:, None] == groups[1]))
    assert plain


@pytest.mark.slow
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(factors(), st.integers(1, 30), st.sampled_from(SIGNS))
def test_hostile_factors(plain: list[int], both: tuple[Tensor, Tensor], k: int, sign: Sign) -> None:
    assert_same(top_pairs(*both, k, sign=sign, tiling=TILES), reference(*both, k, sign))


def test_columns_that_are_too_short_are_not_multiplied(plain: list[int]) -> None:
    """Norms still end the search where they can."""
    A, B = gaussian(60, 16, 1), gaussian(400, 16, 2)
    B[:40] *= 100
    found = top_pairs(A, B, 5, tiling=TILES)
    assert_same(found, reference(A, B, 5, "largest"))
    assert found.work < 0.5


def test_when_bounds_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens through a head: always; neurons against neurons: not."""
    monkeypatch.setattr(pairs, "_BOUNDS_WORTH", 0.25)
    assert pairs._can_be_worth_bounding(49152, 49152, 64)
    assert pairs._can_be_worth_bounding(262144, 262144, 256)
    assert not pairs._can_be_worth_bounding(1536, 29 * 3072, 576)
    assert not pairs._can_be_worth_bounding(11008, 11008, 4096)
