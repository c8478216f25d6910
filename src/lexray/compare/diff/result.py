"""What a comparison found, as tables, JSON and a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lexray.compare.diff import report
from lexray.compare.diff.changes import RULE, Changes
from lexray.compare.diff.stacks import DiffGroup
from lexray.result.format import show_percent
from lexray.result.table import Cell, Result, Table, need

if TYPE_CHECKING:
    import pandas

TERMINAL_LAYERS = 16
"""With more layers the table of sizes shows their means, some layers at a time."""


@dataclass(frozen=True)
class Diff(Changes, Result):
    """The answer of `lexray.diff`; `to_html()` is a report in one file.

    >>> found = lx.diff("demo", "demo-sentiment")
    >>> found.changes[0].address, found.changes[0].tokens
    >>> found.to_pandas(); Path("report.html").write_text(found.to_html())
    """

    def tables(self) -> list[Table]:
        tables = [*self._size_tables(), self._change_table()]
        if self.sentiment is not None:
            tables += self.sentiment.tables()
        if self.notes:
            tables.append(Table(("notes",), tuple((note,) for note in self.notes)))
        return tables

    def _size_tables(self) -> list[Table]:
        """Groups by layers; layers in which nothing at all moved are left out."""
        moved = [x for x in self.layers if any(s.moved for s in self.sizes if s.layer == x)]
        pieces = [moved[i : i + TERMINAL_LAYERS] for i in range(0, len(moved), TERMINAL_LAYERS)]
        still = len(self.layers) - len(moved)
        note = f"{self.summary} · {self.source}, in the {self.through}'s embedding"
        if still and moved:
            note += f" · nothing moved in {still} further layers"
        tables = []
        for piece in pieces:
            names = tuple("model" if x is None else f"L{x}" for x in piece)
            rows = tuple((g, *(self._percent(g, x) for x in piece)) for g in self.groups)
            tables.append(Table(("group", *names), rows, title=f"{self.title}: share moved"))
        if not tables:
            return [Table(("group",), (), title=self.title, note=note)]
        last = tables[-1]
        return [*tables[:-1], Table(last.columns, last.rows, last.title, note)]

    def _percent(self, group: DiffGroup, layer: int | None) -> str:
        size = self.size(group, layer)
        if size is None:
            return ""
        if not size.moved:
            return "·"
        return "new" if size.relative is None else show_percent(size.relative)

    def _change_table(self) -> Table:
        rows = tuple(
            (
                change.name,
                "new" if change.relative is None else show_percent(change.relative),
                " ".join(change.tokens),
                " ".join(change.bottom_tokens),
                change.telling,
            )
            for change in self.changes
        )
        columns = ("address", "moved", "towards", "away from", "telling")
        return Table(columns, rows, title="The most telling changes", note=RULE)

    def csv_tables(self) -> list[Table]:
        """A row per change."""
        columns = (
            *("rank", "address", "group", "layer", "absolute", "relative", "telling"),
            *("legibility", "of", "top", "bottom"),
        )
        rows: list[tuple[Cell, ...]] = [
            (
                *(rank, c.address, c.group, c.layer, c.absolute, c.relative, c.telling),
                *(c.legibility, c.token.text if c.token else c.label),
                *(" ".join(c.tokens), " ".join(c.bottom_tokens)),
            )
            for rank, c in enumerate(self.changes, 1)
        ]
        return [Table(columns, tuple(rows))]

    def sizes_to_pandas(self) -> pandas.DataFrame:
        """How far each group moved in each layer, a row each."""
        frame: pandas.DataFrame = need("pandas").DataFrame([size.to_dict() for size in self.sizes])
        return frame

    def to_dict(self) -> dict[str, Any]:
        entry = {
            **self.source.to_dict(),
            "base": self.base,
            "tuned": self.tuned,
            "through": self.through,
            "ranking": RULE,
            "moved": self.moved,
            "vectors": self.vectors,
            "notes": list(self.notes),
            "sizes": [size.to_dict() for size in self.sizes],
            "changes": [change.to_dict() for change in self.changes],
        }
        if self.sentiment is not None:
            entry["sentiment"] = self.sentiment.to_dict()
        return entry

    def _repr_html_(self) -> str:
        return report.fragment(self)

    def to_html(self) -> str:
        """A whole report: heat map and changes, to be searched and sorted; nothing is loaded."""
        return report.page(self)
