"""What a search of a whole model finds: parameters in the order of a score, each read as tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.result.readings import Reading, Source
from lexray.result.table import Cell, Result, Table
from lexray.space.kinds import WRITES, Kind
from lexray.space.space import EmbeddingSpace
from lexray.vocabulary.filters import Filter

FEW = 8
"""So many vectors of a group are read one by one, more with the whole group."""
LISTS_AT_ONCE = 256
"""Of so many vectors all scores exist at once, where words are ranked."""


@runtime_checkable
class Findable(Protocol):
    """A vector that a search can find: a model's, or a feature's."""

    @property
    def address(self) -> str: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def tensor(self) -> Float[Tensor, "d_model"]: ...
    @property
    def space(self) -> EmbeddingSpace: ...
    def top(self, k: int = 30, *, filter: Filter | None = None) -> Reading: ...


@runtime_checkable
class Searched(Protocol):
    """Vectors of one kind that are searched together, read from the same space."""

    @property
    def n(self) -> int: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def tensor(self) -> Float[Tensor, "n d_model"]: ...
    def blocks(self) -> Iterator[Float[Tensor, "_ d_model"]]: ...
    @property
    def space(self) -> EmbeddingSpace: ...
    def address_of(self, i: int) -> str: ...
    def __getitem__(self, index: int) -> Findable: ...


if not TYPE_CHECKING:  # a check while it runs would read the tensors
    Findable = Searched = Any


@dataclass(frozen=True)
class Hit:
    """A parameter that was found, and what it reads as."""

    score: float
    reading: Reading
    ranks: tuple[int, ...] = ()
    """The places of the words in its own list, from 1; from the bottom, if that is shown."""
    negative: bool = False
    """Whether it is its bottom tokens that answer."""

    @property
    def address(self) -> str:
        return self.reading.source.address

    @property
    def tokens(self) -> str:
        """The tokens at the end that answers."""
        end = self.reading.bottom if self.negative else self.reading.top
        return " ".join(scored.token.shown for scored in end)


@dataclass(frozen=True)
class Hits(Result):
    """Parameters in the order of a score."""

    source: Source
    title: str
    score: str
    """What the score is."""
    hits: tuple[Hit, ...]
    facts: dict[str, Any]
    words: tuple[str, ...] = ()
    """Whose ranks the hits have."""

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, index: int) -> Hit:
        return self.hits[index]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def tables(self) -> list[Table]:
        ranked = (f"rank of {' '.join(self.words)}",) if self.words else ()
        rows: list[tuple[Cell, ...]] = [
            (
                hit.address,
                hit.score,
                *((" ".join(f"{rank:,}" for rank in hit.ranks),) if ranked else ()),
                hit.tokens,
                hit.reading.legibility,
            )
            for hit in self.hits
        ]
        down = [hit.negative for hit in self.hits]
        listed = "bottom tokens" if all(down) and down else "tokens" if any(down) else "top tokens"
        columns = ("address", self.score, *ranked, listed, "legibility")
        return [Table(columns, tuple(rows), self.title, str(self.source), frozenset({self.score}))]

    def csv_tables(self) -> list[Table]:
        ranked = tuple(f"rank of {word}" for word in self.words)
        columns = ("rank", "address", "score", *ranked, "legibility", "tokens")
        rows: list[tuple[Cell, ...]] = [
            (i, hit.address, hit.score, *hit.ranks, hit.reading.legibility, hit.tokens)
            for i, hit in enumerate(self.hits)
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            **self.facts,
            "hits": [
                {
                    "address": hit.address,
                    "score": hit.score,
                    **({"ranks": list(hit.ranks)} if hit.ranks else {}),
                    hit.reading.name: hit.reading.ends(),
                }
                for hit in self.hits
            ],
        }


def turn(model: Anatomy, reading: Reading, tokens: int) -> Reading:
    """A reading whose bottom is what counts; it has to be at least `WINDOW` tokens long."""
    bottom = torch.tensor([[scored.token.id for scored in reading.bottom]])
    legible = float(model.space.legibility(bottom)[0])
    top, kept = reading.top[:tokens], reading.bottom[:tokens]
    return replace(reading, top=top, bottom=kept, legibility=legible)


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


def read_at(
    groups: Sequence[Searched],
    places: Sequence[int],
    k: int,
    *,
    filter: Filter | None = None,
    words: Sequence[int] = (),
    suppressed: bool = False,
) -> list[tuple[Reading, tuple[int, ...]]]:
    """What the vectors at places counted through all groups read as, and the places of words in
    their own lists; those that are read with one side together."""
    readings: dict[int, tuple[Reading, tuple[int, ...]]] = {}
    starts = _starts(groups)
    for space, kind, at, X in rows_at(groups, places):
        here = [places[i] for i in at]
        names = [_address_at(groups, starts, place) for place in here]
        read = space.readings(X, kind, names, k, filter)
        ranks = ranks_in(space, X, kind, words, filter=filter, suppressed=suppressed)
        readings |= dict(zip(here, zip(read, ranks, strict=True), strict=True))
    return [readings[place] for place in places]


def rows_at(
    groups: Sequence[Searched], places: Sequence[int]
) -> Iterator[tuple[EmbeddingSpace, Kind, list[int], Float[Tensor, "some d_model"]]]:
    """The vectors at places counted through all groups, those that are read with one side together:
    their space and kind, which of the places they are, and themselves."""
    starts = _starts(groups)
    inside: dict[int, list[int]] = {}
    for i, place in enumerate(places):
        inside.setdefault(bisect_right(starts, place) - 1, []).append(i)
    alike: dict[Hashable, list[int]] = {}
    for at in inside:
        alike.setdefault(shared_key(groups[at]), []).append(at)
    for some in alike.values():
        rows = [_rows(groups[at], [places[i] - starts[at] for i in inside[at]]) for at in some]
        first = groups[some[0]]
        yield first.space, first.kind, [i for at in some for i in inside[at]], torch.cat(rows)


def _starts(groups: Sequence[Searched]) -> list[int]:
    return list(accumulate((group.n for group in groups), initial=0))


def _address_at(groups: Sequence[Searched], starts: list[int], place: int) -> str:
    at = bisect_right(starts, place) - 1
    return groups[at].address_of(place - starts[at])


def _rows(group: Searched, inside: list[int]) -> Float[Tensor, "some d_model"]:
    """These vectors of a group, of which not all lie in memory together."""
    if len(inside) < FEW:
        return torch.stack([group[i].tensor for i in inside])
    wanted, parts, order, start = torch.tensor(inside), [], [], 0
    for block in group.blocks():
        here = ((wanted >= start) & (wanted < start + len(block))).nonzero()[:, 0]
        parts.append(block[(wanted[here] - start).to(block.device)])
        order.append(here)
        start += len(block)
    return torch.cat(parts)[torch.cat(order).argsort().to(parts[0].device)]


def shared_key(vector: Findable | Searched) -> Hashable:
    """The same for vectors that are read with one side."""
    space, kind = vector.space, vector.kind
    return space.sharing(kind), space.first and kind not in WRITES, kind


def ranks_in(
    space: EmbeddingSpace,
    X: Float[Tensor, "n d_model"],
    kind: Kind,
    words: Sequence[int],
    *,
    filter: Filter | None = None,
    suppressed: bool = False,
) -> list[tuple[int, ...]]:
    """The places of tokens in each vector's own list, from 1; from the bottom if `suppressed`.

    A token that the list does not show has the place that it would have.
    """
    if not words:
        return [()] * len(X)
    listed, side = space.list_ids(filter), space.whole(kind)
    aside = None
    if listed is not None:
        aside = torch.ones(space.n_rows, dtype=torch.bool)
        aside[listed.cpu()] = False
        aside = aside.nonzero()[:, 0]
    ranks: list[tuple[int, ...]] = []
    for start in range(0, len(X), LISTS_AT_ONCE):
        scores = side.project(space.shift(X[start : start + LISTS_AT_ONCE], kind))
        if suppressed:
            scores = -scores
        hidden = None if aside is None else scores[:, aside.to(scores.device)]
        places = [_count_above(scores, hidden, scores[:, i : i + 1]) for i in words]
        ranks += [tuple(row) for row in (1 + torch.stack(places, 1)).tolist()]
    return ranks


def _count_above(
    scores: Float[Tensor, "n tokens"], hidden: Float[Tensor, "n some"] | None, own: Tensor
) -> Int[Tensor, "n"]:
    """How many tokens score above one, less those that no list shows: these are few, mostly."""
    above = (scores > own).sum(1)
    return above if hidden is None else above - (hidden > own).sum(1)
