"""What a study finds: a paper's claims with their verdicts, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from lexray.result.charts.panels import Panels
from lexray.result.table import Result, Table

Verdict = Literal["holds", "does not hold", "not testable"]


@dataclass(frozen=True)
class Finding:
    """A claim of a paper, and what this model says to it."""

    claim: str
    rule: str
    """When it holds: the same for every model."""
    verdict: Verdict
    measured: str
    published: str = ""
    """What the paper reports, and for which model."""

    def to_dict(self) -> dict[str, str]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def finding(
    claim: str, rule: str, holds: bool | None, measured: str, published: str = ""
) -> Finding:
    """A finding whose rule came out true, false, or (None) could not be applied."""
    verdict: Verdict = "not testable" if holds is None else "holds" if holds else "does not hold"
    return Finding(claim, rule, verdict, measured, published)


@dataclass(frozen=True)
class Outcome:
    """What a study's function returns."""

    numbers: dict[str, Any]
    """Everything measured: plain numbers, lists and dicts."""
    tables: tuple[Table, ...]
    findings: tuple[Finding, ...]
    draw: Callable[[], Panels] = field(compare=False)
    """The figure, like the paper's; titles are added later."""
    notes: tuple[str, ...] = ()
    """What the reader has to know about this run."""

    def for_file(self) -> Outcome:
        """As it goes into a file: with the figure as drawn, instead of what draws it."""
        return self if isinstance(self.draw, Figure) else replace(self, draw=Figure(self.draw()))


@dataclass(frozen=True)
class Figure:
    """A figure that was drawn."""

    panels: Panels

    def __call__(self) -> Panels:
        return self.panels


@dataclass(frozen=True)
class Tables(Result):
    """Tables and nothing else."""

    shown: tuple[Table, ...]

    def tables(self) -> list[Table]:
        return list(self.shown)

    def to_dict(self) -> dict[str, Any]:
        return {
            table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            for table in self.shown
        }
