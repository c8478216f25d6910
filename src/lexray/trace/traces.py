"""Several passes together: what can be asked of a batch, on the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import torch

from lexray.address import Address
from lexray.effects.plots import signed_map
from lexray.errors import LexrayError
from lexray.result.charts.panels import Panels
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.trace.attribute.contributions import Contributions
from lexray.trace.read.targets import Wanted
from lexray.trace.trace import Trace


class Traces(list[Trace]):
    """The passes of a batch: a list, with means over its prompts.

    >>> traces = model.trace(["This movie was", "The film is"])
    >>> traces.contributions([" great", " bad"]).top(5, kind="head")
    >>> traces.lens([" great", " bad"])
    """

    def __repr__(self) -> str:
        name = self[0].model.name if self else "nothing"
        return f"<{len(self)} traces of {name}: [0], .lens(), .contributions()>"

    def contributions(
        self,
        targets: Wanted | Sequence[Wanted] | None = None,
        position: int = -1,
        *,
        against: Wanted | Sequence[Wanted] | None = None,
        shown: int = 10,
    ) -> MeanContributions:
        """What each head, neuron and bias added to the logit, on the mean over prompts.

        - `targets`: one token for all prompts, or one for each; else each one's own prediction.
        - `against`: likewise; the difference of the two logits is explained.
        """
        wanted, other = self._each(targets, "targets"), self._each(against, "against")
        several = [
            trace.contributions(target, position, against=minus)
            for trace, target, minus in zip(self, wanted, other, strict=True)
        ]
        return average(several, shown)

    def lens(
        self, targets: Wanted | Sequence[Wanted] | None = None, position: int = -1
    ) -> MeanLens:
        """How probable each prompt's target is after each layer, on the mean over prompts.

        >>> model.trace(["This movie was", "The film is"]).lens()
        """
        wanted = self._each(targets, "targets")
        lenses = [
            trace.lens(target=_or_own(trace, target, position), positions=position, k=1)
            for trace, target in zip(self, wanted, strict=True)
        ]
        known = [(one.target_probs, one.target_ranks) for one in lenses]
        probs = torch.stack([p[:, 0] for p, _ in known if p is not None])
        ranks = torch.stack([r[:, 0] for _, r in known if r is not None])
        return MeanLens(
            lenses[0].source,
            tuple(one.target.shown for one in lenses if one.target is not None),
            tuple(lenses[0].names),
            tuple(probs.mean(0).tolist()),
            tuple((1 + ranks).double().median(0).values.tolist()),
            tuple((ranks == 0).double().mean(0).tolist()),
        )

    def _each(self, given: Any, name: str) -> list[Any]:
        """One for each prompt."""
        if not self:
            raise LexrayError("there is no trace in this list")
        if isinstance(given, (list, tuple)):
            if len(given) != len(self):
                raise LexrayError(
                    f"{len(given)} {name} for {len(self)} prompts: give one for all, or one each"
                )
            return list(given)
        return [given] * len(self)


def _or_own(trace: Trace, target: Any, position: int) -> Any:
    """A target, or the model's own prediction."""
    return int(trace.logits[trace.row(position)].argmax()) if target is None else target


@dataclass(frozen=True)
class Mean:
    """One component over several prompts."""

    component: str
    kind: str
    layer: int | None
    mean: float
    error: float
    """The standard error of the mean."""
    positive: float
    """In which share of the prompts it added."""

    def to_dict(self) -> dict[str, Any]:
        return vars(self).copy()


