"""The second pass of a comparison: what moved farthest, as words, the most telling first."""

from __future__ import annotations

from collections.abc import Iterator
from math import log, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.compare.diff_heads import HeadChanges, read_pairs
from lexray.compare.diff_ledger import Candidate, Ledger
from lexray.compare.diff_pair import Two
from lexray.compare.diff_places import CIRCUITS, Group, layer_places
from lexray.compare.diff_result import Change
from lexray.filters import Filter
from lexray.model import Model
from lexray.progress import track

AT_ONCE = 64
"""Vectors read at a time."""


class Reader:
    """Reads candidates as words and puts them in order."""

    def __init__(
        self, two: Two, ledger: Ledger, reader: Model, k: int, filter: Filter | None
    ) -> None:
        self.two, self.ledger, self.reader = two, ledger, reader
        self.k, self.filter = k, filter
        space = reader.space
        ids = space.admitted(filter)
        self._peak = sqrt(2 * log(max(2, space.n_rows if ids is None else len(ids))))

    def changes(self, n: int, each: int) -> list[Change]:
        """The n most telling, and some of each group."""
        read: list[Change] = []
        names = list(self.ledger.best)
        for group in track(names, len(names), "reading what moved"):
            found = self.ledger.candidates(group)
            read += self._circuits(group, found) if group in CIRCUITS else self._vectors(found)
        read.sort(key=lambda change: (-change.telling, change.address))
        chosen = set(range(min(n, len(read))))
        for group in names:
            chosen |= set([i for i, c in enumerate(read) if c.group == group][:each])
        return [read[i] for i in sorted(chosen)]

    def _telling(self, candidate: Candidate, peak: float, legibility: float) -> float:
        usual = 1.0 if candidate.new else self.ledger.median(candidate.group)
        size = sqrt(min(1.0, candidate.share) * candidate.share / (usual or 1.0))
        return size * peak / self._peak * (1 + max(0.0, legibility))

    def _vectors(self, candidates: list[Candidate]) -> Iterator[Change]:
        kinds = {c.kind for c in candidates}
        for kind in sorted(kinds, key=str):
            same = [c for c in candidates if c.kind == kind]
            for start in range(0, len(same), AT_ONCE):
                yield from self._block(same[start : start + AT_ONCE])

    def _block(self, block: list[Candidate]) -> Iterator[Change]:
        """Some vectors of one kind."""
        space, kind = self.reader.space, block[0].kind
        vectors = [c.vector for c in block if c.vector is not None]
        if kind is None:
            for candidate, vector in zip(block, vectors, strict=True):
                yield self._of_tokens(candidate, vector)
            return
        X = torch.stack(vectors).to(self.reader.device)
        addresses = [c.address for c in block]
        readings = space.readings(X, kind, addresses, self.k, self.filter)
        spread = _spread(space.side(kind, self.filter).project(X))
        ids = torch.tensor([[s.token.id for s in reading.bottom] for reading in readings])
        lower = space.legibility(ids).tolist()
        for candidate, reading, other, (mean, deviation) in zip(
            block, readings, lower, spread, strict=True
        ):
            ends = (reading.top[0].score - mean, mean - reading.bottom[0].score)
            legible = max(reading.legibility, other)
            telling = self._telling(candidate, max(ends) / (deviation or 1.0), legible)
            yield self._change(candidate, telling, legible, top=reading.top, bottom=reading.bottom)

    def _of_tokens(self, candidate: Candidate, vector: Float[Tensor, "e"]) -> Change:
        """A bias of the logits: its entries are tokens already."""
        space = self.reader.space
        ids = space.admitted(self.filter)
        scores = vector if ids is None else vector[ids.to(vector.device)]
        top, bottom, legible = space.scored(scores, self.k, ids)
        ((mean, deviation),) = _spread(scores[None])
        peak = max(top[0].score - mean, mean - bottom[0].score) / (deviation or 1.0)
        telling = self._telling(candidate, peak, legible)
        return self._change(candidate, telling, legible, top=top, bottom=bottom)

    def _circuits(self, group: Group, candidates: list[Candidate]) -> Iterator[Change]:
        for candidate in track(candidates, len(candidates), f"reading {group} of heads"):
            assert candidate.layer is not None
            layer = candidate.layer
            places = [layer_places(model, layer) for model in (self.two.base, self.two.tuned)]
            pairs = {b.name: (b, t) for b, t in self.two.matched(*places)}
            circuit = self.two.base[candidate.address]
            moved = HeadChanges(self.two, layer, pairs).moved(circuit.head.index, circuit.matrix)
            assert moved is not None
            found = read_pairs(self.two, self.reader, moved, circuit, self.k, self.filter)
            telling = self._telling(candidate, sqrt(found.peak), found.legibility)
            yield self._change(
                candidate, telling, found.legibility, pairs=found.top, bottom_pairs=found.bottom
            )

    def _change(
        self, candidate: Candidate, telling: float, legibility: float, **ends: Any
    ) -> Change:
        token = candidate.token
        return Change(
            candidate.address,
            candidate.group,
            candidate.layer,
            candidate.absolute,
            candidate.relative,
            telling,
            legibility,
            token=None if token is None else self.two.base.space.token(token),
            label=candidate.label,
            **ends,
        )


def _spread(scores: Float[Tensor, "n e"]) -> list[tuple[float, float]]:
    """Each row's mean and standard deviation."""
    mean, deviation = scores.mean(1), scores.std(1, unbiased=False)
    return list(zip(mean.tolist(), deviation.tolist(), strict=True))
