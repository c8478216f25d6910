"""Many heads in one result: a line each for people, every pair for programs."""

from __future__ import annotations

from dataclasses import dataclass

from lexray.result.pairs import Pairs
from lexray.result.table import Result, Table

SHOWN = 6
"""How many pairs a line has."""


@dataclass(frozen=True)
class HeadList(Result):
    """Heads, a line each."""

    heads: tuple[Pairs, ...]

    def tables(self) -> list[Table]:
        rows = tuple(
            (
                f"{pairs.source.address}.{pairs.matrix}",
                "  ".join(f"{p.row.shown} → {p.col.shown}" for p in pairs.pairs[:SHOWN]),
                pairs.legibility,
            )
            for pairs in self.heads
        )
        return [Table(("matrix", "strongest pairs", "legibility"), rows)]

    def csv_tables(self) -> list[Table]:
        return [table for pairs in self.heads for table in pairs.csv_tables()]

    def to_dict(self) -> dict[str, object]:
        return {"heads": [pairs.to_dict() for pairs in self.heads]}
