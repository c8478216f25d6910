"""Which targets are among the best of which source's row of VO: all heads, one pass.

A head's row for a source token s is a_s Bᵀ over all e tokens, and a target is hit if fewer than k
of them score higher. Nobody needs the row for that: most targets are already beaten by k tokens of
a small screen: the columns that score highest for these sources on average (in mean square, from
r×r matrices), or for few sources, where B itself would cost most, every n-th token. Only the rows
in which a target gets past the screen are multiplied whole. The answer is that of the dense matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.address import Address
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.roles.tokens import TokenPairs
from lexray.space.side import Side
from lexray.space.topk.arithmetic import full_precision

SCREEN = 1024
FACTOR_AT_ONCE = 2**26
"""Elements of the factors B of several heads that exist at once."""
ROWS_AT_ONCE = 256
FEW = 4
"""Fewer sources than so many times a head's width are projected one by one."""
MARGIN = 1e-4
"""How much rounding may move a score, as a share of the row's largest."""


@dataclass(frozen=True)
class PairHits:
    """One head, one task, one sign: the places (source, target of which pair) that are hit."""

    rows: Int[Tensor, "hits"]
    cols: Int[Tensor, "hits"]
    right: Bool[Tensor, "pairs"]
    """Whether each source finds its own target."""


@dataclass(frozen=True)
class Board:
    """All tasks side by side: their sources as rows, their targets as columns."""

    tasks: tuple[TokenPairs, ...]
    sources: Int[Tensor, "rows"]
    targets: Int[Tensor, "rows"]
    task_of: Int[Tensor, "rows"]
    k: Int[Tensor, "rows"]
    starts: tuple[int, ...]

    @classmethod
    def of(cls, tasks: Sequence[TokenPairs]) -> Board:
        sizes = [len(task) for task in tasks]
        starts = tuple(sum(sizes[:i]) for i in range(len(sizes)))
        return cls(
            tuple(tasks),
            torch.tensor([i for task in tasks for i in task.sources]),
            torch.tensor([i for task in tasks for i in task.targets]),
            torch.repeat_interleave(torch.arange(len(tasks)), torch.tensor(sizes)),
            torch.tensor([task.relation.k for task in tasks for _ in task.sources]),
            starts,
        )


HeadHits = dict[tuple[int, int], PairHits]
"""By task and sign (1, −1)."""


@dataclass(frozen=True, eq=False)
class HeadRows:
    """One head: its sources and targets, the screen, and how rows are multiplied whole."""

    A: Float[Tensor, "rows r"]
    T: Float[Tensor, "rows r"]
    places: Int[Tensor, "rows"]
    screen: Float[Tensor, "some r"]
    multiply: Callable[[Tensor], Tensor]

    def whole(self, rows: Int[Tensor, "some"]) -> tuple[Tensor, Tensor]:
        """Some rows' scores for all tokens, and for all targets, which are the same numbers."""
        scores = self.multiply(self.A[rows])
        own = self.A[rows] @ self.T.T
        listed = self.places >= 0
        at = listed.to(own.device)
        own[:, at] = scores[:, self.places[listed].to(scores.device)]
        return scores, own


