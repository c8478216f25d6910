"""Chance levels, p and q against all permutations and against scipy."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats

from lexray.roles.chance import (
    chance_of,
    cosine_tail,
    p_values,
    q_of_some,
    q_values,
    shuffles,
)


def test_mean_and_variance_are_those_of_all_permutations() -> None:
    generator = torch.Generator().manual_seed(0)
    for density in (0.2, 0.6, 1.0):
        H = torch.rand(5, 5, generator=generator) < density
        counts = np.array(
            [sum(bool(H[i, j]) for i, j in enumerate(p)) for p in permutations(range(5))]
        )
        at = H.nonzero()
        found = chance_of(at[:, 0], at[:, 1], 3, shuffles(5, 4000, 0))
        np.testing.assert_allclose(found.mean, counts.mean(), atol=1e-12)
        np.testing.assert_allclose(found.variance, counts.var(), atol=1e-9)
        np.testing.assert_allclose(found.reached / 4000, (counts >= 3).mean(), atol=0.03)


def test_no_hits() -> None:
    none = torch.zeros(0, dtype=torch.long)
    found = chance_of(none, none, 0, shuffles(4, 100, 0))
    assert (found.mean, found.variance, found.reached) == (0, 0, 100)


def test_shuffles_repeat_with_their_seed() -> None:
    assert torch.equal(shuffles(6, 100, 1), shuffles(6, 100, 1))
    assert not torch.equal(shuffles(6, 100, 1), shuffles(6, 100, 2))
    assert shuffles(6, 100, 1).sort(1).values.eq(torch.arange(6)).all()


def test_p_below_what_shuffles_can_say() -> None:
    """A permutation matrix: 20 hits have probability 1/20!, and the tail says so, roughly."""
    n = np.array([20])
    args = (np.array([1.0]), np.array([1.0]))
    p = p_values(np.array([20]), *args, np.array([0]), n, 1000)
    assert 0 < p[0] < 1e-10
    assert p_values(np.array([20]), *args, np.array([4]), n, 1000)[0] == 5 / 1001
    assert p_values(np.array([0]), *args, np.array([900]), n, 1000)[0] == 1
    few = np.array([0])
    plain = p_values(np.array([9]), np.array([2.0]), np.array([1.0]), few, n, 100)
    np.testing.assert_allclose(plain, stats.binom.sf(8, 20, 0.1), rtol=1e-6)
    wide = p_values(np.array([9]), np.array([2.0]), np.array([4.0]), few, n, 100)
    assert plain[0] < wide[0] <= 1 / 101


def test_q_values_are_scipys() -> None:
    p = np.random.default_rng(0).uniform(size=(3, 7)) ** 3
    expected = stats.false_discovery_control(p.ravel(), method="bh").reshape(p.shape)
    np.testing.assert_allclose(q_values(p), expected)
    assert q_values(np.zeros((0, 2))).shape == (0, 2)


def test_cosines_of_random_directions() -> None:
    """Against random unit vectors; and some out of many tested are as sure as among all."""
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(200_000, 12, generator=generator), dim=1)
    cosines = x[:, 0].abs().double().numpy()
    for limit in (0.2, 0.5, 0.8):
        p = cosine_tail(np.array([limit]), np.array([12**-0.5]))[0]
        assert p == pytest.approx((cosines >= limit).mean(), abs=0.003)
    p = np.sort(np.random.default_rng(0).uniform(0, 1, 500)) ** 4
    np.testing.assert_allclose(q_of_some(p, len(p)), q_values(p))
    assert (q_of_some(p[:50], len(p)) >= q_values(p)[:50] - 1e-12).all()
