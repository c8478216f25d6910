"""Results: what one parameter writes and another reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table


@dataclass(frozen=True)
class Link:
    """A writer and a later reader."""

    writer: str
    reader: str
    """With the side by which it reads: L5H2.K, L7N12.gate."""
    strength: float
    """‖product‖ / (‖writer‖ ‖reader‖): of single vectors the cosine, with its sign."""
    times: float
    """As a multiple of chance: of what random directions with the same spread would give."""
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    """The words on both sides, along the direction that passes most."""
    q: float | None = None
    """Among the strongest links of a model: the share among all at least as strong that random
    directions would make, in as many dimensions as the spread of both sides has."""

    def row(self, *, with_q: bool) -> tuple[Cell, ...]:
        words = " ".join(self.writes), " ".join(self.reads)
        q: tuple[Cell, ...] = (self.q,) if with_q else ()
        return (self.writer, self.reader, self.times, self.strength, *q, *words)

    def to_dict(self) -> dict[str, Any]:
        return {
            "writer": self.writer,
            "reader": self.reader,
            "strength": self.strength,
            "times": self.times,
            **({} if self.q is None else {"q": self.q}),
            "writes": list(self.writes),
            "reads": list(self.reads),
        }


@dataclass(frozen=True)
class Links(Result, Sequence[Link]):
    """Links in the order of their multiples of chance."""

    source: Source
    title: str
    links: tuple[Link, ...]

    def __len__(self) -> int:
        return len(self.links)

    def __getitem__(self, index: Any) -> Any:
        return self.links[index]

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links)

    @property
    def _q(self) -> tuple[str, ...]:
        """The name of that column, where links have it."""
        return ("q",) if any(link.q is not None for link in self.links) else ()

    def tables(self) -> list[Table]:
        columns = ("writer", "reader", "× chance", "strength", *self._q, "writes", "reads")
        rows = tuple(link.row(with_q=bool(self._q)) for link in self.links)
        return [Table(columns, rows, self.title, str(self.source), frozenset({"× chance"}))]

    def csv_tables(self) -> list[Table]:
        columns = ("rank", "writer", "reader", "times", "strength", *self._q, "writes", "reads")
        rows = tuple((n, *link.row(with_q=bool(self._q))) for n, link in enumerate(self.links, 1))
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {**self.source.to_dict(), "links": [link.to_dict() for link in self.links]}