@dataclass(frozen=True)
class MeanContributions(Result):
    """What components added to a logit, on the mean over prompts; the largest first."""

    source: Source
    n_prompts: int
    targets: tuple[str, ...]
    components: tuple[Mean, ...]
    heads: tuple[int, int]
    """Layers and heads."""
    shown: int = 10

    def top(
        self, n: int = 10, *, kind: str | None = None, negative: bool = False
    ) -> tuple[Mean, ...]:
        """The n components that added most, or took most."""
        some = [c for c in self.components if kind is None or c.kind == kind]
        return tuple(some[::-1][:n] if negative else some[:n])

    def __getitem__(self, component: str) -> Mean:
        for mean in self.components:
            if mean.component == component:
                return mean
        raise LexrayError(f"there is no component {component!r} in these contributions")

    def tables(self) -> list[Table]:
        return [
            self._table("added most", self.top(self.shown)),
            self._table("took most", self.top(self.shown, negative=True)),
        ]

    def _table(self, title: str, listed: Sequence[Mean]) -> Table:
        rows = tuple((c.component, c.mean, c.error, c.positive) for c in listed)
        columns = ("component", "mean", "standard error", "adds in")
        words = ", ".join(dict.fromkeys(self.targets[:5]))
        more = ", …" if len(set(self.targets)) > 5 else ""
        about = f"{title} to the logit of {words}{more}, mean of {self.n_prompts} prompts"
        return Table(columns, rows, about, str(self.source), frozenset({"mean"}))

    def csv_tables(self) -> list[Table]:
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (c.component, c.kind, c.layer, c.mean, c.error, c.positive) for c in self.components
        )
        columns = ("component", "kind", "layer", "mean", "standard_error", "positive")
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "n_prompts": self.n_prompts,
            "targets": list(self.targets),
            "components": [c.to_dict() for c in self.components],
        }

    def plot(self) -> Panels:
        """Layers by heads, coloured by what each head adds on the mean; of an encoder–decoder also
        the heads of cross-attention."""
        by_name = {c.component: c.mean for c in self.components if c.kind == "head"}
        groups: dict[str, dict[Address, float]] = {}
        for name, mean in by_name.items():
            at = Address.parse(name)
            groups.setdefault(at.attention, {})[at] = mean
        title = f"What heads add on the mean of {self.n_prompts} prompts"
        panels = []
        for of, means in groups.items():
            grid = torch.full(self.heads, nan)
            for at, mean in means.items():
                grid[at.layer, at.head] = mean
            said = f"{of}: added to the logit" if of else "added to the logit"
            panels.append(signed_map(said, grid, "head", "layer"))
        return Panels(title, str(self.source), tuple(panels))


def average(several: Sequence[Contributions], shown: int = 10) -> MeanContributions:
    """The mean of each component over several contributions of one model."""
    sums: dict[str, list[float]] = {}
    about: dict[str, tuple[str, int | None]] = {}
    for number, one in enumerate(several):
        for leaf in one:
            row = sums.setdefault(leaf.component, [0.0] * len(several))
            row[number] += leaf.contribution
            about[leaf.component] = leaf.kind, leaf.layer
    means = [
        Mean(name, *about[name], *_moments(row), sum(x > 0 for x in row) / len(row))
        for name, row in sums.items()
    ]
    means.sort(key=lambda c: -c.mean)
    heads = [Address.parse(name) for name, (kind, _) in about.items() if kind == "head"]
    size = (
        1 + max((at.layer for at in heads), default=-1),
        1 + max((at.head or 0 for at in heads), default=-1),
    )
    source, targets = several[0].source, tuple(one.target.shown for one in several)
    return MeanContributions(source, len(several), targets, tuple(means), size, shown)


def _moments(row: Sequence[float]) -> tuple[float, float]:
    n, mean = len(row), sum(row) / len(row)
    spread = sum((x - mean) ** 2 for x in row) / max(1, n - 1)
    return mean, sqrt(spread / n)


@dataclass(frozen=True)
class MeanLens(Result):
    """How well the residual stream knows its prompts' targets, layer by layer."""

    source: Source
    targets: tuple[str, ...]
    lines: tuple[str, ...]
    probability: tuple[float, ...]
    rank: tuple[float, ...]
    """The median over prompts; 1 is the best."""
    first: tuple[float, ...]
    """In which share of the prompts the target is the most probable token."""

    def tables(self) -> list[Table]:
        rows = tuple(zip(self.lines, self.probability, self.rank, self.first, strict=True))
        title = f"Targets of {len(self.targets)} prompts in the logit lens"
        columns = ("", "mean probability", "median rank", "first in")
        return [Table(columns, rows, title, str(self.source), frozenset({"mean probability"}))]

    def to_dict(self) -> dict[str, Any]:
        rows = zip(self.lines, self.probability, self.rank, self.first, strict=True)
        names = ("line", "probability", "rank", "first")
        return {
            **self.source.to_dict(),
            "targets": list(self.targets),
            "lines": [dict(zip(names, row, strict=True)) for row in rows],
        }
