"""A long result whose table stops after some rows; everything else of it stays whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lexray.result.table import Result, Table


class Shortened(Result):
    """The same result, its tables cut after `limit` rows with a note that says so."""

    def __init__(self, whole: Result, limit: int) -> None:
        self.whole, self.limit = whole, limit

    def tables(self) -> list[Table]:
        return [self._cut(table) for table in self.whole.tables()]

    def _cut(self, table: Table) -> Table:
        more = len(table.rows) - self.limit
        if more <= 0:
            return table
        note = f"{table.note} · {more:,} more: see --limit, or --format json"
        return replace(table, rows=table.rows[: self.limit], note=note.removeprefix(" · "))

    def to_dict(self) -> dict[str, Any]:
        return self.whole.to_dict()
