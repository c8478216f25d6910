"""What each head, neuron, bias and embedding added to the logit of a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.result.readings import Token
from lexray.result.table import Cell, Result, Table
from lexray.trace.backwards import KINDS, Backwards, Group, Kind
from lexray.trace.read.targets import Target, Wanted, find_target

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lexray.trace.trace import Trace

PLURALS: dict[Kind, str] = {
    "embedding": "embeddings",
    "head": "heads",
    "neuron": "neurons",
    "bias": "biases",
}


@dataclass(frozen=True)
class Leaf:
    """One component."""

    component: str
    kind: Kind
    layer: int | None
    contribution: float
    source: int | None = None
    """The position a head looked at, where heads are split by it."""

    def to_dict(self) -> dict[str, Any]:
        at = {} if self.source is None else {"source": self.source}
        return {
            "component": self.component,
            "layer": self.layer,
            **at,
            "contribution": self.contribution,
        }


@dataclass(frozen=True, eq=False)
class Contributions(Result):
    """All components with what they added to a logit, or to the difference of two."""

    model: Anatomy = field(repr=False)
    target: Target
    against: Target | None
    position: int
    tokens: tuple[Token, ...]
    """The whole sequence."""
    logit: float
    """What the components add up to, as the model computed it."""
    groups: tuple[Group, ...]
    note: str = ""
    shown: int = 10

    @property
    def total(self) -> float:
        """The sum of all contributions: the logit, but for rounding."""
        return sum(float(group.values.sum()) for group in self.groups)

    def __iter__(self) -> Iterator[Leaf]:
        for group in self.groups:
            for i, value in enumerate(group.values.tolist()):
                source = i if group.by_source else None
                yield Leaf(group.component(i), group.kind, group.layer, value, source)

    def __getitem__(self, component: str) -> float:
        """What one component added: `contributions["L5H3"]`."""
        found = [leaf.contribution for leaf in self if leaf.component == component]
        if not found:
            some = ", ".join(dict.fromkeys(group.component(0) for group in self.groups))
            raise LexrayError(f"there is no component {component!r}; there are {some}, …")
        return sum(found)

    def top(self, n: int = 10, *, kind: Kind | None = None, negative: bool = False) -> list[Leaf]:
        """The n components that added most, or took most."""
        if n < 1:
            raise LexrayError(f"asked for the top {n} components; n must be at least 1")
        groups = [group for group in self.groups if kind is None or group.kind == kind]
        if not groups:
            return []
        values = torch.cat([group.values for group in groups])
        order = values.argsort(descending=not negative, stable=True)[:n].tolist()
        starts = torch.tensor([0, *(len(group.values) for group in groups)]).cumsum(0)
        leaves = []
        for place in order:
            at = int(torch.searchsorted(starts, place, right=True)) - 1
            group, i = groups[at], place - int(starts[at])
            source = i if group.by_source else None
            value = float(values[place])
            leaves.append(Leaf(group.component(i), group.kind, group.layer, value, source))
        return leaves

    def by_layer(self) -> dict[str, dict[Kind, float]]:
        """The sums by kind of the embedding, of each layer, and of the last step."""
        sums: dict[str, dict[Kind, float]] = {}
        for group in self.groups:
            of_place = sums.setdefault(group.place, dict.fromkeys(KINDS, 0.0))
            of_place[group.kind] += float(group.values.sum())
        return sums

    def tables(self) -> list[Table]:
        return [self._extremes(), self._layers()]

    @property
    def what(self) -> str:
        """The logit that is explained, in words."""
        against = f" against {self.against.shown}" if self.against else ""
        word = "after" if self.model.architecture.causal else "at"
        at = f"{self.tokens[self.position].shown} (position {self.position})"
        return f"{self.target.shown}{against} {word} {at}"

    def _extremes(self) -> Table:
        ends = [self.top(self.shown, negative=negative) for negative in (False, True)]
        rows = tuple(
            (self.label(a), a.contribution, self.label(b), b.contribution)
            for a, b in zip(*ends, strict=True)
        )
        error = f"logit {self.logit:.3f}, all components together {self.total:.3f}"
        return Table(
            ("added most", "contribution", "took most", "contribution "),
            rows,
            title=f"What added to the logit of {self.what}",
            note=" · ".join(filter(None, [self.model.name, error, self.note])),
            bars=frozenset({"contribution", "contribution "}),
        )

    def label(self, leaf: Leaf) -> str:
        """A component as people read it, with the token that a head looked at."""
        if leaf.source is None:
            return leaf.component
        return f"{leaf.component} ← {self.tokens[leaf.source].shown} ({leaf.source})"

    def _layers(self) -> Table:
        there = [kind for kind in KINDS if any(group.kind == kind for group in self.groups)]
        rows: list[tuple[Cell, ...]] = []
        for place, sums in self.by_layer().items():
            parts = (sums[kind] or None for kind in there)
            rows.append((place, *parts, sum(sums.values())))
        columns = ("", *(PLURALS[kind] for kind in there), "together")
        return Table(columns, tuple(rows), title="Sums by layer", bars=frozenset({"together"}))

    def csv_tables(self) -> list[Table]:
        split = any(group.by_source for group in self.groups)
        rows: list[tuple[Cell, ...]] = [
            (leaf.component, leaf.layer, *([leaf.source] if split else []), leaf.contribution)
            for leaf in self
        ]
        source = ("source",) if split else ()
        return [Table(("component", "layer", *source, "contribution"), tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "revision": self.model.checkpoint.revision,
            "tokens": [token.to_dict() for token in self.tokens],
            "position": self.position,
            "target": self.target.to_dict(),
            "against": None if self.against is None else self.against.to_dict(),
            "logit": self.logit,
            "note": self.note,
            "contributions": [leaf.to_dict() for leaf in self],
        }

    def plot(self) -> go.Figure:
        """Each layer's sums as stacked bars, and the largest components beside them."""
        from lexray.trace.read import plots as figures  # plotly takes long to import

        return figures.contributions(self)


