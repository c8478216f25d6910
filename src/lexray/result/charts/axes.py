"""Scales: from numbers to places on paper, and the round numbers that are written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """What an axis is to be; what it reaches is seen from the data."""

    title: str = ""
    log: bool = False
    zero: bool = False
    """It begins at zero."""
    whole: bool = False
    """Only whole numbers are written: layers, heads."""
    percent: bool = False
    down: bool = False
    """It runs from top to bottom."""


@dataclass(frozen=True)
class AxisScale:
    low: float
    high: float
    log: bool = False

    def at(self, value: float) -> float:
        """From 0 at the low end to 1 at the high one."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            return (math.log10(max(value, 1e-300)) - low) / ((high - low) or 1.0)
        return (value - self.low) / ((self.high - self.low) or 1.0)


def scale_of(axis: Axis, values: Iterable[float], pad: float = 0.0) -> AxisScale:
    """A scale that holds all values, with some room; `pad` is room in the values' own unit."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
    if not known:
        return AxisScale(1.0, 10.0, True) if axis.log else AxisScale(0.0, 1.0)
    low, high = min(known), max(known)
    if axis.log:
        room = (high / low) ** 0.04 if high > low else 2.0
        return AxisScale(low / room, high * room, True)
    if axis.zero:
        low, high = min(low, 0.0), max(high, 0.0)
    room = pad or 0.05 * ((high - low) or abs(high) or 1.0)
    below = 0.0 if axis.zero and low == 0 and not pad else room
    above = 0.0 if axis.zero and high == 0 and not pad else room
    return AxisScale(low - below, high + above)


def ticks(scale: AxisScale, axis: Axis, most: int) -> list[tuple[float, str]]:
    """Round numbers inside a scale, at most so many, and how they are written."""
    if scale.log:
        return _powers(scale, most)
    step = round_step((scale.high - scale.low) / max(1, most))
    if axis.whole:
        step = max(1.0, round(step))
    first = math.ceil(scale.low / step - 1e-9)
    last = math.floor(scale.high / step + 1e-9)
    return [(i * step, _write(i * step, step, axis)) for i in range(first, last + 1)]


def round_step(least: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is no smaller.

    >>> [round_step(x) for x in (0.3, 1.7, 3.0, 70)]
    [0.5, 2.0, 5.0, 100.0]
    """
    power = 10.0 ** math.floor(math.log10(max(least, 1e-300)))
    return next(f * power for f in (1.0, 2.0, 5.0, 10.0) if f * power >= least * (1 - 1e-9))


def _powers(scale: AxisScale, most: int) -> list[tuple[float, str]]:
    first = math.ceil(math.log10(scale.low) - 1e-9)
    last = math.floor(math.log10(scale.high) + 1e-9)
    step = max(1, -(-(last - first + 1) // max(1, most)))
    powers = list(range(first, last + 1, step))
    if len(powers) > 2:
        return [(10.0**p, f"{10.0**p:g}" if -4 < p < 6 else f"1e{p}") for p in powers]
    between = [f * 10.0**p for p in range(first - 1, last + 1) for f in (1, 2, 5)]
    inside = [v for v in between if scale.low <= v <= scale.high]
    few = inside or [scale.low * 1.05, scale.high / 1.05]  # within a step: its ends
    return [(v, f"{v:.2g}") for v in few]


def _write(value: float, step: float, axis: Axis) -> str:
    if axis.percent:
        return f"{100 * value:.{max(0, -math.floor(math.log10(step * 100) + 1e-9))}f} %"
    if abs(value) >= 1e5 or (value and step < 1e-4):
        return f"{value:.2g}"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:.{digits}f}" if value else "0"
