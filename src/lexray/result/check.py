"""Whether readings of parameters predict what they do: what a check returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lexray.errors import LexrayError
from lexray.result.readings import Source, Token
from lexray.result.table import Cell, Result, Table

WORDS = 6


@dataclass(frozen=True)
class Checked:
    """One parameter: what its reading promises, and what moves when it is changed."""

    address: str
    area: float
    """How often a token that moves stands above another one in the reading: 0.5 says nothing."""
    overlap: float
    """The share of the k most promised tokens that are among the k that move most."""
    control: float
    """The same area for the readings of other parameters of its layer."""
    places: int
    """At how many places it was changed."""
    coefficient: float
    """How strong it was there, on the mean."""
    promised: tuple[Token, ...]
    moved: tuple[Token, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "area": self.area,
            "overlap": self.overlap,
            "control": self.control,
            "places": self.places,
            "coefficient": self.coefficient,
            "promised": [token.to_dict() for token in self.promised],
            "moved": [token.to_dict() for token in self.moved],
        }


@dataclass(frozen=True)
class Check(Result, Sequence[Checked]):
    """Does the reading predict the effect? A line for each parameter, and others to compare."""

    source: Source
    how: str
    k: int
    checked: tuple[Checked, ...]
    others: tuple[Checked, ...]
    """Other parameters of the same layers, drawn at random."""
    note: str = ""

    def __len__(self) -> int:
        return len(self.checked)

    def __getitem__(self, key: Any) -> Any:
        """By number, or by address."""
        if not isinstance(key, str):
            return self.checked[key]
        checked = next((c for c in self.checked if c.address == key), None)
        if checked is None:
            raise LexrayError(
                f"{key!r} was not checked; there are {', '.join(c.address for c in self.checked)}"
            )
        return checked

    def __iter__(self) -> Iterator[Checked]:
        return iter(self.checked)

    @property
    def others_area(self) -> float | None:
        """The mean area of other parameters of the layers."""
        return _mean([c.area for c in self.others])

    @property
    def others_overlap(self) -> float | None:
        return _mean([c.overlap for c in self.others])

    def tables(self) -> list[Table]:
        rows: list[tuple[Cell, ...]] = [
            (c.address, c.area, c.control, c.overlap, _words(c.promised), _words(c.moved))
            for c in self.checked
        ]
        if self.others:
            mean = f"{len(self.others)} others"
            control = _mean([c.control for c in self.others])
            rows.append((mean, self.others_area, control, self.others_overlap, "", ""))
        verb = "removed" if self.how == "remove" else "doubled"
        columns = ("", "AUC", "other readings", f"overlap at {self.k}", "promised", "moved")
        note = " · ".join(filter(None, [str(self.source), self.note]))
        title = f"Does the reading predict what moves when it is {verb}?"
        return [Table(columns, tuple(rows), title, note)]

    def csv_tables(self) -> list[Table]:
        columns = ("address", "other", "area", "control", "overlap", "places", "coefficient")
        rows: list[tuple[Cell, ...]] = [
            (c.address, other, c.area, c.control, c.overlap, c.places, c.coefficient)
            for other, lines in ((False, self.checked), (True, self.others))
            for c in lines
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "how": self.how,
            "k": self.k,
            "checked": [c.to_dict() for c in self.checked],
            "others": [c.to_dict() for c in self.others],
            "note": self.note,
        }


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None


def _words(tokens: Sequence[Token]) -> str:
    return " ".join(token.shown for token in tokens[:WORDS])
