"""Does a reading say what the parameter does?

Text is run through the model, and for a sample of parameters of some layers of each third of its
depth the area under the curve is measured with which each view's reading tells what the parameter
does from what it does not: 0.5 says nothing, 1 says all. See `lexray.studies.shared.grounds`.

Not in the papers: it is by this table that the standard view was chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import isnan
from typing import Any

import torch

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.table import Cell, Result, Table
from lexray.studies.shared.areas import interval
from lexray.studies.shared.grounds import Amount, Grounds
from lexray.view import RAW, STANDARD, View

KINDS = ("key", "gate", "value", "O", "QK", "VO")
VIEWS: dict[str, View] = {
    "raw": RAW,
    "folded": View(folded=True),
    "standard": STANDARD,
    "standard, through E": STANDARD.expects,
}
BEST = {"sees": "standard", "expects": "standard, through E"}
"""By which view lexray itself answers a question; all others: standard."""
THIRDS = ("early", "middle", "late")
WINDOW = 40


@cache
def own_text() -> str:
    """The text that comes along."""
    return (files("lexray.studies.shared") / "text.txt").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Ground:
    """One line of the table."""

    kind: str
    question: str
    view: str
    area: float
    interval: float
    """Half of the 95 % interval of the area."""
    control: float
    """The same for another parameter's reading."""
    thirds: tuple[float | None, ...]
    n: int

    @property
    def is_default(self) -> bool:
        return self.view == BEST.get(self.question, "standard")


@dataclass(frozen=True)
class Grounding(Result):
    """How well readings tell what parameters do: kinds and questions by views."""

    model: str
    grounds: tuple[Ground, ...]
    layers: tuple[int, ...]
    tokens: int

    def of(self, kind: str, question: str) -> dict[str, Ground]:
        """The lines of one question, by view."""
        found = {g.view: g for g in self.grounds if (g.kind, g.question) == (kind, question)}
        if not found:
            there = sorted({f"{g.kind} {g.question}" for g in self.grounds})
            raise LexrayError(f"nothing was measured of {kind} {question}; only {there}")
        return found

    def defaults(self) -> Iterator[tuple[Ground, Ground]]:
        """For each question the line of the default view, and that of the raw one."""
        for g in self.grounds:
            if g.is_default:
                yield g, self.of(g.kind, g.question)["raw"]

    def tables(self) -> list[Table]:
        columns = ("kind", "question", "view", "AUC", "±", "control", *THIRDS, "n")
        rows: list[tuple[Cell, ...]] = [
            (
                g.kind,
                g.question,
                f"{g.view} *" if g.is_default else g.view,
                g.area,
                g.interval,
                g.control,
                *g.thirds,
                g.n,
            )
            for g in self.grounds
        ]
        note = (
            f"{self.model} · {self.tokens:,} tokens · layers {', '.join(map(str, self.layers))} · "
            "* the default's answer · control: another parameter's reading"
        )
        return [Table(columns, tuple(rows), "Does a reading say what the parameter does?", note)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "layers": list(self.layers),
            "tokens": self.tokens,
            "grounds": [
                {
                    "kind": g.kind,
                    "question": g.question,
                    "view": g.view,
                    "area": g.area,
                    "interval": g.interval,
                    "control": g.control,
                    "thirds": dict(zip(THIRDS, g.thirds, strict=True)),
                    "n": g.n,
                    "default": g.is_default,
                }
                for g in self.grounds
            ],
        }


def ground(
    model: Model,
    text: str | None = None,
    kinds: Sequence[str] = KINDS,
    *,
    layers: Sequence[int] | None = None,
    amount: Amount | None = None,
    windows: int = 48,
    seed: int = 0,
    views: Mapping[str, View] = VIEWS,
) -> Grounding:
    """The grounding table of a model, over a text of the user's or lexray's own.

    >>> ground(model, kinds=["key"]).of("key", "sees")["standard"].area
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise LexrayError(f"nothing is known of {', '.join(unknown)}; kinds are {', '.join(KINDS)}")
    texts = cut(model, text or own_text(), windows)
    chosen = spread(model.n_layers) if layers is None else tuple(layers)
    grounds = Grounds(model, texts, chosen, views, amount or Amount(), seed)
    grounds.measure(kinds)
    lines = tuple(_lines(grounds, model.n_layers, kinds))
    return Grounding(model.name, lines, tuple(chosen), sum(map(len, texts)))


def cut(model: Model, text: str, windows: int) -> list[list[int]]:
    """The text in windows of equal length, spread over the whole of it."""
    ids = model.vocabulary.encode(text)
    n = min(WINDOW, model.architecture.n_ctx or WINDOW)
    pieces = [ids[i : i + n] for i in range(0, len(ids) - n + 1, n)]
    if not pieces:
        raise LexrayError(f"the text has {len(ids)} tokens; grounding needs at least {n}")
    step = max(1, len(pieces) // windows)
    return pieces[::step][:windows]


def spread(n_layers: int) -> tuple[int, ...]:
    """All layers of a shallow model, else three of each third."""
    if n_layers <= 9:
        return tuple(range(n_layers))
    return tuple(round(i * (n_layers - 1) / 8) for i in range(9))


def _lines(grounds: Grounds, n_layers: int, kinds: Sequence[str]) -> Iterator[Ground]:
    for kind in kinds:
        for cell, layers in grounds.found.items():
            if cell[0] != kind:
                continue
            values = _pooled(layers.values())
            if not len(values):
                continue
            thirds = tuple(
                _mean(_pooled(v for layer, v in layers.items() if layer * 3 // n_layers == third))
                for third in range(3)
            )
            control = _pooled(grounds.control[cell].values())
            mean = float(values.mean())
            yield Ground(*cell, mean, interval(values), float(control.mean()), thirds, len(values))


def _pooled(parts: Any) -> torch.Tensor:
    values = [value for part in parts for value in part if not isnan(value)]
    return torch.tensor(values, dtype=torch.float64)


def _mean(values: torch.Tensor) -> float | None:
    return float(values.mean()) if len(values) else None
