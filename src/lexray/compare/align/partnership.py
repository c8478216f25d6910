"""The answer of `partners`: what is most like a head or neuron in another model, as tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

from lexray.compare.align.tokens import SharedTokens
from lexray.result.pairs import Pairs
from lexray.result.readings import Reading, Source
from lexray.result.table import Cell, Result, Table
from lexray.view import View


@dataclass(frozen=True)
class PartnerPart:
    """One part of a head or neuron: how like the target's it is, and what it reads as."""

    name: str
    similarity: float
    reading: Reading | Pairs

    @property
    def tokens(self) -> str:
        """Its tokens or pairs; those of the negated part if the similarity is negative."""
        sign = "" if self.similarity >= 0 else "− "
        if isinstance(self.reading, Pairs):
            return sign + " ".join(f"{p.row.shown}→{p.col.shown}" for p in self.reading)
        listed = self.reading.top if self.similarity >= 0 else self.reading.bottom
        return sign + " ".join(scored.token.shown for scored in listed)

    def to_dict(self, measure: str | None) -> dict[str, Any]:
        read = self.reading
        ends = (
            {"pairs": [pair.to_dict() for pair in read], "sign": read.sign}
            if isinstance(read, Pairs)
            else read.ends()
        )
        return {"part": self.name, **({measure: self.similarity} if measure else {}), **ends}


@dataclass(frozen=True)
class Partner:
    """A head or neuron of the other model."""

    address: str
    score: float
    """The mean absolute similarity of its parts."""
    parts: tuple[PartnerPart, ...]


@dataclass(frozen=True)
class Partners(Result):
    """The best partners, best first."""

    a: Source
    b: Source
    shared: SharedTokens
    measure: str
    one_to_one: bool
    target: tuple[PartnerPart, ...]
    partners: tuple[Partner, ...]

    def __len__(self) -> int:
        return len(self.partners)

    def __getitem__(self, index: int) -> Partner:
        return self.partners[index]

    def __iter__(self) -> Iterator[Partner]:
        return iter(self.partners)

    @property
    def words(self) -> View:
        """By which view the target is shown as words; it is compared by `a`'s."""
        return self.target[0].reading.source.view

    def tables(self) -> list[Table]:
        several = len(self.target) > 1
        rows: list[tuple[Cell, ...]] = [
            (address, *([None] if several else []), part.name, None, part.tokens)
            for address, part in zip(_once(self.a.address), self.target, strict=False)
        ]
        for partner in self.partners:
            for address, part in zip(_once(partner.address), partner.parts, strict=False):
                score = [partner.score if address else None] if several else []
                rows.append((address, *score, part.name, part.similarity, part.tokens))
        columns = ("address", *(["score"] if several else []), "part", self.measure, "tokens")
        how = "one to one, layer by layer" if self.one_to_one else "the nearest"
        title = f"{self.a.address} of {self.a.model}, and its partners in {self.b.model}: {how}"
        views = str(self.a.view) if self.a.view == self.b.view else f"{self.a.view} | {self.b.view}"
        words = f"words: {self.words}" if self.words != self.a.view else ""
        none = "" if self.partners else "left without a partner: its layer is larger than theirs"
        note = " · ".join(filter(None, [views, words, str(self.shared), none]))
        return [Table(columns, tuple(rows), title, note)]

    def csv_tables(self) -> list[Table]:
        columns = ("rank", "address", "score", "part", self.measure, "tokens")
        rows = tuple(
            (rank, partner.address, partner.score, part.name, part.similarity, part.tokens)
            for rank, partner in enumerate(self.partners)
            for part in partner.parts
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "tokens": self.shared.to_dict(),
            "of": self.a.address,
            "words": str(self.words),
            "one_to_one": self.one_to_one,
            "parts": [part.to_dict(None) for part in self.target],
            "partners": [
                {
                    "address": partner.address,
                    "score": partner.score,
                    "parts": [part.to_dict(self.measure) for part in partner.parts],
                }
                for partner in self.partners
            ],
        }


def _once(address: str) -> Iterator[str]:
    """The address for the first line, nothing for those below."""
    return chain([address], repeat(""))
