"""The sieves, bytes and leading directions: their bounds hold, and with them the answer is the
same."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.space import top_pairs
from lexray.space.topk import pairs, scan, sieve, whole_products
from lexray.space.topk.arithmetic import full_precision
from lexray.space.topk.bounds import Bound, NormBound, NormTerms, norm_terms
from lexray.space.topk.leading import Leading, leading
from lexray.space.topk.operands import Operands, least, margin
from lexray.space.topk.pairs import Sign
from lexray.space.topk.rough import rough
from lexray.space.topk.sides import Tiling
from tests.space.topk.test_pairs import (
    assert_same,
    factors,
    gaussian,
    heavy_tailed,
    reference,
)

TILES = Tiling(rows=16, cols=8, corner=4)
PRODUCTS = {
    name: way
    for name, way in (
        ("bytes", whole_products._SIGNED),
        ("shifted bytes", whole_products._SHIFTED),
    )
    if whole_products._can_multiply(way)
}
"""Of bytes, fast or not."""
WAYS = ["leading", *PRODUCTS]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every product goes through this sieve, at a fraction of the width that depends on it."""
    name = str(request.param)

    def choose(
        norms: NormTerms,
        bound: Bound,
        threshold: float,
        *,
        absolute: bool,
        first: int = 0,
        now: Operands | None = None,
    ) -> Operands | None:
        assert norms.balanced
        r = norms.balanced.P.X.shape[1]
        if name == "leading":
            return None if absolute else leading(norms, max(1, r // 3))
        width = r if absolute or r < 9 else r // 2
        return rough(norms, width, PRODUCTS[name], centred=not absolute)

    monkeypatch.setattr(pairs, "_WORK_WORTH_A_SIEVE", -1.0)
    monkeypatch.setattr(pairs, "choose_sieve", choose)
    return name


@pytest.fixture
def sieved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the tiles that went through a sieve."""
    seen: list[int] = []
    tile = scan.Scanner._sieve_tile

    def record(self: scan.Scanner, *arguments: Tensor) -> None:
        seen.append(len(arguments[0]) * len(arguments[2]))
        tile(self, *arguments)

    monkeypatch.setattr(scan.Scanner, "_sieve_tile", record)
    return seen


@pytest.mark.parametrize("sign", ["largest", "smallest", "absolute"])
@pytest.mark.parametrize("crowded", [0.0, 1 / 64, 1.0])
@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_the_answer_is_the_same(
    way: str,
    sign: Sign,
    crowded: float,
    mean: float,
    sieved: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "_CROWDED", crowded)
    monkeypatch.setattr(scan, "_FUTILE", crowded)
    A, B = heavy_tailed(120, 16, 3, mean), heavy_tailed(100, 16, 9, mean)
    groups = torch.arange(120) % 7, torch.arange(100) % 7
    found = top_pairs(A, B, 15, sign=sign, row_groups=groups[0], col_groups=groups[1], tiling=TILES)
    same = groups[0][:, None] == groups[1]
    assert_same(found, reference(A, B, 15, sign, same))
    assert sieved or (way, sign) == ("leading", "absolute")


@pytest.mark.slow
@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(factors(), st.integers(1, 30), st.sampled_from(["largest", "smallest", "absolute"]))
def test_hostile_factors(way: str, both: tuple[Tensor, Tensor], k: int, sign: Sign) -> None:
    assert_same(top_pairs(*both, k, sign=sign, tiling=TILES), reference(*both, k, sign))


@pytest.mark.parametrize("width", [1, 5, 12, 16])
@pytest.mark.parametrize("size", [1.0, 1e-12, 1e9])
@pytest.mark.parametrize("name", WAYS)
def test_the_bound_holds(name: str, width: int, size: float) -> None:
    A, B = heavy_tailed(80, 16, 1, 3.0) * size, heavy_tailed(90, 16, 2, 3.0)
    with full_precision():
        norms = norm_terms(A, B)
        operands: Operands = leading(norms, width)
        if name in PRODUCTS:
            operands = rough(norms, width, PRODUCTS[name], centred=True)
        rows, cols = operands.rows(torch.arange(80)), operands.bins([torch.arange(90)])(0)
        product = sieve.multiply(rows.matrix, cols.matrix, torch.empty(80, 90)).double()
    units = 1.0 if rows.units is None else rows.units[:, None].double() * cols.unit
    base = 0.0 if rows.base is None else rows.base[:, None].double()
    bounds = base + product * units + margin(rows, cols)[:, None].double() + norms.tiny
    true = A.double() @ B.double().T
    assert (true <= bounds).all()
    if width == 16:
        assert (bounds - true <= 2.01 * margin(rows, cols)[:, None].double() + norms.tiny).all()


@pytest.mark.parametrize("name", PRODUCTS)
def test_what_an_entry_has_to_reach_is_rounded_down(name: str) -> None:
    A, B = heavy_tailed(80, 16, 1), heavy_tailed(90, 16, 2)
    true, norms = A.double() @ B.double().T, norm_terms(A, B)
    operands = rough(norms, 16, PRODUCTS[name], centred=True)
    rows, cols = operands.rows(torch.arange(80)), operands.bins([torch.arange(90)])(0)
    product = sieve.multiply(rows.matrix, cols.matrix, torch.empty(80, 90))
    for threshold in (-1.0, 0.0, 3.0, 1e30, float("-inf")):
        passing = product >= least(rows, cols, threshold)[:, None]
        assert passing[true >= threshold].all()
        assert not (threshold == 1e30 and passing.any())


def test_a_sieve_that_holds_nothing_back_is_dropped(
    sieved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows and columns alike: every entry is at the threshold, and nothing can be ruled out."""
    useless = lambda norms, *_, **__: leading(norms, 2)  # noqa: E731
    monkeypatch.setattr(pairs, "choose_sieve", useless)
    monkeypatch.setattr(pairs, "_WORK_WORTH_A_SIEVE", -1.0)
    A, B = gaussian(1, 8, 1).repeat(160, 1), gaussian(1, 8, 1).repeat(200, 1)
    found = top_pairs(A, B, 5, tiling=TILES)
    assert found.rows.tolist() == [0] * 5
    assert found.cols.tolist() == [0, 1, 2, 3, 4]
    assert 0 < sum(sieved) < 160 * 200 / 2


@pytest.mark.parametrize("waiting", [0, 5, 1024])
def test_a_narrower_sieve_takes_over(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []

    def choose(
        norms: NormTerms,
        bound: Bound,
        threshold: float,
        *,
        absolute: bool,
        first: int = 0,
        now: Operands | None = None,
    ) -> Operands:
        asked.append((threshold, first))
        return leading(norms, max(1, now.width // 2) if isinstance(now, Leading) else 16)

    monkeypatch.setattr(pairs, "choose_sieve", choose)
    monkeypatch.setattr(pairs, "_WORK_WORTH_A_SIEVE", -1.0)
    monkeypatch.setattr(scan, "_RISEN", 1.0)
    monkeypatch.setattr(scan, "_LEFT", 0)
    monkeypatch.setattr(scan, "_WAITING", waiting)
    A, B = gaussian(400, 16, 3), gaussian(300, 16, 9)
    assert_same(top_pairs(A, B, 15, tiling=TILES), reference(A, B, 15, "largest"))
    assert len(asked) > 1
    assert asked == sorted(asked)


def test_a_risen_threshold_needs_fewer_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "whole_products", lambda device, width: None)
    spectrum = torch.arange(1, 129).pow(-0.7)
    A, B = gaussian(900, 128, 1) * spectrum, gaussian(1100, 128, 2) * spectrum
    norms = norm_terms(A, B)
    low, high = (A @ B.T).flatten().topk(20).values[[-1, 0]].tolist()
    bound = NormBound(norms, 64, low)
    before = sieve.choose_sieve(norms, bound, low, absolute=False)
    after = sieve.choose_sieve(norms, bound, high, absolute=False, now=before)
    assert isinstance(before, Leading)
    assert isinstance(after, Leading)
    assert after.width < before.width
    assert sieve.choose_sieve(norms, bound, low, absolute=False, now=after) is after


def test_wide_heads_of_few_directions_go_through_a_narrow_sieve() -> None:
    spectrum = torch.cat([torch.ones(12), torch.full((116,), 0.02)])
    A, B = gaussian(900, 128, 1) * spectrum, gaussian(1100, 128, 2) * spectrum
    norms = norm_terms(A, B)
    threshold = float((A @ B.T).flatten().topk(20).values[-1])
    bound = NormBound(norms, 64, threshold)
    chosen = sieve.choose_sieve(norms, bound, threshold, absolute=False)
    assert chosen is not None
    assert chosen.rows(torch.arange(3)).matrix.shape[1] <= 36


def test_flat_spectra_have_none_without_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "whole_products", lambda device, width: None)
    A, B = gaussian(900, 128, 1), gaussian(1100, 128, 2)
    norms = norm_terms(A, B)
    threshold = float((A @ B.T).flatten().topk(20).values[-1])
    bound = NormBound(norms, 64, threshold)
    assert sieve.choose_sieve(norms, bound, threshold, absolute=False) is None
