"""Which neurons hold a relation: the key or gate reads its sources, the value writes its targets.

A neuron is one direction in and one out, so it cannot tell the pairs of a relation apart, only hold
its two lists of words. For each list, its mean score (standardised along the neuron's own list, as
a lookup does) is compared with that of as many random words out of all relations that come along:
their mean and variance are exact, over all such sets. A neuron holds a relation as well as the
weaker of its two sides does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from lexray.errors import LexrayError
from lexray.find.hits import read_at
from lexray.find.prominence import Prominence, prominence
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import FeedForward
from lexray.model.fold import at_least_float32
from lexray.model.vectors import VectorGroup
from lexray.progress import track
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.roles.chance import normal_tail, q_values
from lexray.roles.relation import Given, Relation, load_shipped, relations_of
from lexray.roles.scores import SIGNS, say_names
from lexray.roles.tokens import TokenPairs, tasks_of
from lexray.space.kinds import Kind
from lexray.space.space import EmbeddingSpace
from lexray.space.topk.arithmetic import full_precision

KEPT = 20
"""Neurons that are kept for each relation and sign."""


@dataclass(frozen=True)
class NeuronScore:
    """A neuron and a relation, in standard deviations of random words."""

    address: str
    relation: Relation
    sign: int
    """1: its value writes the targets; −1: it suppresses them."""
    reads: float
    writes: float
    q: float
    reads_tokens: tuple[str, ...] = ()
    writes_tokens: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The weaker side's."""
        return min(self.reads, self.writes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "relation": self.relation.name,
            "sign": SIGNS[self.sign],
            "score": self.score,
            "reads": self.reads,
            "writes": self.writes,
            "q": self.q,
            "reads_tokens": list(self.reads_tokens),
            "writes_tokens": list(self.writes_tokens),
        }


