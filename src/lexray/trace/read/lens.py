"""The logit lens: what any vector of a forward pass says in the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isnan
from typing import Any

from jaxtyping import Float, Int
from rich.console import Group, RenderableType
from torch import Tensor

from lexray.errors import LexrayError
from lexray.result.charts.cells import Cells
from lexray.result.format import show_percent
from lexray.result.readings import Glossary, Source, Token
from lexray.result.table import TEXT_WIDTH, Cell, Result, Table, html_table, rich_table, shorten
from lexray.result.theme import standing
from lexray.trace.read.grid import TOKEN_WIDTH, Grid, GridCell, clip
from lexray.trace.read.standard import How
from lexray.trace.read.targets import Target
from lexray.trace.read.vectors import READERS

SLIGHT = 1e-4
"""A probability below it is not written beside its word: where nothing is settled, words are read
more easily alone."""


@dataclass(frozen=True)
class Heading:
    """What a line of the lens is about."""

    name: str
    of: str
    layer: int | None
    coefficient: float | None = None
    """By how much a neuron's value was added."""
    how: How = "as it is"
    """How its words were found."""

    @property
    def reads(self) -> bool:
        """Whether it reads from the residual stream; its scores are then no model's logits."""
        return self.of in READERS


@dataclass(frozen=True, eq=False)
class Lens(Result):
    """Lines (layers, heads, neurons) by positions; each cell is a vector as tokens."""

    words: Glossary = field(repr=False)
    """The tokens of all cells."""
    source: Source
    tokens: tuple[Token, ...]
    """The whole sequence."""
    positions: tuple[int, ...]
    """Those of the columns."""
    lines: tuple[Heading, ...]
    target: Target | None
    top_ids: Int[Tensor, "lines c k"]
    """The words: by standardised score, or where a line is read as it is, by probability."""
    top_probs: Float[Tensor, "lines c k"]
    top_scores: Float[Tensor, "lines c k"]
    """Standardised; NaN where a line is read as it is."""
    entropy: Float[Tensor, "lines c"]
    """In nats."""
    target_probs: Float[Tensor, "lines c"] | None
    target_ranks: Int[Tensor, "lines c"] | None
    """How many tokens are more probable."""
    note: str = ""

    @property
    def names(self) -> list[str]:
        """What the lines are called."""
        return [line.name for line in self.lines]

    def top(self, line: int | str, position: int = -1) -> list[tuple[Token, float]]:
        """The words of a cell with their probabilities.

        >>> trace.lens().top("L2", -1)
        """
        i, j = self._line(line), self._column(position)
        ids, probs = self.top_ids[i, j].tolist(), self.top_probs[i, j].tolist()
        return [(self.words[t], p) for t, p in zip(ids, probs, strict=True)]

    def _line(self, line: int | str) -> int:
        if isinstance(line, str) and line in self.names:
            return self.names.index(line)
        if isinstance(line, int) and -len(self.lines) <= line < len(self.lines):
            return line
        raise LexrayError(
            f"this lens has no line {line!r}; it has {len(self.lines)}, from {self.names[0]} to "
            f"{self.names[-1]}"
        )

    def _column(self, position: int) -> int:
        at = position + len(self.tokens) if position < 0 else position
        if at not in self.positions:
            raise LexrayError(
                f"this lens has no position {position}; it has "
                f"{', '.join(map(str, self.positions))}"
            )
        return self.positions.index(at)

    # ------------------------------------------------------------------ for people

    @property
    def title(self) -> str:
        kinds = ", ".join(dict.fromkeys(line.of for line in self.lines))
        return f"Logit lens of {self.source.called}: {kinds}"

    def grids(self) -> list[Grid]:
        """The best token of each cell; with a target, its probability and rank too."""
        if len(self.positions) == 1:
            return []
        if self.target is None:
            return [self._grid(self.title, self.cells())]
        said = f"coloured by the log of the rank of {self.target.shown}"
        title = f"{self.target.shown}: probability and rank"
        return [
            self._grid(f"{self.title}, {said}", self._coloured(self.cells())),
            self._grid(title, self._target_cells()),
        ]

    def _grid(self, title: str, cells: list[list[GridCell]]) -> Grid:
        columns = tuple(f"{at} {clip(self.tokens[at].shown)}" for at in self.positions)
        rows = tuple(map(tuple, cells))
        return Grid(title, "", columns, tuple(self.names), rows)

    def cells(self) -> list[list[GridCell]]:
        """The best token of each cell, coloured by its probability."""
        return [
            [self._cell(i, j) for j in range(len(self.positions))] for i in range(len(self.lines))
        ]

    def _cell(self, i: int, j: int) -> GridCell:
        token, p = int(self.top_ids[i, j, 0]), float(self.top_probs[i, j, 0])
        text = self._label(self.lines[i], token, p, TOKEN_WIDTH)
        more = f"{self._list(i, j)}  entropy {float(self.entropy[i, j]):.2f}"
        return GridCell(text, p, more, self.words[token].shown)

    def _coloured(self, cells: list[list[GridCell]]) -> list[list[GridCell]]:
        """Cells coloured by the target's rank instead."""
        assert self.target_ranks is not None
        lines = zip(cells, self.target_ranks.tolist(), strict=True)
        return [
            [replace(cell, strength=self._strength(1 + n)) for cell, n in zip(*line, strict=True)]
            for line in lines
        ]

    def _target_cells(self) -> list[list[GridCell]]:
        """The target's probability and rank in each cell."""
        assert self.target_probs is not None
        assert self.target_ranks is not None
        places = zip(self.target_probs.tolist(), self.target_ranks.tolist(), strict=True)
        lines = zip(self._coloured(self.cells()), places, strict=True)
        return [
            [
                replace(cell, text=f"{show_percent(p)} #{1 + n:,}")
                for cell, p, n in zip(cells, *own, strict=True)
            ]
            for cells, own in lines
        ]

    def _list(self, i: int, j: int) -> str:
        """The best tokens of a cell in one line."""
        pairs = zip(self.top_ids[i, j].tolist(), self.top_probs[i, j].tolist(), strict=True)
        return "  ".join(self._label(self.lines[i], token, p) for token, p in pairs)

    def _label(self, line: Heading, token: int, p: float, width: int = 1000) -> str:
        """A token with its probability, where there is one worth the name."""
        shown = clip(self.words[token].shown, width)
        return shown if line.reads or p < SLIGHT else f"{shown} {show_percent(p)}"

    def detail(self) -> Table:
        """The last position, line by line."""
        at = self.positions[-1]
        rows: list[tuple[Cell, ...]] = []
        signed = any(line.coefficient is not None for line in self.lines)
        for i, line in enumerate(self.lines):
            sign = (line.coefficient,) if signed else ()
            entropy = float(self.entropy[i, -1])
            rows.append((line.name, *sign, self._list(i, -1), entropy, *self._of_target(i, -1)))
        sign_column = ("coefficient",) if signed else ()
        wanted = () if self.target is None else (f"p({self.target.shown})", "rank")
        columns = ("", *sign_column, "top tokens", "entropy", *wanted)
        word = "after" if self.words.causal else "at"
        title = f"{self.title}, {word} {self.tokens[at].shown} (position {at})"
        return Table(columns, tuple(rows), title, self.note)

    def _of_target(self, line: int, column: int) -> tuple[Cell, ...]:
        if self.target_probs is None or self.target_ranks is None:
            return ()
        return float(self.target_probs[line, column]), 1 + int(self.target_ranks[line, column])

    def _strength(self, rank: int) -> float:
        """How strongly a rank is coloured: on the flow graph's scale, nothing beyond the middle."""
        return max(0.0, standing(rank, self.words.n_rows))

    def tables(self) -> list[Table]:
        return [*(grid.fitting(TEXT_WIDTH).table() for grid in self.grids()), self.detail()]

    def __rich__(self) -> RenderableType:
        return Group(*self.grids(), rich_table(self.detail()))

    def _repr_html_(self) -> str:
        below = html_table(shorten(self.detail()))
        return "\n".join([*(grid.to_html() for grid in self.grids()), below])

    def html_body(self) -> str:
        return "\n".join([*(grid.to_html() for grid in self.grids()), html_table(self.detail())])

    def plot(self) -> Cells:
        """A heat map, lines by positions, coloured by the target's rank or by probability."""
        from lexray.trace.read.plots import heat_map

        colours, meaning = self.top_probs[..., 0].tolist(), "probability"
        if self.target_ranks is not None and self.target is not None:
            colours = [[self._strength(1 + n) for n in line] for line in self.target_ranks.tolist()]
            meaning = f"rank of {self.target.shown}, on a log scale"
        words = tuple(clip(self.tokens[at].shown) for at in self.positions)
        cells = tuple(map(tuple, self.cells()))
        grid = Grid(self.title, "", words, tuple(self.names), cells, self.note)
        return heat_map(grid, self.positions, colours, meaning)

    # ------------------------------------------------------------------ for programs

    def csv_tables(self) -> list[Table]:
        columns = ("line", "of", "layer", "position", "rank", "id", "token", "probability")
        wanted = () if self.target is None else ("target_probability", "target_rank")
        rows: list[tuple[Cell, ...]] = []
        for i, line in enumerate(self.lines):
            for j, at in enumerate(self.positions):
                rest = (float(self.entropy[i, j]), *self._of_target(i, j))
                rows += [
                    (line.name, line.of, line.layer, at, rank, token.id, token.text, p, *rest)
                    for rank, (token, p) in enumerate(self.top(i, at), 1)
                ]
        return [Table((*columns, "entropy", *wanted), tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "tokens": [token.to_dict() for token in self.tokens],
            "positions": list(self.positions),
            "target": None if self.target is None else self.target.to_dict(),
            "note": self.note,
            "lines": [
                {
                    "name": line.name,
                    "of": line.of,
                    "layer": line.layer,
                    "how": line.how,
                    **({} if line.coefficient is None else {"coefficient": line.coefficient}),
                    "cells": [self._describe(i, j) for j in range(len(self.positions))],
                }
                for i, line in enumerate(self.lines)
            ],
        }

    def _describe(self, i: int, j: int) -> dict[str, Any]:
        at = self.positions[j]
        scores = self.top_scores[i, j].tolist()
        top = [
            {"probability": p, **({} if isnan(z) else {"score": z}), "token": token.to_dict()}
            for (token, p), z in zip(self.top(i, at), scores, strict=True)
        ]
        figures = dict(zip(("probability", "rank"), self._of_target(i, j), strict=False))
        wanted = {"target": figures} if figures else {}
        return {"position": at, "entropy": float(self.entropy[i, j]), "top": top, **wanted}
