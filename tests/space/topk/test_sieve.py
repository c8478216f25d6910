"""The sieves, bytes and leading directions: their bounds hold, and with them the answer is the
same."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.space import top_pairs
from lexray.space.topk import pairs, rough, scan, sieve
from lexray.space.topk.arithmetic import full_precision
from lexray.space.topk.bounds import Bound, NormBound, NormTerms, norm_terms
from lexray.space.topk.leading import leading
from lexray.space.topk.operands import Operands, least, margin
from lexray.space.topk.pairs import Sign
from lexray.space.topk.scan import Tiling
from tests.space.topk.test_pairs import (
    assert_same,
    factors,
    gaussian,
    heavy_tailed,
    reference,
)

TILES = Tiling(rows=16, cols=8, corner=4)
HAS_BYTES = rough.has_byte_products(torch.device("cpu"))
WAYS = ["leading", "bytes"]


def multiply_slowly(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """Products of bytes for processors that have none."""
    return (x.int()[:, None] * y.int()).sum(2, dtype=torch.int32)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every product goes through this sieve, at a fraction of the width that depends on it."""
    name = str(request.param)

    def choose(
        A: Tensor, B: Tensor, norms: NormTerms, bound: Bound, threshold: float, *, absolute: bool
    ) -> Operands | None:
        r = A.shape[1]
        if name == "leading":
            return None if absolute else leading(A, B, norms, max(1, r // 3))
        return rough.rough(A, B, norms, r if absolute or r < 9 else r // 2, centred=not absolute)

    if not HAS_BYTES:
        monkeypatch.setattr(sieve, "multiply_bytes", multiply_slowly)
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
        operands: Operands = leading(A, B, norms, width)
        if name == "bytes":
            operands = rough.rough(A, B, norms, width, centred=True)
        rows, cols = operands.rows(torch.arange(80)), operands.bins([torch.arange(90)])(0)
        product = rows.matrix.double() @ cols.matrix.double().T
    units = 1.0 if rows.units is None else rows.units[:, None].double() * cols.unit
    base = 0.0 if rows.base is None else rows.base[:, None].double()
    bounds = base + product * units + margin(rows, cols)[:, None].double() + norms.tiny
    true = A.double() @ B.double().T
    assert (true <= bounds).all()
    if width == 16:
        assert (bounds - true <= 2.01 * margin(rows, cols)[:, None].double() + norms.tiny).all()


def test_what_an_entry_has_to_reach_is_rounded_down() -> None:
    A, B = heavy_tailed(80, 16, 1), heavy_tailed(90, 16, 2)
    true, norms = A.double() @ B.double().T, norm_terms(A, B)
    operands = rough.rough(A, B, norms, 16, centred=True)
    rows, cols = operands.rows(torch.arange(80)), operands.bins([torch.arange(90)])(0)
    product = multiply_slowly(rows.matrix, cols.matrix, torch.empty(0))
    for threshold in (-1.0, 0.0, 3.0, 1e30, float("-inf")):
        passing = product >= least(rows, cols, threshold)[:, None]
        assert passing[true >= threshold].all()
        assert not (threshold == 1e30 and passing.any())


@pytest.mark.skipif(not HAS_BYTES, reason="no VNNI")
@pytest.mark.parametrize("width", [4, 64, 196])
@pytest.mark.parametrize("rows", [1, 2, 17, 300])
@pytest.mark.parametrize("cols", [1, 3, 64, 512])
def test_products_of_bytes_are_whole(width: int, rows: int, cols: int) -> None:
    generator = torch.Generator().manual_seed(width + rows + cols)
    x, y = (
        torch.randint(-127, 128, (n, width), generator=generator).to(torch.int8)
        for n in (rows, cols)
    )
    x[0], y[0] = 127, -127
    found = rough.multiply_bytes(x, y, torch.empty(rows, cols))
    assert torch.equal(found.long(), x.long() @ y.long().T)


def test_a_sieve_that_holds_nothing_back_is_dropped(
    sieved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows and columns alike: every entry is at the threshold, and nothing can be ruled out."""
    useless = lambda A, B, norms, *_, **__: leading(A, B, norms, 2)  # noqa: E731
    monkeypatch.setattr(pairs, "choose_sieve", useless)
    monkeypatch.setattr(pairs, "_WORK_WORTH_A_SIEVE", -1.0)
    A, B = gaussian(1, 8, 1).repeat(160, 1), gaussian(1, 8, 1).repeat(200, 1)
    found = top_pairs(A, B, 5, tiling=TILES)
    assert found.rows.tolist() == [0] * 5
    assert found.cols.tolist() == [0, 1, 2, 3, 4]
    assert 0 < sum(sieved) < 160 * 200 / 2


def test_wide_heads_of_few_directions_go_through_a_narrow_sieve() -> None:
    spectrum = torch.cat([torch.ones(12), torch.full((116,), 0.02)])
    A, B = gaussian(900, 128, 1) * spectrum, gaussian(1100, 128, 2) * spectrum
    norms = norm_terms(A, B)
    threshold = float((A @ B.T).flatten().topk(20).values[-1])
    bound = NormBound(norms, 64, threshold)
    chosen = sieve.choose_sieve(A, B, norms, bound, threshold, absolute=False)
    assert chosen is not None
    assert chosen.rows(torch.arange(3)).matrix.shape[1] <= 36


def test_flat_spectra_have_none_without_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "has_byte_products", lambda device: False)
    A, B = gaussian(900, 128, 1), gaussian(1100, 128, 2)
    norms = norm_terms(A, B)
    threshold = float((A @ B.T).flatten().topk(20).values[-1])
    bound = NormBound(norms, 64, threshold)
    assert sieve.choose_sieve(A, B, norms, bound, threshold, absolute=False) is None
