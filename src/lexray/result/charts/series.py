"""What a small figure with axes shows: lines, columns, dots, levels, heat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lexray.result.charts.axes import Axis
from lexray.result.charts.pen import Colour, Mix

Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Curve:
    """A curve; `spread` holds the ends of each point's interval."""

    x: Sequence[float]
    y: Numbers
    name: str
    colour: Colour
    dash: str = "solid"
    width: float = 2.0
    dots: bool = True
    spread: Sequence[tuple[float, float]] = ()
    listed: bool = True
    """It stands in the legend."""


@dataclass(frozen=True)
class StandingBars:
    """Bars that stand; those of one panel stand side by side."""

    x: Sequence[float]
    y: Numbers
    name: str
    colour: Colour
    listed: bool = True
    said: Sequence[str] = ()


@dataclass(frozen=True)
class Dots:
    """Points by themselves, each with what is said of it; `named` writes it beside them."""

    x: Sequence[float]
    y: Numbers
    name: str
    colours: Sequence[Colour]
    said: Sequence[str] = ()
    size: float = 3.5
    named: bool = False
    listed: bool = False


@dataclass(frozen=True)
class Level:
    y: float
    name: str
    colour: Colour = "faint"
    dash: str = "dash"
    listed: bool = True


@dataclass(frozen=True)
class Heat:
    """Values by row and column, from the least to the largest; `marks` are cells with a dot."""

    z: Sequence[Numbers]
    marks: Sequence[tuple[int, int]] = ()
    unit: str = ""
    signed: bool = False
    """Zero has the colour of the ground, and either sign its own."""
    first: int = 0
    """The number of the first row."""

    def colour(self, z: float, low: float, high: float) -> Mix:
        if not self.signed:
            return Mix("cold", "hot", (z - low) / ((high - low) or 1.0))
        largest = max(abs(low), abs(high)) or 1.0
        return Mix("card", "positive" if z >= 0 else "negative", abs(z) / largest)


Series = Curve | StandingBars | Dots | Level | Heat


@dataclass(frozen=True)
class Panel:
    title: str
    series: tuple[Series, ...]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)

    def x_values(self) -> Iterator[float]:
        for series in self.series:
            if isinstance(series, Heat):
                yield from (-0.5, max((len(row) for row in series.z), default=1) - 0.5)
            elif not isinstance(series, Level):
                yield from series.x

    def y_values(self) -> Iterator[float]:
        for series in self.series:
            if isinstance(series, Heat):
                yield from (series.first - 0.5, series.first + len(series.z) - 0.5)
            elif isinstance(series, Level):
                yield series.y
            else:
                yield from (y for y in series.y if y is not None)
                if isinstance(series, StandingBars) and not self.y.log:
                    yield 0.0
                if isinstance(series, Curve):
                    yield from (end for ends in series.spread for end in ends)

    @property
    def columns(self) -> list[StandingBars]:
        return [series for series in self.series if isinstance(series, StandingBars)]

    @property
    def heat(self) -> bool:
        return any(isinstance(series, Heat) for series in self.series)
