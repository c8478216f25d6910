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
                f"{found.source.address}.{found.matrix}",
                "  ".join(f"{p.row.shown} → {p.col.shown}" for p in found.pairs[:SHOWN]),
                found.legibility,
            )
            for found in self.heads
        )
        return [Table(("matrix", "strongest pairs", "legibility"), rows)]

    def csv_tables(self) -> list[Table]:
        return [table for found in self.heads for table in found.csv_tables()]

    def to_dict(self) -> dict[str, object]:
        return {"heads": [found.to_dict() for found in self.heads]}
