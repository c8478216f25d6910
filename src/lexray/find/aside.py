"""The tokens that standard lists set aside, by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from lexray.model.anatomy import Anatomy
from lexray.result.readings import Token
from lexray.result.table import Cell, Result, Table
from lexray.space.untrained import Why, untrained


@dataclass(frozen=True)
class SetAside(Result):
    """Tokens that training never touched, and pieces of characters."""

    model: str
    tokens: tuple[tuple[Token, Why, int | None], ...]
    """Each with why it is set aside and, if a text was given, how often it occurs there."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def counts(self) -> dict[str, int]:
        """How many for each reason."""
        return dict(Counter(why for _, why, _ in self.tokens))

    def tables(self) -> list[Table]:
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (token.shown, token.id, why, count) for token, why, count in self.tokens
        )
        note = " · ".join([self.model, *(f"{n} {why}" for why, n in self.counts.items())])
        title = f"{len(self)} tokens that standard lists set aside"
        return [Table(("token", "id", "why", "in the text"), rows, title, note)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "counts": self.counts,
            "tokens": [
                {"token": token.to_dict(), "why": why, "count": count}
                for token, why, count in self.tokens
            ],
        }


def set_aside(model: Anatomy, text: str | None = None) -> SetAside:
    """The tokens that the standard view leaves out; `text`: to check them against its counts."""
    seen = None if text is None else Counter(model.vocabulary.encode(text))
    token = model.space.token
    aside = untrained(model).items()
    return SetAside(
        model.name,
        tuple((token(i), why, None if seen is None else seen[i]) for i, why in aside),
    )
