"""Which heads of a whole model connect some words with some others, without a loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Matrix
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.circuits import Circuit
from lexray.model.head import Head
from lexray.model.layer import Layer
from lexray.model.sweep import MOST_BYTES, multiply
from lexray.progress import track
from lexray.result.pairs import SIDES, Pair
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.vocabulary.filters import FilterLike, read_filter

PAIRS = 5
"""How many pairs are kept of each head."""


@dataclass(frozen=True)
class HeadHit:
    """A head, and how much more it connects the words than it connects any."""

    address: str
    score: float
    """The mean over the words' pairs, in standard deviations of all of the head's entries."""
    pairs: tuple[Pair, ...]
    """The strongest of them."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "score": self.score,
            "pairs": [pair.to_dict() for pair in self.pairs],
        }


@dataclass(frozen=True)
class HeadHits(Result):
    """Heads of a model by what they do for some words, the strongest first."""

    source: Source
    matrix: str
    rows: str
    cols: str
    n_heads: int
    hits: tuple[HeadHit, ...]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[HeadHit]:
        return iter(self.hits)

    def __getitem__(self, index: int) -> HeadHit:
        return self.hits[index]

    def tables(self) -> list[Table]:
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (hit.address, hit.score, "  ".join(f"{p.row.shown} → {p.col.shown}" for p in hit.pairs))
            for hit in self.hits
        )
        row, col = SIDES[self.matrix]
        title = f"Of {self.n_heads} heads, {row} {self.rows} → {col} {self.cols}"
        note = f"{self.source} · scores in standard deviations of the head's own entries"
        columns = ("head", "score", "strongest pairs")
        return [Table(columns, rows, title, note, frozenset({"score"}))]

    def csv_tables(self) -> list[Table]:
        columns = ("address", "score", "rank", "row", "col", "pair_score")
        rows = tuple(
            (hit.address, hit.score, rank, pair.row.text, pair.col.text, pair.score)
            for hit in self.hits
            for rank, pair in enumerate(hit.pairs, 1)
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "matrix": self.matrix,
            "rows": self.rows,
            "cols": self.cols,
            "heads": [hit.to_dict() for hit in self.hits],
        }


@dataclass(frozen=True)
class Heads:
    """All heads of a model: `model.heads`."""

    model: Anatomy

    def __len__(self) -> int:
        return sum(len(layer.every_head) for layer in _layers(self.model))

    def __iter__(self) -> Iterator[Head]:
        for layer in _layers(self.model):
            yield from layer.every_head

    def __getitem__(self, index: int) -> Head:
        n = len(self)
        if not -n <= index < n:
            raise LexrayError(f"there is no head {index}: {self.model.name} has {n} heads")
        return next(islice(iter(self), index % n, None))

    def __repr__(self) -> str:
        return f"<{len(self)} heads of {self.model.name}: .top(rows=[…], cols=[…])>"

    def top(
        self,
        n: int = 10,
        *,
        rows: FilterLike = None,
        cols: FilterLike = None,
        matrix: Matrix = "VO",
        negative: bool = False,
    ) -> HeadHits:
        """The heads that connect these words most, among all entries of each head's own matrix.

        For VO, `rows` are attended to and `cols` written; for QK, `rows` ask and `cols` answer. One
        of them may be left out. `negative` finds heads that push these pairs down.

        >>> model.heads.top(5, rows=[" he", " his", " him"], cols=[" she", " her"])
        """
        return find_heads(self.model, n, rows, cols, matrix, negative=negative)


def find_heads(
    model: Anatomy,
    n: int,
    rows: FilterLike,
    cols: FilterLike,
    matrix: Matrix = "VO",
    *,
    negative: bool = False,
) -> HeadHits:
    """See `Heads.top`."""
    filters = [read_filter(rows), read_filter(cols)]
    if filters == [None, None]:
        raise LexrayError("say for which words: rows=[…], cols=[…], or both")
    if n < 1:
        raise LexrayError(f"asked for the top {n} heads; n must be at least 1")
    space = model.space
    listed = space.list_ids(None)
    every = torch.arange(space.n_rows) if listed is None else listed
    wanted = [_places(every, space.list_ids(f)) for f in filters]
    hits: list[HeadHit] = []
    groups = [heads for layer in _layers(model) for heads in (layer.heads, layer.cross_heads)]
    groups = [heads for heads in groups if len(heads)]
    for heads in track(groups, len(groups), f"searching {matrix} of all heads"):
        for circuit, A, B in _factors([Circuit(head, matrix) for head in heads], len(every)):
            scores = _standardise(A.double(), B.double(), *wanted) * (-1 if negative else 1)
            hits.append(_hit(circuit, scores, every, wanted, negative))
    hits.sort(key=lambda hit: -hit.score)
    row, col = ("any token" if f is None else f.describe() for f in filters)
    if negative:
        hits = [HeadHit(hit.address, -hit.score, hit.pairs) for hit in hits]
    return HeadHits(space.source("heads"), matrix, row, col, len(hits), tuple(hits[:n]))


def _layers(model: Anatomy) -> list[Layer]:
    """Of all stacks, those whose weights no earlier one has."""
    return [layer for stack in model.stacks for layer in stack.own_layers]


def _factors(circuits: list[Circuit], tokens: int) -> Iterator[tuple[Circuit, Tensor, Tensor]]:
    """The factors of a layer's heads, as many together as may be held."""
    at_once = max(1, MOST_BYTES // (8 * tokens * circuits[0].head.d_head))
    for start in range(0, len(circuits), at_once):
        some = circuits[start : start + at_once]
        factors = multiply(some[0], [circuit.head.index for circuit in some], None)
        yield from ((circuit, *factors[circuit.head.index]) for circuit in some)


def _places(every: Tensor, some: Tensor | None) -> Tensor:
    """Where some tokens stand among those of the factors."""
    return torch.arange(len(every)) if some is None else torch.searchsorted(every, some)


def _standardise(
    A: Float[Tensor, "rows r"], B: Float[Tensor, "cols r"], rows: Tensor, cols: Tensor
) -> Float[Tensor, "some others"]:
    """Entries less the mean of all, over their spread; both from r×r moments, never built."""
    mean = A.mean(0) @ B.mean(0)
    square = ((A.T @ A) * (B.T @ B)).sum() / (len(A) * len(B))
    spread = (square - mean**2).clamp(min=0).sqrt().clamp(min=1e-30)
    rows, cols = rows.to(A.device), cols.to(A.device)
    return (A[rows] @ B[cols].T - mean) / spread


def _hit(
    circuit: Circuit, scores: Tensor, every: Tensor, wanted: list[Tensor], negative: bool
) -> HeadHit:
    best = scores.flatten().topk(min(PAIRS, scores.numel()))
    space, sign = circuit.space, -1 if negative else 1
    ids = [every[places] for places in wanted]
    pairs = []
    for value, at in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        i, j = divmod(at, scores.shape[1])
        row, col = (space.token(int(ids[side][k])) for side, k in ((0, i), (1, j)))
        pairs.append(Pair(sign * value, row, col))
    return HeadHit(str(circuit.head.address), float(scores.mean()), tuple(pairs))


@dataclass(frozen=True)
class HeadLookup:
    """Heads that write some words, or (QK) look for them: `model.lookup(words, "heads")`."""

    model: Anatomy
    words: FilterLike

    def top(self, n: int = 10, *, matrix: Matrix = "VO", negative: bool = False) -> HeadHits:
        """The n heads that connect most to these words."""
        return find_heads(self.model, n, None, self.words, matrix, negative=negative)
