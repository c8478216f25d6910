"""What a search of a whole model finds: parameters in the order of a score, each read as tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.vectors import VectorGroup
from lexray.result.readings import Reading, Source
from lexray.result.table import Result, Table
from lexray.space.space import space_of
from lexray.vocabulary.filters import Filter

FEW = 8
"""So many vectors of a group are read one by one, more with the whole group."""


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


def readings_at(
    groups: Sequence[VectorGroup], places: Sequence[int], k: int, filter: Filter | None = None
) -> list[Reading]:
    """What the vectors at places counted through all groups read as, those of a group together."""
    starts = list(accumulate((group.n for group in groups), initial=0))
    inside: dict[int, list[int]] = {}
    for place in places:
        inside.setdefault(bisect_right(starts, place) - 1, []).append(place)
    found: dict[int, Reading] = {}
    for at, some in inside.items():
        group = groups[at]
        vectors = [group[place - starts[at]] for place in some]
        if len(some) < FEW:
            X = torch.stack([vector.tensor for vector in vectors])
        else:
            X = group.tensor[[place - starts[at] for place in some]]
        addresses = [vector.address for vector in vectors]
        read = space_of(group.weights).readings(X, group.kind, addresses, k, filter)
        found |= dict(zip(some, read, strict=True))
    return [found[place] for place in places]