def contributions(
    trace: Trace,
    target: Wanted | Sequence[Wanted] | None = None,
    position: int = -1,
    *,
    against: Wanted | None = None,
    first: bool = False,
    sources: bool = False,
    shown: int = 10,
) -> Contributions:
    """What each component added to the logit of `target`, by default the most probable token.

    - `against`: another token; the difference of the two logits is explained. A pair of tokens as
      `target` means the same.
    - `first=True`: of a target with several tokens the first is taken.
    - `sources=True` splits each head by the positions it looked at.

    >>> trace.contributions(" great", against=" bad").top(5, kind="head")
    """
    row, model = trace.row(position), trace.model
    if target is None:
        target = int(trace.logits[row].argmax())
    target, against = _both(target, against)
    wanted = find_target(model, target, first=first)
    other = None if against is None else find_target(model, against, first=first)
    walk = Backwards(trace, row, wanted.id, None if other is None else other.id, sources)
    notes = [wanted.note, "" if other is None else other.note, *model_notes(model)]
    return Contributions(
        model,
        wanted,
        other,
        trace.positions[row],
        trace.tokens,
        walk.logit,
        tuple(reversed(list(walk.groups()))),
        " · ".join(filter(None, notes)),
        shown,
    )


def _both(
    target: Wanted | Sequence[Wanted], against: Wanted | None
) -> tuple[Wanted, Wanted | None]:
    """A target and what it is compared with, if anything."""
    if isinstance(target, (str, Token)) or not isinstance(target, Sequence):
        return target, against
    if len(target) != 2 or against is not None:
        raise LexrayError(
            f"a target is one token, or two whose logits are compared, not {target!r}"
        )
    return target[0], target[1]


def model_notes(model: Anatomy) -> Iterator[str]:
    a = model.architecture
    if a.head is not None:
        yield (
            "to the logit of the decoder alone: the LM head's transform (dense, activation, norm) "
            "is not linear and is left out"
        )
    if a.logit_cap is not None:
        yield f"to the logit before the cap of {a.logit_cap:g}"