def all_hits(
    model: Anatomy, tasks: Sequence[TokenPairs], only: Address | None = None
) -> Iterator[tuple[Head, HeadHits]]:
    """Every head (or one) with what it hits; layer by layer, so that nothing large is kept."""
    board = Board.of(tasks)
    for heads in _head_groups(model, only):
        read, space = heads[0].vo.space_of("V"), heads[0].vo.space
        sides = Sides(
            read.whole("V").only(board.sources),
            space.side("O"),
            space.whole("O").only(board.targets),
            _places(space.side("O"), board.targets),
        )
        few = len(board.sources) < FEW * heads[0].d_head
        at_once = max(1, FACTOR_AT_ONCE // max(1, len(sides.cols.rows) * heads[0].d_head))
        for start in range(0, len(heads), at_once):
            some = heads[start : start + at_once]
            made = sides.few_rows(some) if few else sides.many_rows(some)
            for head, rows in zip(some, made, strict=True):
                yield head, _hits(board, rows)


def _head_groups(model: Anatomy, only: Address | None) -> Iterator[list[Head]]:
    """Heads that are read alike: those of a layer, those of its cross-attention."""
    for layer in [layer for stack in model.stacks for layer in stack.own_layers]:
        for group in (layer.heads, layer.cross_heads):
            if heads := [head for head in group if only in (None, head.address)]:
                yield heads


@dataclass(frozen=True, eq=False)
class Sides:
    """What all heads of a layer share: the sources, all tokens, the targets and their places."""

    rows: Side
    cols: Side
    targets: Side
    places: Int[Tensor, "rows"]

    def many_rows(self, heads: Sequence[Head]) -> Iterator[HeadRows]:
        """For many sources: B whole, for several heads in one product, and the best screen."""
        W_O = [at_least_float32(head.W_O) for head in heads]
        parts = zip(
            self._sources(heads), _split(self.cols, W_O), _split(self.targets, W_O), strict=True
        )
        for A, B, T in parts:
            screen = B if len(B) <= SCREEN else loudest(A, B)
            yield HeadRows(A, T, self.places, screen, partial(_product, B))

    def few_rows(self, heads: Sequence[Head]) -> Iterator[HeadRows]:
        """For few: every n-th token is the screen, and what passes it is projected by itself."""
        W_O = [at_least_float32(head.W_O) for head in heads]
        step = max(1, len(self.cols.rows) // SCREEN)
        sample = self.cols.only(torch.arange(0, len(self.cols.rows), step))
        parts = zip(
            self._sources(heads), _split(sample, W_O), _split(self.targets, W_O), W_O, strict=True
        )
        for A, screen, T, W in parts:
            yield HeadRows(A, T, self.places, screen, partial(_project_rows, self.cols, W))

    def _sources(self, heads: Sequence[Head]) -> list[Float[Tensor, "rows r"]]:
        return _split(self.rows, [at_least_float32(head.W_V).T for head in heads])


def _split(side: Side, matrices: Sequence[Float[Tensor, "_ d_model"]]) -> list[Tensor]:
    """columnsᵀ Wᵀ for several matrices, in one product."""
    whole = side.factor(torch.cat(list(matrices)).T)
    return [part.contiguous() for part in torch.split(whole, [len(W) for W in matrices], 1)]


def _product(B: Float[Tensor, "e r"], A: Float[Tensor, "some r"]) -> Float[Tensor, "some e"]:
    return A @ B.T


def _project_rows(
    cols: Side, W_O: Float[Tensor, "r d_model"], A: Float[Tensor, "some r"]
) -> Float[Tensor, "some e"]:
    return cols.project(A @ W_O.to(A))


def loudest(A: Float[Tensor, "rows r"], B: Float[Tensor, "e r"]) -> Float[Tensor, "some r"]:
    """The columns with the largest scores for these rows, in mean square."""
    gram = A.double().T @ A.double()
    weights, basis = torch.linalg.eigh(gram)
    root = (basis * weights.clamp(min=0).sqrt()).to(B)
    return B[(B @ root).square().sum(1).topk(SCREEN, sorted=False).indices]


def _places(cols: Side, targets: Int[Tensor, "rows"]) -> Int[Tensor, "rows"]:
    """Where each target is among the columns; −1 for those that lists leave out."""
    if cols.ids is None:
        return targets
    where = torch.full((int(max(cols.ids.max(), targets.max())) + 1,), -1)
    where[cols.ids.cpu()] = torch.arange(len(cols.ids))
    return where[targets]


def _hits(board: Board, rows: HeadRows) -> HeadHits:
    device = rows.A.device
    k, task_of = board.k.to(device), board.task_of.to(device)
    ours = task_of[:, None] == task_of[None]
    with full_precision():
        small = rows.A @ rows.screen.T
        targets = rows.A @ rows.T.T
        room = MARGIN * torch.maximum(small.abs().amax(1), targets.abs().amax(1))
        by_sign: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for sign in (1, -1):
            beaten = _kth(sign * small, k) - room
            open_rows = ((sign * targets >= beaten[:, None]) & ours).any(1).nonzero()[:, 0]
            by_sign[sign] = [
                _decide(rows, part, k[part], ours, sign)
                for part in torch.split(open_rows, ROWS_AT_ONCE)
            ]
    return {
        (task, sign): hits
        for sign, parts in by_sign.items()
        for task, hits in enumerate(_by_task(board, parts))
    }


def _kth(scores: Float[Tensor, "rows n"], k: Int[Tensor, "rows"]) -> Float[Tensor, "rows"]:
    """Each row's k-th largest; −∞ where there are fewer."""
    most = min(int(k.max()), scores.shape[1]) if len(k) else 0
    if not most:
        return torch.full((len(scores),), -torch.inf, device=scores.device)
    best = scores.topk(most, dim=1).values
    last = best.gather(1, (k.clamp(max=most) - 1)[:, None])[:, 0]
    return torch.where(k <= most, last, -torch.inf)


def _decide(
    rows: HeadRows, some: Int[Tensor, "some"], k: Tensor, ours: Bool[Tensor, "rows rows"], sign: int
) -> tuple[Int[Tensor, "hits"], Int[Tensor, "hits"]]:
    """Of some rows, from all of their scores: which targets of their own task are hit."""
    scores, own = rows.whole(some)
    hit = (sign * own >= _kth(sign * scores, k)[:, None]) & ours[some]
    at = hit.nonzero()
    return some[at[:, 0]].cpu(), at[:, 1].cpu()


def _by_task(board: Board, parts: list[tuple[Tensor, Tensor]]) -> Iterator[PairHits]:
    rows = torch.cat([torch.zeros(0, dtype=torch.long), *(part[0] for part in parts)])
    cols = torch.cat([torch.zeros(0, dtype=torch.long), *(part[1] for part in parts)])
    owner = board.task_of[rows]
    for task, start in enumerate(board.starts):
        mine = owner == task
        i, j = rows[mine] - start, cols[mine] - start
        right = torch.zeros(len(board.tasks[task]), dtype=torch.bool)
        right[i[i == j]] = True
        yield PairHits(i, j, right)
