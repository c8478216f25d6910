"""Does a reading say what the parameter does?

Text is run through the model, and for a sample of parameters of some layers of each third of its
depth the area under the curve is measured with which each view's reading tells what the parameter
does from what it does not: 0.5 says nothing, 1 says all. See `lexray.studies.shared.grounds`.

Not in the papers: it is by this table that the standard view was chosen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.progress import track
from lexray.result.table import Cell, Result, Table
from lexray.studies.shared.grounds import Amount, Areas, Grounds
from lexray.studies.shared.measures import interval
from lexray.studies.shared.resume import keep_work, weights_sample
from lexray.studies.shared.text import own_text
from lexray.view import RAW, STANDARD, View

KINDS = ("key", "gate", "value", "O", "QK", "VO")
VIEWS: dict[str, View] = {
    "raw": RAW,
    "folded": View(folded=True),
    "folded, effective": View(folded=True, reading="effective"),
    "standard": STANDARD,
    "standard, through E": STANDARD.expects,
}
BEST = {"sees": "standard", "expects": "standard, through E"}
"""By which view lexray itself answers a question; all others: standard."""
THIRDS = ("early", "middle", "late")
WINDOW = 40


@dataclass(frozen=True)
class Area:
    """A mean area, half of its 95 % interval, and of how many parameters it is the mean."""

    mean: float
    interval: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.interval:.2f}"


@dataclass(frozen=True)
class Ground:
    """One line of the table."""

    kind: str
    question: str
    view: str
    whole: Area
    control: float
    """The same for another parameter's reading."""
    thirds: tuple[Area | None, ...]

    @property
    def area(self) -> float:
        return self.whole.mean

    @property
    def interval(self) -> float:
        return self.whole.interval

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
        by_view = {g.view: g for g in self.grounds if (g.kind, g.question) == (kind, question)}
        if not by_view:
            there = sorted({f"{g.kind} {g.question}" for g in self.grounds})
            raise LexrayError(f"nothing was measured of {kind} {question}; only {there}")
        return by_view

    @property
    def questions(self) -> list[tuple[str, str]]:
        """What was asked of which kind, in order."""
        return list(dict.fromkeys((g.kind, g.question) for g in self.grounds))

    def defaults(self) -> Iterator[tuple[Ground, Ground]]:
        """For each question the line of the default view, and that of the raw one."""
        for g in self.grounds:
            if g.is_default:
                yield g, self.of(g.kind, g.question)["raw"]

    def tables(self) -> list[Table]:
        return [self._all(), self._summary()]

    def _all(self) -> Table:
        columns = ("kind", "question", "view", "AUC", "±", "control", *THIRDS, "n")
        rows: list[tuple[Cell, ...]] = [
            (
                *(g.kind, g.question, f"{g.view} *" if g.is_default else g.view),
                *(g.area, g.interval, g.control),
                *(None if third is None else str(third) for third in g.thirds),
                g.whole.n,
            )
            for g in self.grounds
        ]
        note = (
            f"{self.model} · {self.tokens:,} tokens · layers {', '.join(map(str, self.layers))} · "
            "the area under the curve (0.5 says nothing) and half of its 95 % interval · "
            "* the default's answer · control: another parameter's reading"
        )
        return Table(columns, tuple(rows), "Does a reading say what the parameter does?", note)

    def _summary(self) -> Table:
        """For each question, the default beside the best of the others."""
        rows: list[tuple[Cell, ...]] = []
        for kind, question in self.questions:
            lines = self.of(kind, question)
            own = next((g for g in lines.values() if g.is_default), None)
            others = [g for g in lines.values() if not g.is_default]
            if own is None or not others:
                continue
            best = max(others, key=lambda g: g.area)
            margin = own.interval + best.interval
            ahead = own.area - best.area
            said = "wins" if ahead > margin else "loses" if ahead < -margin else "ties"
            rows.append((kind, question, str(own.whole), best.view, str(best.whole), said))
        columns = ("kind", "question", "default", "best of the others", "its AUC", "the default")
        note = "wins or loses: by more than both intervals together"
        return Table(columns, tuple(rows), "Is the default the winner?", note)

    def csv_tables(self) -> list[Table]:
        ends = ("", "_interval", "_n")
        columns = (
            *("kind", "question", "view", "default", "area", "interval", "n", "control"),
            *(f"{third}{end}" for third in THIRDS for end in ends),
        )
        rows = tuple(
            (
                *(g.kind, g.question, g.view, g.is_default),
                *(g.area, g.interval, g.whole.n, g.control),
                *(
                    value
                    for third in g.thirds
                    for value in (
                        (None, None, 0) if third is None else (third.mean, third.interval, third.n)
                    )
                ),
            )
            for g in self.grounds
        )
        return [Table(columns, rows)]

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
                    "n": g.whole.n,
                    "thirds": {
                        name: None if third is None else asdict(third)
                        for name, third in zip(THIRDS, g.thirds, strict=True)
                    },
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
    place: Path | None = None,
) -> Grounding:
    """The grounding table of a model, over a text of the user's or lexray's own.

    With `place`, a file, what is done of each layer and kind is kept there, and what an earlier run
    left there is not measured again.

    >>> ground(model, kinds=["key"]).of("key", "sees")["standard"].area
    """
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise LexrayError(f"nothing is known of {', '.join(unknown)}; kinds are {', '.join(KINDS)}")
    texts = cut(model, text or own_text(), windows)
    chosen = spread(model.n_layers) if layers is None else tuple(layers)
    amount = amount or Amount()
    grounds = Grounds(model, texts, views, amount, seed)
    made = _fingerprint(model, texts, views, amount, seed) if place else ""
    areas: dict[tuple[int, str], Areas] = {}
    for layer in track(chosen, len(chosen), "grounding"):
        for kind in kinds:
            measure = partial(grounds.measure, layer, kind)
            areas[layer, kind] = keep_work(place, made, f"L{layer} {kind}", measure)
    lines = tuple(line for kind in kinds for line in _lines(areas, model.n_layers, kind))
    return Grounding(model.name, lines, tuple(chosen), sum(map(len, texts)))


