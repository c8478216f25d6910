"""Is a place that a head looks at out of line with others, or what equal weights would give?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lexray.roles.patterns import MeanLooks

LOOKS, MOST = 0.2, 0.5
"""What a role takes of the attention beside a small q; `MOST` in a narrow window."""
FEWEST = 4
"""Offsets that another can be compared with."""


def stands_out(share: float, level: float, equal: MeanLooks) -> bool:
    """Whether a share of attention goes far beyond equal weights: by a fifth of what is missing,
    or by half where the head sees too few places for a test against others."""
    beyond = (share - level) / max(1 - level, 1e-12)
    return beyond > (LOOKS if int((equal.offsets > 0).sum()) >= FEWEST + 3 else MOST)


def place_chances(looked: MeanLooks, equal: MeanLooks) -> NDArray[np.float64]:
    """For each offset: is its weight, as a multiple of equal weights, out of line with those at
    other offsets? A t-test; its neighbours and the token itself do not count among the others.
    Where a narrow window leaves too few others: is it above equal weights?"""
    times = _times(looked, equal)
    places, seen = np.arange(len(times)), np.asarray(equal.offsets > 0)
    above = np.asarray((looked.offsets - equal.offsets) / looked.errors.clamp(min=1e-12))
    chances = []
    for i in places:
        others = times[(np.abs(places - i) > 1) & (places > 0) & seen]
        few = len(others) < FEWEST
        chances.append(float(tail([above[i]])[0]) if few else _apart(times[i], others))
    return np.where(seen, chances, 1.0)


def first_chance(looked: MeanLooks, equal: MeanLooks) -> float:
    """The same for the first token, against the tokens just before."""
    others = _times(looked, equal)[2:][np.asarray(equal.offsets[2:] > 0)]
    if equal.first == 0 or len(others) < FEWEST:
        return 1.0
    return _apart(looked.first / equal.first, others)


def _times(looked: MeanLooks, equal: MeanLooks) -> NDArray[np.float64]:
    return np.asarray(looked.offsets / equal.offsets.clamp(min=1e-12), dtype=np.float64)


def _apart(value: float, others: NDArray[np.float64]) -> float:
    """How often one more of such numbers would be at least so large."""
    from scipy import stats  # which starts slowly

    n = len(others)
    spread = float(others.std(ddof=1)) * np.sqrt(1 + 1 / n)
    if spread == 0:
        return float(value <= others.mean())
    return float(stats.t.sf((value - others.mean()) / spread, n - 1))


def tail(z: Sequence[float]) -> NDArray[np.float64]:
    """How often a standard normal is at least so large."""
    from scipy import stats  # which starts slowly

    return np.asarray(stats.norm.sf(np.array(z)), dtype=np.float64)
