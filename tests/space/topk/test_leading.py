"""The sieve of leading directions: its bound holds, and with it the answer is the same."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.space import top_pairs
from lexray.space.topk import leading, pairs, scan
from lexray.space.topk.arithmetic import full_precision
from lexray.space.topk.bounds import NormBound, norm_terms
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


@pytest.fixture
def sieved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Always through a sieve; the sizes of the tiles that went through it."""
    seen: list[int] = []
    tile = scan.Scanner._sieve_tile

    def record(self: scan.Scanner, *arguments: Tensor) -> None:
        seen.append(len(arguments[0]) * len(arguments[2]))
        tile(self, *arguments)

    monkeypatch.setattr(pairs, "_WORK_WORTH_A_SIEVE", -1.0)
    monkeypatch.setattr(leading, "_WORTH", float("inf"))
    monkeypatch.setattr(scan.Scanner, "_sieve_tile", record)
    return seen


@pytest.mark.parametrize("sign", ["largest", "smallest"])
@pytest.mark.parametrize("crowded", [0.0, 1.0])
@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_the_answer_is_the_same(
    sign: Sign, crowded: float, mean: float, sieved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_CROWDED", crowded)
    A, B = heavy_tailed(120, 16, 3, mean), heavy_tailed(100, 16, 9, mean)
    groups = torch.arange(120) % 7, torch.arange(100) % 7
    found = top_pairs(A, B, 15, sign=sign, row_groups=groups[0], col_groups=groups[1], tiling=TILES)
    same = groups[0][:, None] == groups[1]
    assert_same(found, reference(A, B, 15, sign, same))
    assert sieved


@pytest.mark.slow
@settings(
    max_examples=150,
    suppress_health_check=list(HealthCheck),
)
@given(factors(), st.integers(1, 30), st.sampled_from(["largest", "smallest"]))
def test_hostile_factors(
    sieved: list[int], both: tuple[Tensor, Tensor], k: int, sign: Sign
) -> None:
    assert_same(top_pairs(*both, k, sign=sign, tiling=TILES), reference(*both, k, sign))


@pytest.mark.parametrize("width", [1, 5, 12])
@pytest.mark.parametrize("size", [1.0, 1e-12, 1e9])
def test_the_bound_holds(width: int, size: float) -> None:
    A, B = heavy_tailed(80, 16, 1) * size, heavy_tailed(90, 16, 2)
    with full_precision():
        norms = norm_terms(A, B)
        assert norms.basis is not None
        basis = norms.basis.reversed()
        P = leading._coordinates(A, basis.TA, width)
        Q = leading._coordinates(B, basis.TB, width)
        slack = leading.error_of(basis) * torch.outer(norms.rows, norms.cols)
        bounds = (P @ Q.T + slack + norms.tiny).double()
    assert (A.double() @ B.double().T <= bounds).all()


def test_wide_heads_of_few_directions_go_through_a_narrow_sieve() -> None:
    spectrum = torch.cat([torch.ones(12), torch.full((116,), 0.02)])
    A, B = gaussian(900, 128, 1) * spectrum, gaussian(1100, 128, 2) * spectrum
    norms = norm_terms(A, B)
    threshold = float((A @ B.T).flatten().topk(20).values[-1])
    sieve = leading.leading(A, B, norms, NormBound(norms, 64, threshold), threshold)
    assert sieve is not None
    assert sieve.A.shape[1] <= 33


def test_flat_spectra_have_none() -> None:
    A, B = gaussian(900, 32, 1), gaussian(1100, 32, 2)
    norms = norm_terms(A, B)
    threshold = float((A @ B.T).flatten().topk(20).values[-1])
    assert leading.leading(A, B, norms, NormBound(norms, 64, threshold), threshold) is None