def _fingerprint(
    model: Model,
    texts: Sequence[Sequence[int]],
    views: Mapping[str, View],
    amount: Amount,
    seed: int,
) -> str:
    """What the areas of a layer depend on."""
    from lexray import __version__

    seen = {name: str(view) for name, view in views.items()}
    said = [__version__, model.name, str(model.dtype), list(map(list, texts)), seen]
    text = json.dumps([*said, asdict(amount), seed])
    return hashlib.sha256(text.encode() + weights_sample(model)).hexdigest()[:16]


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


def _lines(measured: Mapping[tuple[int, str], Areas], n_layers: int, kind: str) -> Iterator[Ground]:
    """All of a kind, question by question."""
    parts = {layer: areas for (layer, of), areas in measured.items() if of == kind}
    cells = dict.fromkeys(
        (question, view)
        for areas in parts.values()
        for question, views in areas.items()
        for view in views
    )
    for question in dict.fromkeys(question for question, _ in cells):
        for view in (view for asked, view in cells if asked == question):
            by_layer = {at: areas[question][view] for at, areas in parts.items() if areas}
            whole = _area([x for cell in by_layer.values() for x in cell["areas"]])
            control = _area([x for cell in by_layer.values() for x in cell["control"]])
            if whole is None or control is None:
                continue
            thirds = tuple(
                _area(
                    [
                        x
                        for at, cell in by_layer.items()
                        if at * 3 // n_layers == third
                        for x in cell["areas"]
                    ]
                )
                for third in range(len(THIRDS))
            )
            yield Ground(kind, question, view, whole, control.mean, thirds)


def _area(values: Sequence[float | None]) -> Area | None:
    known = torch.tensor([x for x in values if x is not None], dtype=torch.float64)
    return Area(float(known.mean()), interval(known), len(known)) if len(known) else None
