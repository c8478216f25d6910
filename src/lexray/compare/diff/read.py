"""The second pass of a comparison: what moved farthest, as words, the most telling first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import log, sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.compare.diff.changes import Change
from lexray.compare.diff.heads import HeadChanges, read_pairs
from lexray.compare.diff.ledger import Candidate, Ledger
from lexray.compare.diff.pair import Two
from lexray.compare.diff.stacks import CIRCUITS, DiffGroup, Stack, layer_stacks
from lexray.compare.diff.words import FLOOR, readable
from lexray.model.model import Model
from lexray.progress import track
from lexray.result.readings import Scored
from lexray.space.kinds import Kind
from lexray.space.legibility import WINDOW
from lexray.space.space import space_of
from lexray.space.topk.vectors import TopVectors
from lexray.vocabulary.filters import Filter

AT_ONCE = 64
"""Vectors read at a time."""


@dataclass(frozen=True)
class _Read:
    """A candidate that was read; what a person sees of it is made if it is listed."""

    candidate: Candidate
    telling: float
    legibility: float
    ends: Callable[[], dict[str, Any]]


class Reader:
    """Reads candidates as words and puts them in order."""

    def __init__(
        self, two: Two, ledger: Ledger, reader: Model, k: int, filter: Filter | None
    ) -> None:
        self.two, self.ledger, self.reader = two, ledger, reader
        self.k, self.filter = k, filter
        self._found: dict[int, dict[str, tuple[Stack, Stack]]] = {}
        space = reader.space
        ids = space.list_ids(filter)
        self._peak = sqrt(2 * log(max(2, space.n_rows if ids is None else len(ids))))

    def changes(self, n: int, each: int) -> list[Change]:
        """The n most telling, and some of each group."""
        read: list[_Read] = []
        names = list(self.ledger.best)
        for group in track(names, len(names), "reading what moved"):
            candidates = self.ledger.candidates(group)
            read += (
                self._circuits(group, candidates)
                if group in CIRCUITS
                else self._vectors(candidates)
            )
        read.sort(key=lambda one: (-one.telling, one.candidate.address))
        chosen = set(range(min(n, len(read))))
        for group in names:
            chosen |= set([i for i, x in enumerate(read) if x.candidate.group == group][:each])
        return [self._change(read[i]) for i in sorted(chosen)]

    def _telling(self, candidate: Candidate, peak: float, reads: float) -> float:
        usual = 1.0 if candidate.new else self.ledger.median(candidate.group)
        size = sqrt(min(1.0, candidate.share) * candidate.share / (usual or 1.0))
        return size * peak / self._peak * (FLOOR + reads)

    def _vectors(self, candidates: list[Candidate]) -> Iterator[_Read]:
        """Those of the first layer apart, which reads other embeddings than the rest."""
        alike = {(c.kind, c.layer == 0) for c in candidates}
        for kind, first in sorted(alike, key=str):
            same = [c for c in candidates if (c.kind, c.layer == 0) == (kind, first)]
            for start in range(0, len(same), AT_ONCE):
                yield from self._block(same[start : start + AT_ONCE], kind)

    def _block(self, block: list[Candidate], kind: Kind | None) -> Iterator[_Read]:
        """Some vectors of one kind that are read in one space."""
        X = torch.stack([c.vector for c in block if c.vector is not None]).to(self.reader.device)
        space = space_of(self.reader, block[0].layer)
        ids = space.list_ids(self.filter)
        if kind is None:  # a bias of the logits: its entries are scores already
            scores = X if ids is None else X[:, ids.to(X.device)]
            best = _both_ends(scores, max(self.k, WINDOW), ids)
        else:
            whole = space.whole(kind)
            scores, best = whole.project(X), whole.top(X, max(self.k, WINDOW), ids)
            scores = scores if ids is None else scores[:, ids.to(scores.device)]
        mean, deviation = scores.mean(1), scores.std(1, unbiased=False).clamp(min=1e-30)
        most = torch.maximum(scores.amax(1) - mean, mean - scores.amin(1))
        peaks = (most / deviation).tolist()
        ends = best.top_ids, best.bottom_ids
        legible = torch.stack([space.legibility(ids, kind) for ids in ends]).amax(0).tolist()
        reads = torch.stack([readable(space, ids, kind) for ids in ends]).amax(0).tolist()
        for i, candidate in enumerate(block):
            telling = self._telling(candidate, peaks[i], reads[i])
            yield _Read(candidate, telling, legible[i], partial(self._tokens, best, i))

    def _tokens(self, best: TopVectors, i: int) -> dict[str, Any]:
        token = self.reader.space.token
        return {
            end: tuple(
                Scored(token(t), value)
                for t, value in zip(
                    ids[i, : self.k].tolist(), values[i, : self.k].tolist(), strict=True
                )
            )
            for end, ids, values in (
                ("top", best.top_ids, best.top_values),
                ("bottom", best.bottom_ids, best.bottom_values),
            )
        }

    def _circuits(self, group: DiffGroup, candidates: list[Candidate]) -> Iterator[_Read]:
        for candidate in track(candidates, len(candidates), f"reading {group} of heads"):
            assert candidate.layer is not None
            circuit = self.two.base[candidate.address]
            stacks = self._stacks(candidate.layer)
            heads = HeadChanges(self.two, candidate.layer, stacks)
            moved = heads.measure(circuit.head.index, circuit.matrix)
            assert moved is not None
            pairs = read_pairs(self.two, self.reader, moved, circuit, self.k, self.filter)
            telling = self._telling(candidate, sqrt(pairs.peak), pairs.reads)
            ends = {"pairs": pairs.top, "bottom_pairs": pairs.bottom}
            yield _Read(candidate, telling, pairs.legibility, partial(dict, ends))

    def _stacks(self, layer: int) -> dict[str, tuple[Stack, Stack]]:
        """Where the parts of a layer are, in both models: found once, nothing is read."""
        if layer not in self._found:
            stacks = [layer_stacks(model, layer) for model in (self.two.base, self.two.tuned)]
            self._found[layer] = {b.name: (b, t) for b, t in self.two.match(*stacks)}
        return self._found[layer]

    def _change(self, read: _Read) -> Change:
        candidate = read.candidate
        token = candidate.token
        return Change(
            candidate.address,
            candidate.group,
            candidate.layer,
            candidate.absolute,
            candidate.relative,
            read.telling,
            read.legibility,
            token=None if token is None else self.two.base.space.token(token),
            label=candidate.label,
            **read.ends(),
        )


def _both_ends(scores: Float[Tensor, "n e"], k: int, ids: Int[Tensor, "e"] | None) -> TopVectors:
    """The k largest and smallest of each row, with token ids."""
    ends = []
    for descending in (True, False):
        order = scores.argsort(dim=1, descending=descending, stable=True)[:, :k]
        ends += [scores.gather(1, order), order if ids is None else ids.to(order.device)[order]]
    return TopVectors(*ends)
