"""The sides of the embedding space against the columns they stand for, built whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray import scratch
from lexray.space import kernels
from lexray.space import side as embedding
from lexray.space.kernels import gram, invert, moments, root
from lexray.space.side import Side

e, width, d = 29, 7, 5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make(P: bool, mean: bool, sigma: bool, dtype: torch.dtype = torch.float32) -> Side:
    """Of width 7, or of width 5 projected from 7."""
    return Side(
        random(e, width).to(dtype),
        random(d, width, seed=1) if P else None,
        random(width, seed=2) if mean else None,
        random(e, seed=3).abs() + 0.1 if sigma else None,
    )


def columns(side: Side) -> Tensor:
    """P (w_j − μ) / σ_j as rows, in float64."""
    found = side.rows.double()
    if side.mean is not None:
        found = found - side.mean.double()
    if side.P is not None:
        found = found @ side.P.double().T
    return found if side.sigma is None else found / side.sigma.double()[:, None]


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


every = pytest.mark.parametrize(
    "side",
    [
        make(P, mean, sigma)
        for P in (False, True)
        for mean in (False, True)
        for sigma in (False, True)
    ]
    + [make(True, True, True, torch.bfloat16), make(True, True, True, torch.float64)],
    ids=lambda s: (
        f"{s.P is not None:d}{s.mean is not None:d}{s.sigma is not None:d}-{s.rows.dtype}"
    ),
)


@pytest.fixture(params=[3, 8192])
def _rows_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "ROWS_AT_ONCE", request.param)


@every
@pytest.mark.usefixtures("_rows_at_once")
def test_a_side_is_its_columns(side: Side) -> None:
    E = columns(side)
    X = random(4, E.shape[1], seed=5)
    close(torch.cat(list(side.columns())), E)
    close(side.column(11), E[11])
    close(side.project(X), X.double() @ E.T)
    close(side.factor(X.T), E @ X.double().T)
    close(side.map_rows(lambda x: x.square()), E.square())
    assert next(side.blocks()).dtype == torch.promote_types(side.rows.dtype, torch.float32)


@every
@pytest.mark.usefixtures("_rows_at_once")
def test_top_and_bottom(side: Side) -> None:
    E = columns(side)
    X = random(4, E.shape[1], seed=5)
    scores = X.double() @ E.T
    found = side.top(X, 6)
    assert found.top_ids.tolist() == scores.argsort(descending=True)[:, :6].tolist()
    assert found.bottom_ids.tolist() == scores.argsort()[:, :6].tolist()
    close(found.top_values, scores.sort(descending=True).values[:, :6])
    assert side.top(X, 99).top_ids.shape == (4, e)
    assert side.top(X[:0], 6).top_ids.shape == (0, 6)


@every
def test_only_some_tokens(side: Side) -> None:
    ids = torch.tensor([28, 3, 4, 17])
    some = side.only(ids)
    close(torch.cat(list(some.columns())), columns(side)[ids])
    X = random(2, columns(side).shape[1], seed=6)
    scores = X.double() @ columns(side)[ids].T
    order = scores.argsort(descending=True)[:, :3]
    assert some.top(X, 3).top_ids.tolist() == ids[order].tolist()
    assert some.top(X, 3).bottom_ids.tolist() == ids[scores.argsort()[:, :3]].tolist()


@every
@pytest.mark.usefixtures("_rows_at_once")
@pytest.mark.parametrize("centred", [False, True])
def test_gram(side: Side, centred: bool) -> None:
    a = columns(side)
    other = Side(random(e, 4, seed=7), random(a.shape[1], 4, seed=8), sigma=random(e, seed=9))
    b = columns(other)
    if centred:
        a, b = a - a.mean(0), b - b.mean(0)
    found = gram(side, other, centred=centred)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, a.T @ b, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(gram(side, side, centred=centred), a.T @ a, rtol=1e-4, atol=1e-3)


def test_a_projected_gram_is_exact_where_it_has_no_rank() -> None:
    """Float32 products before the sum would fill the missing directions with noise."""
    side = Side(random(e, 3), random(24, 3, seed=1))
    exact = (side.rows.double() @ side.P.double().T).T  # type: ignore[union-attr]
    found = torch.linalg.eigvalsh(gram(side, side)).abs().sort(descending=True).values
    assert float(found[3] / found[0]) < 1e-14
    inverse = torch.cat(list(invert(side).columns())).T
    torch.testing.assert_close(
        inverse.double(), torch.linalg.pinv(exact, rtol=1e-6).T, rtol=1e-4, atol=1e-5
    )


@pytest.mark.usefixtures("_rows_at_once")
def test_moments() -> None:
    X = random(31, d)
    expected = X.double().mean(0), X.double().T @ X.double() / 31
    for sizes in ([31], [10, 1, 20], [1] * 31):
        torch.testing.assert_close(moments(d, iter(X.split(sizes))), expected)
    assert all(found.dtype == torch.float64 for found in moments(d, [X.bfloat16()]))
    assert not any(bool(found.any()) for found in moments(d, []))


@every
@pytest.mark.usefixtures("_rows_at_once")
@pytest.mark.parametrize("centred", [False, True])
def test_some_columns_are_those_of_a_side_of_them_alone(side: Side, centred: bool) -> None:
    """Wherever places are given instead of a copy of their rows."""
    at = torch.tensor([3, 4, 7, 11, 12, 20, 28])
    alone = side.only(at)
    close(torch.cat(list(side.blocks(at))), torch.cat(list(alone.blocks())).double())
    found = gram(side, side, centred=centred, among=(at, at))
    torch.testing.assert_close(found, gram(alone, alone, centred=centred), rtol=1e-9, atol=1e-9)


@every
@pytest.mark.usefixtures("_rows_at_once")
def test_calibrated(side: Side) -> None:
    side = replace(side, sigma=None)
    E = columns(side)
    X = random(13, E.shape[1], seed=8).double()
    S = X.T @ X / 13
    sigma = torch.stack([(c @ S @ c).sqrt() for c in E])
    close(torch.cat(list(side.calibrate(S).columns())), E / sigma[:, None])
    sizes = (X @ torch.cat(list(side.calibrate(S).columns())).double().T).square().mean(0)
    close(sizes, torch.ones_like(sizes))  # which is what σ is for


@every
def test_calibrated_around_a_mean(side: Side) -> None:
    side = replace(side, sigma=None)
    E = columns(side)
    X = random(13, E.shape[1], seed=8).double() + 0.5
    sigma = side.calibrate(X.T @ X / 13, around=X.mean(0)).sigma
    assert sigma is not None
    close(sigma, (X @ E.T).std(0, unbiased=False))


@pytest.mark.parametrize("rank", [24, 5, 0])
def test_roots_in_files_are_those_that_are_held(
    rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By another way of LAPACK, which is written over what is given."""
    X = random(24, rank).double()
    own = X @ X.T
    held, values = root(own.clone())
    monkeypatch.setattr(scratch, "HELD", 0)
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path))
    for given in (own.clone(), own.T.clone().T):
        L, same = root(given)
        assert L.shape == held.shape == (24, rank)
        torch.testing.assert_close(same, values)
        torch.testing.assert_close(L @ L.T, own)
        torch.testing.assert_close((L / same).T @ L, torch.eye(rank).double(), rtol=0, atol=1e-9)


