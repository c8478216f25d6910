"""The strongest places of a parameter in running text, and how well its reading predicts them."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import Any

from lexray.result.readings import Source, Token
from lexray.result.table import Cell, Result, Table


@dataclass(frozen=True)
class Snippet:
    """A place where a parameter is strong: the token it stands on, what is around it."""

    before: tuple[Token, ...]
    token: Token
    after: tuple[Token, ...]
    """The first of them is what followed."""
    activation: float
    looked_at: Token | None = None
    """Of a head: the token that it took most from there."""
    wrote: tuple[Token, ...] = ()
    """Of a head: what it took from there says, as words."""

    @property
    def marked(self) -> str:
        """The text with the token in brackets."""
        parts = (_join(self.before), f"[{self.token.shown}]", _join(self.after))
        return "".join(parts)

    @property
    def followed(self) -> Token | None:
        return self.after[0] if self.after else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "activation": self.activation,
            "before": "".join(token.text for token in self.before),
            "token": self.token.to_dict(),
            "after": "".join(token.text for token in self.after),
            "followed": None if self.followed is None else self.followed.to_dict(),
            **({} if self.looked_at is None else {"looked_at": self.looked_at.to_dict()}),
            **({"wrote": [token.to_dict() for token in self.wrote]} if self.wrote else {}),
        }


def _join(tokens: tuple[Token, ...]) -> str:
    return "".join(token.shown for token in tokens)


@dataclass(frozen=True)
class Agreement:
    """How well a reading tells the tokens at the strongest places from the text's others."""

    reading: str
    """Which reading, of what: "gate sees", "value writes", …"""
    words: tuple[Token, ...]
    """Its first words."""
    area: float
    """Under the curve: 0.5 says nothing, 1 all."""
    layer: float
    """The mean of others of its kind in the layer."""
    below: float
    """The share of these that it is better than."""
    n: int
    """How many they are."""

    def to_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("area", "layer", "below")}
        return {
            "reading": self.reading,
            "words": [word.to_dict() for word in self.words],
            **{name: None if isnan(value) else value for name, value in numbers.items()},
            "n": self.n,
        }


@dataclass(frozen=True)
class Evidence(Result):
    """What a parameter does on a text: `model["L26N777"].evidence()`."""

    source: Source
    snippets: tuple[Snippet, ...]
    """The strongest first."""
    agreements: tuple[Agreement, ...]
    tokens: int
    """How long the text is."""
    text: str = "lexray's own text"

    @property
    def agreement(self) -> float:
        """The best of its readings' areas."""
        areas = [each.area for each in self.agreements if not isnan(each.area)]
        return max(areas, default=float("nan"))

    def tables(self) -> list[Table]:
        return [self._snippets(), self._agreements()]

    def _snippets(self) -> Table:
        heads = any(snippet.looked_at is not None for snippet in self.snippets)
        rows: list[tuple[Cell, ...]] = []
        for s in self.snippets:
            looked = (s.looked_at.shown if s.looked_at else None,) if heads else ()
            wrote = (" ".join(token.shown for token in s.wrote),) if heads else ()
            followed = s.followed.shown if s.followed else None
            rows.append((s.activation, s.marked, *looked, *wrote, followed))
        more = ("looked at", "wrote") if heads else ()
        return Table(
            ("activation", "where", *more, "followed"),
            tuple(rows),
            f"Where {self.source.address} is strongest",
            f"{self.source} · {self.text}, {self.tokens:,} tokens",
            bars=frozenset({"activation"}),
        )

    def _agreements(self) -> Table:
        rows = tuple(
            (a.reading, " ".join(word.shown for word in a.words), a.area, a.layer, a.below)
            for a in self.agreements
        )
        n = max((each.n for each in self.agreements), default=0)
        return Table(
            ("reading", "words", "AUC", "its layer", "better than"),
            rows,
            "Does its reading tell where?",
            f"AUC: 0.5 says nothing, 1 all · against {n} others of its kind in the layer",
        )

    def csv_tables(self) -> list[Table]:
        columns = ("activation", "before", "token", "after", "followed", "looked_at")
        rows = tuple(
            (
                s.activation,
                "".join(token.text for token in s.before),
                s.token.text,
                "".join(token.text for token in s.after),
                s.followed.text if s.followed else None,
                s.looked_at.text if s.looked_at else None,
            )
            for s in self.snippets
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "text": self.text,
            "tokens": self.tokens,
            "snippets": [snippet.to_dict() for snippet in self.snippets],
            "agreements": [each.to_dict() for each in self.agreements],
        }
