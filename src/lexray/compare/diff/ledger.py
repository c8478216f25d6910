"""The book-keeping of a comparison: sizes are summed up, and the farthest moved are kept.

Only a few vectors per group are held, whatever the model's size; lengths of all that moved are
kept as plain numbers, so that a vector can be measured against the rest of its group.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.compare.diff.changes import Size
from lexray.compare.diff.pair import Delta
from lexray.compare.diff.stacks import DiffGroup, Stack
from lexray.space.kinds import Kind

FLOOR = 0.1
"""Groups that were (nearly) zero before are measured against this share of what is usual in
their layer: noise on zero biases is no great change."""


@dataclass(frozen=True)
class Candidate:
    """Something that moved far for its group, to be read in the end."""

    address: str
    group: DiffGroup
    layer: int | None
    kind: Kind | None
    absolute: float
    before: float
    share: float
    """Its movement over the usual length before in its group and layer."""
    vector: Float[Tensor, "width"] | None = None
    """The difference; heads are read again when it is their turn."""
    old: Float[Tensor, "width"] | None = None
    token: int | None = None
    label: str = ""
    new: bool = False
    own: float = 1.0
    """The share of its movement that is not what its whole stack did."""

    @property
    def relative(self) -> float | None:
        return self.absolute / self.before if self.before > 0 and not self.new else None


@dataclass
class _Sum:
    moved: float = 0.0
    before: float = 0.0
    n_moved: int = 0
    n: int = 0
    new: bool = False


@dataclass
class Ledger:
    """What was measured so far."""

    keep: int
    """How many candidates to hold per group."""
    keep_circuits: int
    best: dict[DiffGroup, list[tuple[float, int, Candidate]]] = field(default_factory=dict)
    common: dict[DiffGroup, Candidate] = field(default_factory=dict)
    """What the rows of an embedding did in common."""
    shares: dict[DiffGroup, list[Tensor]] = field(default_factory=dict)
    _sums: dict[tuple[int | None, DiffGroup], _Sum] = field(default_factory=dict)
    _waiting: list[tuple[float, list[Candidate], Tensor]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def add_unmoved(self, stack: Stack, n: int = 0) -> None:
        self._sum(stack.layer, stack.group).n += n

    def add(self, stack: Stack, delta: Delta, tokens: Tensor | None = None) -> None:
        """Takes note of a stack that moved, or of some of its rows (whose `tokens` they are)."""
        lengths = delta.before.norm(dim=1)
        moved = delta.sizes
        self._count(stack.layer, stack.group, moved, lengths)
        if stack.kind is None and stack.name != "b_U":
            return
        best = moved.topk(min(self.keep, int((moved > 0).sum()))).indices
        rows, old = delta.rows(best), delta.before[best]
        delta.let_go()
        candidates = [
            Candidate(
                stack.address(i if tokens is None else int(tokens[i])),
                stack.group,
                stack.layer,
                stack.kind,
                float(moved[i]),
                float(lengths[i]),
                0.0,
                rows[j],
                old[j],
                None if tokens is None else int(tokens[i]),
            )
            for j, i in enumerate(best.tolist())
        ]
        self._wait(lengths, candidates, moved)

    def set_apart(
        self, stack: Stack, direction: Float[Tensor, "width"], along: Float[Tensor, "e"]
    ) -> None:
        """What the rows of an embedding did in common becomes a change by itself, and is taken out
        of those of single tokens.

        Training moves the output rows of all tokens that do not come against what predicts, along
        one direction: it says nothing of a token that its row did so too. How far each went along
        it says which tokens are predicted more, and which less, whatever stands before.
        """
        for i, (typical, candidates, moved) in enumerate(self._waiting):
            if candidates[0].group == stack.group and candidates[0].kind == stack.kind:
                rest = [_less(candidate, direction) for candidate in candidates]
                self._waiting[i] = (typical, rest, moved)
        usual = next(x for x, candidates, _ in self._waiting if candidates[0].group == stack.group)
        size, before = float(along.norm()), usual * sqrt(len(along))
        share = size / (usual or 1.0)
        self.common[stack.group] = Candidate(
            stack.name, stack.group, None, None, size, before, share, -along
        )

    def add_circuits(
        self, group: DiffGroup, layer: int, heads: dict[str, tuple[float, float]], n: int
    ) -> None:
        """Takes note of the heads of a layer whose matrix moved: address → (moved, before)."""
        total = self._sum(layer, group)
        total.n += n - len(heads)
        if not heads:
            return
        moved = torch.tensor([m for m, _ in heads.values()])
        lengths = torch.tensor([b for _, b in heads.values()])
        self._count(layer, group, moved, lengths)
        candidates = [
            Candidate(address, group, layer, None, m, b, 0.0) for address, (m, b) in heads.items()
        ]
        self._wait(lengths, candidates, moved)

    def add_new(self, candidates: Iterable[Candidate]) -> None:
        """Rows that the base lacks: as if they had moved by all of their length."""
        for candidate in candidates:
            total = self._sum(candidate.layer, candidate.group)
            total.moved += candidate.absolute**2
            total.n, total.n_moved, total.new = total.n + 1, total.n_moved + 1, True
            self._push(candidate)

    def close(self) -> None:
        """Ends a layer: now it is known what is usual in it."""
        usual = [typical for typical, _, _ in self._waiting if typical > 0]
        floor = FLOOR * float(torch.tensor(usual).median()) if usual else 0.0
        for typical, candidates, moved in self._waiting:
            scale = max(typical, floor) or 1.0
            group = candidates[0].group
            self.shares.setdefault(group, []).append(moved[moved > 0].cpu() / scale)
            for candidate in candidates:
                self._push(_with_share(candidate, candidate.own * candidate.absolute / scale))
        self._waiting = []

    def sizes(self) -> tuple[Size, ...]:
        return tuple(
            Size(
                layer,
                group,
                sqrt(x.moved),
                None if x.new or (x.n_moved and not x.before) else sqrt(x.moved / (x.before or 1)),
                x.n_moved,
                x.n,
            )
            for (layer, group), x in self._sums.items()
        )

    def median(self, group: DiffGroup) -> float:
        """What is usual among those of the group that moved, as a share."""
        shares = self.shares.get(group)
        return float(torch.cat(shares).median()) if shares else 1.0

    def candidates(self, group: DiffGroup) -> list[Candidate]:
        """What all did in common, then the farthest moved."""
        best = sorted(self.best.get(group, []), key=lambda x: (-x[0], -x[1]))
        common = [self.common[group]] if group in self.common else []
        return common + [item[2] for item in best]

    def _sum(self, layer: int | None, group: DiffGroup) -> _Sum:
        return self._sums.setdefault((layer, group), _Sum())

    def _count(self, layer: int | None, group: DiffGroup, moved: Tensor, lengths: Tensor) -> None:
        total = self._sum(layer, group)
        total.moved += float(moved.square().sum())
        total.before += float(lengths.square().sum())
        total.n_moved += int((moved > 0).sum())
        total.n += len(moved)

    def _wait(self, lengths: Tensor, candidates: list[Candidate], moved: Tensor) -> None:
        if candidates:
            self._waiting.append((float(lengths.square().mean().sqrt()), candidates, moved))

    def _push(self, candidate: Candidate) -> None:
        heap = self.best.setdefault(candidate.group, [])
        keep = self.keep_circuits if candidate.group in ("VO", "QK") else self.keep
        order = -next(self._order)
        if len(heap) == keep and (candidate.share, order) < heap[0][:2]:
            return
        item = (candidate.share, order, _alone(candidate))
        if len(heap) < keep:
            heapq.heappush(heap, item)
        else:
            heapq.heappushpop(heap, item)


def _alone(candidate: Candidate) -> Candidate:
    """With vectors of its own: those of its whole stack are not kept for it."""
    vector, old = (None if x is None else x.clone() for x in (candidate.vector, candidate.old))
    return replace(candidate, vector=vector, old=old)


def _with_share(candidate: Candidate, share: float) -> Candidate:
    return replace(candidate, share=share)


def _less(candidate: Candidate, direction: Float[Tensor, "width"]) -> Candidate:
    """A change without its part along a direction."""
    assert candidate.vector is not None
    vector = candidate.vector - (candidate.vector @ direction) * direction
    own = float(vector.norm()) / (candidate.absolute or 1.0)
    return replace(candidate, vector=vector, own=min(1.0, own))