@every
@pytest.mark.parametrize("centred", [False, True])
def test_gram_in_files(
    side: Side, centred: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = replace(side, rows=random(e, side.rows.shape[1], seed=7))
    held = gram(side, other, centred=centred)
    monkeypatch.setattr(scratch, "HELD", 0)
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path))
    torch.testing.assert_close(gram(side, other, centred=centred), held, rtol=1e-12, atol=1e-9)


def test_the_floor_of_sigma() -> None:
    rows = random(e, d)
    rows[3], rows[4] = 0, rows[4] * 1e-6
    S = torch.eye(d, dtype=torch.float64)
    sigma = Side(rows).calibrate(S).sigma
    assert sigma is not None
    floor = 1e-3 * float(rows.norm(dim=1).median())
    assert sigma[[3, 4]].tolist() == pytest.approx([floor, floor])
    close(sigma[5:], rows[5:].double().norm(dim=1))
    rows[20:] = torch.nan  # rows without tokens
    sigma = Side(rows).calibrate(S, torch.arange(20)).sigma
    assert sigma is not None
    assert float(sigma[3]) == pytest.approx(1e-3 * float(rows[:20].norm(dim=1).median()))
    nothing = Side(torch.zeros(e, d)).calibrate(S)
    assert bool(torch.cat(list(nothing.columns())).isfinite().all())


@every
@pytest.mark.usefixtures("_rows_at_once")
def test_inverted(side: Side) -> None:
    side = replace(side, sigma=None)
    E = columns(side).T
    close(torch.cat(list(invert(side).columns())).T, torch.linalg.pinv(E).T)
    some = torch.arange(3, 20)
    found = torch.cat(list(invert(side, some).columns())).T
    close(found[:, some], torch.linalg.pinv(E[:, some]).T)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16, torch.float64])
def test_any_dtype_with_any_other(dtype: torch.dtype, other: torch.dtype) -> None:
    side = make(True, True, True, dtype)
    X = random(4, d).to(other)
    expected = X.double() @ columns(side).T
    close(side.project(X), expected)
    close(side.top(X, 3).top_values, expected.sort(descending=True).values[:, :3])


def test_no_float64_where_a_device_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPS has no float64: whatever needs it is moved to the CPU first."""
    moved: list[str] = []
    real: Callable[..., Tensor] = Tensor.cpu

    class Fake:
        """As much of a tensor on MPS as `exactly` looks at."""

        device = torch.device("mps")

        def cpu(self) -> Tensor:
            moved.append("cpu")
            return real(random(2, 2))

        def double(self) -> Any:
            raise TypeError("Cannot convert a MPS Tensor to float64")

    bare: Any = kernels.exactly
    while hasattr(bare, "__wrapped__"):  # the shapes' checker would refuse the fake
        bare = bare.__wrapped__
    assert bare(Fake()).dtype == torch.float64
    assert moved == ["cpu"]
