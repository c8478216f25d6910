"""What a search of a whole model finds: parameters in the order of a score, each read as tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.vectors import Vector, VectorGroup
from lexray.result.readings import Reading, Source
from lexray.result.table import Result, Table


@dataclass(frozen=True)
class Hit:
    """A parameter that was found, and what it reads as."""

    score: float
    reading: Reading

    @property
    def address(self) -> str:
        return self.reading.source.address


@dataclass(frozen=True)
class Hits(Result):
    """Parameters in the order of a score."""

    source: Source
    title: str
    score: str
    """What the score is."""
    hits: tuple[Hit, ...]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, index: int) -> Hit:
        return self.hits[index]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def tables(self) -> list[Table]:
        rows = tuple(
            (hit.address, hit.score, " ".join(hit.reading.tokens), hit.reading.legibility)
            for hit in self.hits
        )
        columns = ("address", self.score, "top tokens", "legibility")
        return [Table(columns, rows, self.title, str(self.source), frozenset({self.score}))]

    def csv_tables(self) -> list[Table]:
        columns = ("rank", "address", "score", "legibility", "tokens")
        rows = tuple(
            (i, hit.address, hit.score, hit.reading.legibility, " ".join(hit.reading.tokens))
            for i, hit in enumerate(self.hits)
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            **self.facts,
            "hits": [
                {
                    "address": hit.address,
                    "score": hit.score,
                    hit.reading.name: hit.reading.ends(),
                }
                for hit in self.hits
            ],
        }


def at_least_one(n: int) -> None:
    """Raises if fewer than one parameter is wanted."""
    if n < 1:
        raise LexrayError(f"asked for the top {n} parameters; at least 1 has to be wanted")


def own_address(model: Anatomy, address: str) -> str:
    """The address under which groups list a vector: shared keys and values by the first head."""
    at = Address.parse(address)
    if at.head is None or at.subhead not in ("K", "V"):
        return str(at)
    heads = model.layers[at.layer].heads
    first = next(head for head in heads if head.kv_index == heads[at.head].kv_index)
    return str(replace(at, head=first.index))


def vectors_at(groups: Sequence[VectorGroup], places: Sequence[int]) -> Iterator[Vector]:
    """The vectors at places counted through all groups, one group after the other."""
    starts = list(accumulate((group.n for group in groups), initial=0))
    for place in places:
        at = bisect_right(starts, place) - 1
        yield groups[at][place - starts[at]]
