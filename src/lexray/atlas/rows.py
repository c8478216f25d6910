"""The rows that an atlas answers with: a table for people, Arrow, pandas or polars for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lexray.atlas.schema import IDS
from lexray.errors import LexrayError
from lexray.result.table import Cell, Result, Table

if TYPE_CHECKING:
    import pandas
    import polars

WORDS = 8
"""So many tokens of a list a person sees."""
TOKENS = ("token", "row", "col", "followed", "looked_at")
"""Columns that hold the id of a token."""


@dataclass(frozen=True, eq=False)
class Rows(Result, Sequence[dict[str, Any]]):
    """What a question to an atlas found.

    Tokens are ids here; `shown` has them as people read them.
    """

    table: pa.Table
    title: str = ""
    note: str = ""
    shown: Sequence[str] = field(default=(), repr=False)
    """Of every token of the vocabulary."""
    people: Sequence[str] = ()
    """The columns that people see, if not all."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.table.take(list(range(*index.indices(len(self))))).to_pylist()
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.table.slice(index % len(self), 1).to_pylist()[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table.to_pylist())

    @property
    def columns(self) -> list[str]:
        return list(self.table.column_names)

    def column(self, name: str) -> list[Any]:
        """One column as a list."""
        if name not in self.columns:
            raise LexrayError(f"there is no column {name!r}; there are {', '.join(self.columns)}")
        cells: list[Any] = self.table[name].to_pylist()
        return cells

    def words(self, ids: Sequence[int] | None, n: int | None = None) -> list[str]:
        """Tokens as people read them."""
        some = list(ids or ())[:n]
        return [self.shown[i] if 0 <= i < len(self.shown) else f"#{i}" for i in some]

    # ------------------------------------------------------------------ for programs

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> pandas.DataFrame:
        frame: pandas.DataFrame = self.table.to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        try:
            import polars
        except ImportError as error:
            raise LexrayError("polars is not installed: pip install polars") from error
        frame = polars.from_arrow(self.table)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_json(self, *, state: bool = False) -> str:
        """What the rows say. To keep them for later there is the atlas itself, or Parquet."""
        return super().to_json(state=state)

    def to_dict(self) -> dict[str, Any]:
        """With the words of every token beside its id."""
        return {"title": self.title, "note": self.note, "rows": [self._say(row) for row in self]}

    def _say(self, row: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {}
        for name, value in row.items():
            said[name] = value
            if self._is_list(name):
                said[name.removesuffix("_ids") + "_words"] = self.words(value)
            elif self._is_token(name) and value is not None:
                said[f"{name}_shown"] = self.words([value])[0]
        return said

    # ------------------------------------------------------------------ for people

    def _is_list(self, name: str) -> bool:
        return bool(self.table.schema.field(name).type == IDS) and bool(self.shown)

    def _is_token(self, name: str) -> bool:
        whole = pa.types.is_integer(self.table.schema.field(name).type)
        return name in TOKENS and whole and bool(self.shown)

    def tables(self) -> list[Table]:
        told = [name for name in self.people if name in self.columns] or self.columns
        names = [name for name in told if not name.endswith("_scores")]
        rows = tuple(tuple(self._cell(name, row[name]) for name in names) for row in self)
        columns = tuple(name.removesuffix("_ids").replace("_", " ") for name in names)
        return [Table(columns, rows, self.title, self.note)]

    def csv_tables(self) -> list[Table]:
        rows = tuple(tuple(map(_plain, row.values())) for row in self)
        return [Table(tuple(self.columns), rows)]

    def _cell(self, name: str, value: Any) -> Cell:
        if self._is_list(name):
            return " ".join(self.words(value, WORDS))
        if self._is_token(name) and value is not None:
            return self.words([value])[0]
        if isinstance(value, list):
            return ", ".join(str(item) for item in value[:WORDS])
        return _plain(value)


def _plain(value: Any) -> Cell:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list):
        return " ".join(map(str, value))
    return str(value)
