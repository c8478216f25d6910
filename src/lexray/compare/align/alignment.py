"""The answer of `align`: which layer of one model does what in the other, group by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from lexray.compare.align.page import grids
from lexray.compare.align.similarity import Similarity, diagonal
from lexray.compare.align.tokens import SharedTokens
from lexray.errors import LexrayError
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Heat, Panel
from lexray.result.format import show_percent
from lexray.result.page import fragment
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.space.kinds import GROUPS, Kind

NAMES: dict[Kind, str] = {"key": "FF keys", "gate": "FF gates", "value": "FF values"}
NUMBERS_UP_TO = 10
"""Columns of a table of numbers; the similarities of deeper models are shaded in the terminal."""
SHADES = " ░▒▓█"


@dataclass(frozen=True, eq=False)
class GroupAlignment:
    """One group of parameters, in embedding space and, where widths match, in feature space."""

    kind: Kind
    embedding: Similarity
    feature: Similarity | None

    @property
    def spaces(self) -> list[Similarity]:
        return [self.embedding, *([self.feature] if self.feature else [])]


@dataclass(frozen=True)
class AlignmentSummary(Result):
    """One table."""

    table: Table

    def tables(self) -> list[Table]:
        return [self.table]

    def to_dict(self) -> dict[str, Any]:
        return {"groups": [dict(zip(self.table.columns, r, strict=True)) for r in self.table.rows]}


@dataclass(frozen=True, eq=False)
class Alignment(Result, Sequence[GroupAlignment]):
    """Which layer does what in the other model.

    >>> lx.align(a, b)["key"].embedding.S
    """

    a: Source
    b: Source
    tokens: SharedTokens
    groups: tuple[GroupAlignment, ...]
    no_control: str = ""
    """Why there is no feature-space control, if there is none."""

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, group: Any) -> Any:
        """By kind or group name ("key", "keys"), or by number."""
        if not isinstance(group, str):
            return self.groups[group]
        for one in self.groups:
            if group == one.kind or GROUPS.get(group) == one.kind:  # type: ignore[call-overload]
                return one
        there = ", ".join(one.kind for one in self.groups)
        raise LexrayError(f"no group {group!r} was aligned; there are {there}")

    def __iter__(self) -> Iterator[GroupAlignment]:
        return iter(self.groups)

    @property
    def depths(self) -> tuple[int, int]:
        n_a, n_b = self.groups[0].embedding.S.shape
        return n_a, n_b

    def tables(self) -> list[Table]:
        return [self.summary.table, *(self._table(group) for group in self.groups)]

    @property
    def summary(self) -> AlignmentSummary:
        """The share on the diagonal in both spaces, a line for each group."""
        columns = ("group", "embedding space", "feature space", "by chance", "gap", "gap, features")
        rows = tuple(
            (
                group.kind,
                show_percent(group.embedding.share, 0),
                show_percent(group.feature.share, 0) if group.feature else None,
                show_percent(group.embedding.chance, 0),
                group.embedding.gap,
                group.feature.gap if group.feature else None,
            )
            for group in self.groups
        )
        title = f"Layers of {self.a.model} and {self.b.model}: share assigned on the diagonal"
        return AlignmentSummary(Table(columns, rows, title, self.note))

    @property
    def note(self) -> str:
        """How it was made, and what the diagonal is."""
        views = str(self.a.view) if self.a.view == self.b.view else f"{self.a.view} | {self.b.view}"
        depths = "" if self.depths[0] == self.depths[1] else "diagonal: same relative depth"
        left_out = {
            g.kind: sum(g.embedding.constant) for g in self.groups if sum(g.embedding.constant)
        }
        constant = ", ".join(f"{n:,} {kind}" for kind, n in left_out.items())
        constant = f"constant projections left out: {constant}" if constant else ""
        said = (views, str(self.tokens), depths, constant, self.no_control)
        return " · ".join(filter(None, said))

    def _table(self, group: GroupAlignment) -> Table:
        """S in embedding space, and both assignments."""
        S, n = group.embedding.S, self.depths[1]
        if n <= NUMBERS_UP_TO:
            columns = tuple(f"L{j}" for j in range(n))
            cells = [tuple(f"{x:.3f}" for x in row) for row in S]
        else:
            columns = (f"L0 … L{n - 1}",)
            cells = [(row,) for row in _shade(S)]
        assigned = [_assign(similarity) for similarity in group.spaces]
        rows = tuple(
            (f"L{i}", *cells[i], *(column.get(i, "") for column in assigned)) for i in range(len(S))
        )
        names = ("assigned", "in feature space")[: len(assigned)]
        note = f"rows {self.a.model}, columns {self.b.model} · × off the diagonal"
        return Table((" ", *columns, *names), rows, f"{group.kind}: S in embedding space", note)

    def _repr_html_(self) -> str:
        return fragment(self.html_body())

    def html_body(self) -> str:
        """The summary, and S as coloured grids: embedding space beside feature space."""
        below = [grids([(f"{g.kind}, {s.space} space", s) for s in g.spaces]) for g in self.groups]
        return "\n".join([self.summary.html_body(), *below])

    def csv_tables(self) -> list[Table]:
        columns = ("group", "space", "layer_a", "layer_b", "S", "assigned", "diagonal")
        rows: list[tuple[Cell, ...]] = []
        for group in self.groups:
            for similarity in group.spaces:
                assigned, on = set(similarity.assignment), set(similarity.diagonal)
                rows += [
                    (group.kind, similarity.space, *at, float(x), at in assigned, at in on)
                    for at, x in np.ndenumerate(similarity.S)
                ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "tokens": self.tokens.to_dict(),
            "diagonal": [list(pair) for pair in diagonal(*self.depths)],
            "no_control": self.no_control,
            "groups": [
                {
                    "group": group.kind,
                    "embedding": group.embedding.to_dict(),
                    "feature": group.feature.to_dict() if group.feature else None,
                }
                for group in self.groups
            ],
        }

    def plot(self) -> Panels:
        """S of every group, as in Fig. 3 of the paper, embedding space above, feature space below;
        assigned cells are marked by a dot."""
        groups = self.groups
        spaces = list(zip(*(group.spaces for group in groups), strict=True))
        panels = tuple(
            self._panel(NAMES.get(group.kind, f"W_{group.kind}"), similarity)
            for row in spaces
            for group, similarity in zip(groups, row, strict=True)
        )
        title = f"Which layer does what: {self.a.model} and {self.b.model}"
        said = f"{self.note} · each panel from its least to its largest · dots: assigned"
        return Panels(title, said, panels, across=len(groups))

    def _panel(self, name: str, similarity: Similarity) -> Panel:
        share = show_percent(similarity.share, 0)
        return Panel(
            f"{name}, {similarity.space} space: {share}",
            (Heat(similarity.S.tolist(), similarity.assignment),),
            Axis(f"layer of {self.b.model}", whole=True),
            Axis(f"layer of {self.a.model}", whole=True, down=True),
        )


def _assign(similarity: Similarity) -> dict[int, str]:
    on = set(similarity.diagonal)
    return {i: f"L{j}{'' if (i, j) in on else ' ×'}" for i, j in similarity.assignment}


def _shade(S: Float[NDArray[np.float64], "layers_a layers_b"]) -> list[str]:
    """Each row as a line of shades, from the smallest entry to the largest."""
    low, high = float(S.min()), float(S.max())
    steps = (S - low) / ((high - low) or 1.0) * (len(SHADES) - 1)
    return ["".join(SHADES[round(step)] * 2 for step in row) for row in steps.tolist()]
