"""Results: matrices of heads as pairs of tokens, and as their singular directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lexray.result.charts.threads import Threads
from lexray.result.format import show_percent
from lexray.result.readings import Reading, Scored, Source, Token
from lexray.result.table import Cell, Result, Table

SIDES = {"VO": ("attended to", "written"), "QK": ("query", "key")}


@dataclass(frozen=True)
class Pair:
    score: float
    row: Token
    col: Token

    def to_dict(self) -> dict[str, Any]:
        return {"score": self.score, "row": self.row.to_dict(), "col": self.col.to_dict()}


@dataclass(frozen=True)
class Pairs(Result):
    """A head's matrix as its best token pairs, exactly."""

    source: Source
    matrix: str
    """"VO": a row is attended to, its column written; "QK": a row asks, its column answers."""
    pairs: tuple[Pair, ...]
    sign: str
    legibility: float
    work: float
    """The share of all entries that had to be looked at."""
    note: str = ""
    """What else to know, such as the rotary offset."""
    limit: float | None = None
    """What no other pair goes beyond, where the search was ended early; None: the list is exact."""

    @property
    def exact(self) -> bool:
        """Whether these are proven to be the best pairs of all."""
        return self.limit is None

    @property
    def sure(self) -> int:
        """How many of them, from the first on, are proven to be the best of all."""
        if self.limit is None:
            return len(self.pairs)
        sign = -1 if self.sign == "smallest" else 1
        size = abs if self.sign.endswith("absolute value") else lambda x: sign * x
        return sum(size(p.score) > size(self.limit) for p in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Pair:
        return self.pairs[index]

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)

    def tables(self) -> list[Table]:
        row, col = SIDES[self.matrix]
        rows = tuple((p.row.shown, p.col.shown, p.score) for p in self.pairs)
        said = [str(self.source), self.note, self._say_limit(), f"legibility {self.legibility:.2f}"]
        return [
            Table(
                (row, col, "score"),
                rows,
                title=f"{self.source.address}.{self.matrix}, {self.sign} of all token pairs",
                note=" · ".join(filter(None, said)),
                bars=frozenset({"score"}),
            )
        ]

    def _say_limit(self) -> str:
        if self.limit is None:
            return ""
        way = "below" if self.sign == "smallest" else "above"
        return (
            f"ended early: no other pair is {way} {self.limit:.4g}, the first {self.sure} are sure"
        )

    def csv_tables(self) -> list[Table]:
        columns = ("address", "matrix", "rank", "row_id", "row", "col_id", "col", "score")
        rows = tuple(
            (
                self.source.address,
                self.matrix,
                rank,
                p.row.id,
                p.row.text,
                p.col.id,
                p.col.text,
                p.score,
            )
            for rank, p in enumerate(self.pairs, 1)
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "matrix": self.matrix,
            "sign": self.sign,
            "legibility": self.legibility,
            **({} if self.limit is None else {"limit": self.limit, "sure": self.sure}),
            "pairs": [pair.to_dict() for pair in self.pairs],
        }

    def plot(self, n: int = 50) -> Threads:
        """The first n pairs as threads from row tokens to column tokens."""
        from lexray.result.draw import draw_pairs  # as in `Reading.plot`

        shown = [(pair.row.word, pair.col.word, pair.score) for pair in self.pairs[:n]]
        cut = f"the first {n} of {len(self)} pairs" if n < len(self) else ""
        note = " · ".join(filter(None, [str(self.source), self.note, cut]))
        title = f"{self.source.address}.{self.matrix}, {self.sign} of all token pairs"
        return draw_pairs(title, note, SIDES[self.matrix], shown)


@dataclass(frozen=True)
class Direction:
    """One singular direction of a head's matrix, read at both ends."""

    singular_value: float
    share: float
    """Of the sum of all squared singular values."""
    input: Reading
    output: Reading


@dataclass(frozen=True)
class Directions(Result, Sequence[Direction]):
    """The singular directions of a head's matrix. Signs belong together: top reads as top."""

    source: Source
    matrix: str
    directions: tuple[Direction, ...]
    note: str = ""

    def __len__(self) -> int:
        return len(self.directions)

    def __getitem__(self, index: Any) -> Any:
        return self.directions[index]

    def tables(self) -> list[Table]:
        row, col = SIDES[self.matrix]
        rows: list[tuple[Cell, ...]] = []
        for i, direction in enumerate(self.directions):
            for sign, end in (("+", "top"), ("−", "bottom")):
                rows.append(
                    (
                        f"{i}{sign}",
                        direction.singular_value if sign == "+" else None,
                        show_percent(direction.share, 1) if sign == "+" else "",
                        _join(getattr(direction.input, end)),
                        _join(getattr(direction.output, end)),
                    )
                )
        return [
            Table(
                ("direction", "singular value", "share", row, col),
                tuple(rows),
                title=f"Singular directions of {self.source.address}",
                note=" · ".join(filter(None, [str(self.source), self.note])),
            )
        ]

    def csv_tables(self) -> list[Table]:
        columns = ("direction", "singular_value", "side", "end", "rank", "id", "token", "score")
        rows: list[tuple[Cell, ...]] = []
        for i, d in enumerate(self.directions):
            for side, reading in (("input", d.input), ("output", d.output)):
                for end, listed in (("top", reading.top), ("bottom", reading.bottom)):
                    rows += [
                        (i, d.singular_value, side, end, rank, s.token.id, s.token.text, s.score)
                        for rank, s in enumerate(listed, 1)
                    ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "matrix": self.matrix,
            "directions": [
                {
                    "singular_value": d.singular_value,
                    "share": d.share,
                    "input": d.input.ends(),
                    "output": d.output.ends(),
                }
                for d in self.directions
            ],
        }


def _join(listed: tuple[Scored, ...]) -> str:
    return " ".join(scored.token.shown for scored in listed)