@dataclass(frozen=True)
class NeuronRelations(Result):
    """The neurons that hold each relation best."""

    source: Source
    scores: tuple[NeuronScore, ...]
    tested: int
    """How many neurons."""
    shown: int = 3

    def best(self, relation: str, n: int = 5, sign: int | None = None) -> list[NeuronScore]:
        """The neurons that hold a relation best, both signs or one."""
        scores = [
            score
            for score in self.scores
            if relation in (score.relation.name, score.relation.title)
            and sign in (None, score.sign)
        ]
        return sorted(scores, key=lambda score: -score.score)[:n]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(score.relation.name for score in self.scores))

    def tables(self) -> list[Table]:
        columns = ("relation", "neuron", "", "score", "q", "reads", "writes ")
        shown = 10 if len(self.names) <= 2 else self.shown
        rows = [
            (
                score.relation.name,
                score.address,
                SIGNS[score.sign],
                score.score,
                score.q,
                " ".join(score.reads_tokens),
                " ".join(score.writes_tokens),
            )
            for name in self.names
            for score in self.best(name, shown)
        ]
        title = f"The best neurons of {self.source.called} for {say_names(self.names)}"
        note = f"{self.source} · {self.tested:,} neurons; in standard deviations of random words"
        return [Table(columns, tuple(rows), title, note, frozenset({"score"}))]

    def csv_tables(self) -> list[Table]:
        columns = ("relation", "address", "sign", "score", "reads", "writes", "q")
        rows: list[tuple[Cell, ...]] = [
            (s.relation.name, s.address, SIGNS[s.sign], s.score, s.reads, s.writes, s.q)
            for s in self.scores
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        scores = [score.to_dict() for score in self.scores]
        return {**self.source.to_dict(), "neurons": self.tested, "scores": scores}


def neuron_relations(
    model: Anatomy, which: Given | Sequence[Given] | None = None
) -> NeuronRelations:
    """Every neuron against some relations, or all that come along."""
    tasks = [task for task in tasks_of(model, relations_of(which)) if task.whole]
    if not tasks:
        raise LexrayError(
            f"the vocabulary of {model.name} has no two pairs of whole words of these"
        )
    every = tasks_of(model, tuple(load_shipped().values()))
    others = [task for task in every if task.whole]
    pool = sorted({i for task in (*tasks, *others) for i in (*task.sources, *task.targets)})
    words = _Words(tasks, torch.tensor(pool))
    units = [ff for layer in model.layers for ff in layer.feed_forwards]
    reads, writes = [], []
    for ff in track(units, len(units), "relations of all neurons"):
        reads.append(words.sides(ff, reading=True))
        writes.append(words.sides(ff, reading=False))
    return _collect(model, tasks, units, torch.cat(reads), torch.cat(writes))


@dataclass(frozen=True)
class _Words:
    tasks: Sequence[TokenPairs]
    pool: Int[Tensor, "pool"]

    def sides(self, ff: FeedForward, *, reading: bool) -> Float[Tensor, "d_mlp tasks"]:
        """Each neuron's z for the sources or the targets of each task."""
        group = _reader(ff) if reading else ff.values
        scores = _scores(
            prominence(group.space.with_view(standardised=True), group.kind), self.pool, group
        )
        mean, spread = scores.mean(1), scores.std(1, unbiased=True).clamp(min=1e-12)
        where = {int(i): n for n, i in enumerate(self.pool)}
        sides = []
        for task in self.tasks:
            ids = dict.fromkeys(task.sources if reading else task.targets)
            at = torch.tensor([where[i] for i in ids])
            left = 1 - len(at) / max(len(self.pool), len(at) + 1)
            error = spread * sqrt(left / len(at))
            sides.append((scores[:, at].mean(1) - mean) / error)
        return torch.stack(sides, 1)


def _reader(ff: FeedForward) -> VectorGroup:
    """What decides whether a neuron is on: its gate, or its key where there is none."""
    return ff.keys if ff.spec.w_gate is None else ff.gates


def _scores(
    prominence: Prominence, ids: Int[Tensor, "pool"], group: VectorGroup
) -> Float[Tensor, "n pool"]:
    """Every vector's score for every word, standardised along its own list."""
    kind: Kind = group.kind
    space: EmbeddingSpace = prominence.space
    Y = at_least_float32(space.shift(group.tensor, kind))
    words = torch.cat(list(space.whole(kind).only(ids).columns())) - prominence.centre.to(Y)
    with full_precision():
        spread = prominence.chart.sizes(Y)[:, :1].clamp(min=1e-30) / sqrt(prominence.n_tokens)
        return (Y @ words.to(Y).T / spread).cpu()


def _collect(
    model: Anatomy,
    tasks: Sequence[TokenPairs],
    units: Sequence[FeedForward],
    reads: Float[Tensor, "n tasks"],
    writes: Float[Tensor, "n tasks"],
) -> NeuronRelations:
    signed = torch.stack([writes, -writes])
    weaker = torch.minimum(reads, signed)
    q: NDArray[np.float64] = q_values(normal_tail(weaker))
    chosen: list[tuple[int, int, int]] = []
    for t in range(len(tasks)):
        for s in range(2):
            best = weaker[s, :, t].topk(min(KEPT, len(reads))).indices.tolist()
            chosen += [(s, i, t) for i in best]
    places = sorted({i for _, i, _ in chosen})
    seen, said = _tokens(units, places, True), _tokens(units, places, False)
    scores = tuple(
        NeuronScore(
            said[i][0],
            tasks[t].relation,
            1 if s == 0 else -1,
            float(reads[i, t]),
            float(signed[s, i, t]),
            float(q[s, i, t]),
            seen[i][1],
            said[i][1] if s == 0 else said[i][2],
        )
        for s, i, t in chosen
    )
    return NeuronRelations(model.space.source(""), scores, len(reads))


def _tokens(
    units: Sequence[FeedForward], places: Sequence[int], reading: bool
) -> dict[int, tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Each neuron's address, and the top and the bottom of its list."""
    groups = [_reader(ff) if reading else ff.values for ff in units]
    read = read_at(groups, places, 6)
    return {
        place: (
            reading_.source.address.rpartition(".")[0],
            tuple(reading_.tokens),
            tuple(scored.token.shown for scored in reading_.bottom),
        )
        for place, (reading_, _) in zip(places, read, strict=True)
    }
