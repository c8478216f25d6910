"""Results: parameters as tokens. What every reading returns, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lexray.errors import LexrayError
from lexray.result.charts.bars import Bars
from lexray.result.charts.cloud import Cloud
from lexray.result.format import show_model
from lexray.result.table import Cell, Result, Table
from lexray.view import View

if TYPE_CHECKING:  # a study's help shows results, and neither torch nor plotly starts quickly
    from jaxtyping import Float
    from torch import Tensor


READERS = ("key", "gate", "Q", "K", "V")


@runtime_checkable
class Embeds(Protocol):
    """A model, as far as drawing its tokens needs one."""

    def embeddings(self, ids: Sequence[int]) -> Float[Tensor, "n d_model"]: ...


@dataclass(frozen=True)
class Token:
    """A vocabulary item: its id, the text it stands for, and how people see it."""

    id: int
    text: str
    shown: str

    @property
    def word(self) -> tuple[int, str]:
        return self.id, self.shown

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "text": self.text}


@dataclass(frozen=True)
class Glossary:
    """The tokens that a result lists, by id, and what of its model it needs to show them."""

    tokens: tuple[Token, ...]
    n_rows: int
    """How many tokens the model has."""
    causal: bool
    """Whether tokens follow what is read; else they stand there."""

    @cached_property
    def _by_id(self) -> dict[int, Token]:
        return {token.id: token for token in self.tokens}

    def __getitem__(self, id: int) -> Token:
        return self._by_id[id]


@dataclass(frozen=True)
class Scored:
    token: Token
    score: float

    @property
    def word(self) -> tuple[int, str, float]:
        """What is drawn of it."""
        return *self.token.word, self.score

    def to_dict(self) -> dict[str, Any]:
        return {"score": self.score, "token": self.token.to_dict()}


@dataclass(frozen=True)
class Source:
    """How a result was made."""

    model: str
    revision: str | None
    address: str
    view: View
    filter: str = ""
    note: str = ""
    """What kept it from being read as the view says."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "revision": self.revision,
            "address": self.address,
            "reading": str(self.view),
            "view": asdict(self.view),
            "filter": self.filter,
            **({"note": self.note} if self.note else {}),
        }

    @property
    def called(self) -> str:
        """The model as people call it: not by its path."""
        return show_model(self.model)

    def __str__(self) -> str:
        only = f"only {self.filter}" if self.filter else ""
        return " · ".join(filter(None, [self.called, str(self.view), only, self.note]))


@dataclass(frozen=True)
class Reading(Result):
    """A vector as tokens: the largest scores, and the smallest: those of the negated direction."""

    source: Source
    name: str
    """What the vector is to its owner: key, gate, value, V, …"""
    top: tuple[Scored, ...]
    bottom: tuple[Scored, ...]
    legibility: float
    """How much more alike the top tokens are than random ones: the difference in mean cosine."""

    @property
    def said(self) -> str:
        """What the tokens are to the vector."""
        if self.name.endswith(" expects"):
            return "expects"
        sees = self.name in READERS and self.source.view.reading == "effective"
        return "sees" if sees else "as tokens"

    @property
    def tokens(self) -> list[str]:
        """The top tokens as people read them."""
        return [scored.token.shown for scored in self.top]

    def tables(self) -> list[Table]:
        rows = tuple(
            (a.token.shown, a.score, b.token.shown, b.score)
            for a, b in zip(self.top, self.bottom, strict=True)
        )
        return [
            Table(
                ("top", "score", "bottom", "score "),
                rows,
                title=f"{self.source.address} {self.said}",
                note=self._note,
                bars=frozenset({"score", "score "}),
            )
        ]

    def csv_tables(self) -> list[Table]:
        columns = ("address", "name", "end", "rank", "id", "token", "score")
        rows: list[tuple[Cell, ...]] = []
        for end, listed in (("top", self.top), ("bottom", self.bottom)):
            rows += [
                (self.source.address, self.name, end, rank, s.token.id, s.token.text, s.score)
                for rank, s in enumerate(listed, 1)
            ]
        return [Table(columns, tuple(rows))]

    def ends(self) -> dict[str, Any]:
        return {
            "top": [scored.to_dict() for scored in self.top],
            "bottom": [scored.to_dict() for scored in self.bottom],
            "legibility": self.legibility,
        }

    def to_dict(self) -> dict[str, Any]:
        return {**self.source.to_dict(), self.name: self.ends()}

    def plot(self) -> Bars:
        """Both ends as bars: `.to_svg()`, `.to_html()`, `.save("bars.pdf")`, `.to_plotly()`."""
        from lexray.result.draw import draw_ends  # which takes torch along

        top, bottom = ([s.word for s in listed] for listed in (self.top, self.bottom))
        return draw_ends(f"{self.source.address} as tokens", self._note, top, bottom)

    def map(self, model: Embeds) -> Cloud:
        """The top tokens as points: near one another where their embeddings are.

        >>> model["L3N17"].value.top(30).map(model)
        """
        from lexray.result.draw import draw_plane  # as in `plot`

        X = model.embeddings([s.token.id for s in self.top])
        title = f"{self.source.address}: where its top tokens lie"
        return draw_plane(title, self._note, [s.word for s in self.top], X)

    @property
    def _note(self) -> str:
        return f"{self.source} · legibility {self.legibility:.2f}"


