"""Correlations without projecting: against projections in float64, for any shapes and ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lexray.space import correlation
from lexray.space.correlation import FEATURES, absolute_sum, kernel
from lexray.space.side import Side


def pearson(X: Tensor, Y: Tensor) -> Tensor:
    """Of each row of X with each of Y, in float64; 0 where one is constant."""
    X, Y = (Z.double() - Z.double().mean(1, keepdim=True) for Z in (X, Y))
    sizes = X.norm(dim=1)[:, None] * Y.norm(dim=1)
    return torch.where(sizes > 0, X @ Y.T / sizes, 0.0)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**20),
    d_a=st.integers(1, 12),
    d_b=st.integers(1, 12),
    e=st.integers(3, 30),
    size=st.sampled_from([1e-4, 1.0, 1e4]),
    mean=st.sampled_from([0.0, 1.0, 100.0]),
)
def test_correlations_are_those_of_the_projections(
    seed: int, d_a: int, d_b: int, e: int, size: float, mean: float
) -> None:
    g = torch.Generator().manual_seed(seed)
    X, Y = torch.randn(7, d_a, generator=g) * size, torch.randn(5, d_b, generator=g)
    E = torch.randn(e, d_a, generator=g) + mean * torch.randn(1, d_a, generator=g)
    F = torch.randn(e, d_b, generator=g) / size
    found = kernel(Side(E), Side(F)).correlations(X, Y).double()
    expected = pearson(X.double() @ E.double().T, Y.double() @ F.double().T)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_numpy_agrees_with_the_reference() -> None:
    X, Y = torch.randn(4, 9), torch.randn(3, 9)
    np.testing.assert_allclose(pearson(X, Y), np.corrcoef(X, Y)[:4, 4:], atol=1e-6)


def test_ill_conditioned_embeddings() -> None:
    """Vectors along the directions in which tokens hardly differ."""
    g = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -4, 16)
    E, F = (torch.randn(200, 16, generator=g) * scales for _ in range(2))
    X = torch.eye(16)
    found = kernel(Side(E), Side(F)).correlations(X, X).double()
    torch.testing.assert_close(found, pearson(E.T, F.T), rtol=0, atol=2e-6)


def test_constant_projections_correlate_with_nothing() -> None:
    g = torch.Generator().manual_seed(0)
    E = torch.randn(50, 6, generator=g)
    E[:, 0] = 3.0
    X = torch.randn(4, 6, generator=g)
    X[1] = 0
    X[2] = torch.tensor([5.0, 0, 0, 0, 0, 0])
    found = kernel(Side(E), Side(E))
    alike = found.correlations(X, X)
    assert alike[1].tolist() == alike[2].tolist() == [0, 0, 0, 0]
    assert alike[0, 0] == pytest.approx(1)
    assert found.left.units(X).any(1).tolist() == [True, False, False, True]
    flat = torch.ones(2, 6)
    assert not FEATURES.left.units(flat).any()


def test_feature_space_is_the_correlation_of_the_vectors() -> None:
    X, Y = torch.randn(6, 11), 5 + torch.randn(4, 11)
    torch.testing.assert_close(
        FEATURES.correlations(X, Y).double(), pearson(X, Y), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("tile", [(1, 1), (3, 5), (7, 4), (1000, 1000)])
def test_tiles_change_nothing(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlation, "TILE", tile)
    U, V = torch.randn(7, 6), torch.randn(9, 6)
    expected = float((U.double() @ V.double().T).abs().sum())
    assert absolute_sum(U, V) == pytest.approx(expected, rel=1e-6)
    assert absolute_sum(U[:0], V) == absolute_sum(U, V[:0]) == 0


def test_a_scaled_and_turned_embedding_is_the_same_space() -> None:
    """The kernel of E and E Q is the identity, whatever Q."""
    E, Q = torch.randn(80, 9).double(), torch.randn(9, 9).double()
    found = kernel(Side(E), Side(E @ Q))
    assert found.between is not None
    singular = torch.linalg.svdvals(found.between)
    torch.testing.assert_close(singular, torch.ones(9).double(), rtol=0, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**20), d=st.integers(1, 12), e=st.integers(3, 30))
def test_one_with_many_is_a_row_of_all_with_all(seed: int, d: int, e: int) -> None:
    """Also with a vector of zeros, and with one whose projection is the same for all tokens."""
    g = torch.Generator().manual_seed(seed)
    E, F = torch.randn(e, d, generator=g), torch.randn(e, 5, generator=g)
    F[:, 0] = 2.0
    X, Y = torch.randn(3, d, generator=g), torch.randn(6, 5, generator=g)
    Y[1], Y[2] = 0, torch.tensor([3.0, 0, 0, 0, 0])
    expected = pearson(X.double() @ E.double().T, Y.double() @ F.double().T)
    expected[:, 1:3] = 0
    both = kernel(Side(E), Side(F))
    found = torch.stack([both.correlations_with(x)(Y) for x in X])
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, both.correlations(X, Y), rtol=0, atol=1e-5)