@dataclass(frozen=True)
class NamedReadings(Result):
    """The vectors of one thing, each under its name: a neuron's key, gate and value."""

    source: Source
    readings: tuple[Reading, ...]

    def __getitem__(self, name: str) -> Reading:
        for reading in self.readings:
            if reading.name == name:
                return reading
        there = ", ".join(reading.name for reading in self.readings)
        raise LexrayError(f"{self.source.address} has no {name!r}; there are {there}")

    def __iter__(self) -> Iterator[Reading]:
        return iter(self.readings)

    def tables(self) -> list[Table]:
        return [table for reading in self.readings for table in reading.tables()]

    def csv_tables(self) -> list[Table]:
        return [table for reading in self.readings for table in reading.csv_tables()]

    def to_dict(self) -> dict[str, Any]:
        return self.source.to_dict() | {r.name: r.ends() for r in self.readings}


@dataclass(frozen=True)
class Readings(Result, Sequence[Reading]):
    """Many vectors, a line each."""

    source: Source
    readings: tuple[Reading, ...]
    title: str = ""
    extra: tuple[tuple[str, tuple[Cell, ...]], ...] = ()
    """Further columns (name, a value for each reading), shown before the tokens."""

    def __len__(self) -> int:
        return len(self.readings)

    def __getitem__(self, index: Any) -> Any:
        return self.readings[index]

    def __iter__(self) -> Iterator[Reading]:
        return iter(self.readings)

    def by_legibility(self) -> Readings:
        """The most legible first."""
        order = sorted(range(len(self)), key=lambda i: -self.readings[i].legibility)
        extra = tuple((name, tuple(cells[i] for i in order)) for name, cells in self.extra)
        return Readings(self.source, tuple(self.readings[i] for i in order), self.title, extra)

    def tables(self) -> list[Table]:
        columns = ("address", *(name for name, _ in self.extra), "top", "bottom", "legibility")
        rows = tuple(
            (
                reading.source.address,
                *(cells[i] for _, cells in self.extra),
                " ".join(reading.tokens),
                " ".join(scored.token.shown for scored in reading.bottom),
                reading.legibility,
            )
            for i, reading in enumerate(self.readings)
        )
        return [Table(columns, rows, title=self.title, note=str(self.source))]

    def csv_tables(self) -> list[Table]:
        return [table for reading in self.readings for table in reading.csv_tables()]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "readings": [
                {
                    "address": reading.source.address,
                    **{name: cells[i] for name, cells in self.extra},
                    reading.name: reading.ends(),
                }
                for i, reading in enumerate(self.readings)
            ],
        }
