"""The top-k and bottom-k tokens of many vectors: rows of X·E, both ends in one pass.

The product is the floor, so the selection has to be nearly free. Per row it takes the maximum of
every segment of 64 columns; the k best of them lie in k segments, which hold the k best entries;
inside these the same again with segments of 8; and what is left is sorted. The bottom is the top
of the negated row. Rows are taken in chunks, so memory is bounded whatever the number of vectors.

Values are float32 products (float64 if a factor is; float16 and bfloat16 are upcast). Equal values
are ordered by id, lower first: `topk` decides ties arbitrarily, so the few rows where a tie
touches the list are selected again, by id.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.finite import require_finite
from lexray.space.topk.arithmetic import full_precision

_SEGMENTS = (64, 8)
_SCORES_AT_ONCE = 2**24
_BLOCK_COLUMNS = 8192
_BLOCK_NUMBERS = 2**22
"""Of E that are converted at once, and columns: the fewer of both."""
_TIED_AT_ONCE = 2**20
"""Scores among which ties are looked for together: masks and counts of all are several times as
much."""


class TopVectors(NamedTuple):
    """The best tokens of each vector, largest value first, and the worst, smallest first."""

    top_values: Float[Tensor, "n k"]
    top_ids: Int[Tensor, "n k"]
    bottom_values: Float[Tensor, "n k"]
    bottom_ids: Int[Tensor, "n k"]


def top_vectors(
    X: Float[Tensor, "n d"],
    E: Float[Tensor, "d e"] | Sequence[Float[Tensor, "d _"]],
    k: int,
    *,
    cols: Int[Tensor, " some"] | None = None,
    scale: Float[Tensor, " e"] | None = None,
    left_out: Int[Tensor, " few"] | None = None,
) -> TopVectors:
    """The k largest and k smallest entries of every row of X·E, with their column numbers.

    E is one matrix or a sequence of blocks of its columns; `cols` are the admissible columns.
    Fewer than k of them shorten the lists. `scale` multiplies every column of X·E. `left_out` are
    columns that are not listed: of few, that costs no copy of all others as `cols` does.

    >>> found = top_vectors(torch.tensor([[2.0]]), torch.tensor([[1.0, 3.0, -1.0]]), 1)
    >>> found.top_ids, found.bottom_values
    (tensor([[1]]), tensor([[-2.]]))
    """
    return top_of_columns(X, replace(Columns.of(E, cols, scale), left_out=left_out), k)


def top_of_columns(X: Float[Tensor, "n d"], columns: "Columns", k: int) -> TopVectors:
    """The same with columns whose entries are known to be finite."""
    chunks = list(_chunks(X, columns, _length(k, columns)))
    return TopVectors(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


@dataclass(frozen=True)
class Columns:
    """The admissible columns of E, as blocks, and their numbers (None: all, in order)."""

    blocks: list[Float[Tensor, "d _"]]
    ids: Int[Tensor, " e"] | None
    scale: Float[Tensor, " e"] | None = None
    left_out: Int[Tensor, " few"] | None = None
    """Columns, by their places in the blocks, that are never among the best."""
    mean: Float[Tensor, " d"] | None = None
    """What is taken off every column before it is multiplied, some of them at a time."""

    @property
    def count(self) -> int:
        return sum(block.shape[1] for block in self.blocks)

    @classmethod
    def of(
        cls,
        E: Float[Tensor, "d e"] | Sequence[Float[Tensor, "d _"]],
        cols: Int[Tensor, " some"] | None,
        scale: Float[Tensor, " e"] | None = None,
    ) -> "Columns":
        blocks = [E] if isinstance(E, Tensor) else list(E)
        for block in blocks:
            require_finite("the embedding E", block)
        everything = cls(blocks, None, scale)
        return everything if cols is None else everything.restrict(cols)

    def restrict(self, cols: Int[Tensor, " some"]) -> "Columns":
        ids: Tensor = torch.unique(cols)
        if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < self.count:
            raise LexrayError(
                f"admissible columns from {int(ids[0])} to {int(ids[-1])} do not fit E, "
                f"which has {self.count} columns"
            )
        kept, start = [], 0
        for block in self.blocks:
            inside = ids[(ids >= start) & (ids < start + block.shape[1])] - start
            kept.append(block[:, inside.to(block.device)])
            start += block.shape[1]
        scale = None if self.scale is None else self.scale[ids.to(self.scale.device)]
        return Columns(kept, ids, scale)


def _length(k: int, columns: Columns) -> int:
    if k <= 0:
        raise LexrayError(f"asked for the top {k} tokens; k must be at least 1")
    return min(k, columns.count - (0 if columns.left_out is None else len(columns.left_out)))


def _chunks(X: Float[Tensor, "n d"], columns: Columns, k: int) -> Iterator[TopVectors]:
    """Both ends of X·E, chunk by chunk; at least one chunk, so that no vectors give no rows."""
    if X.ndim != 2 or any(block.shape[0] != X.shape[1] for block in columns.blocks):
        raise LexrayError(
            f"vectors of shape {tuple(X.shape)} cannot be projected by E of shapes "
            f"{[tuple(block.shape) for block in columns.blocks]}"
        )
    width = max(1, -(-columns.count // _SEGMENTS[0])) * _SEGMENTS[0]
    rows = max(1, min(len(X), rows_at_once(width)))
    scores = torch.empty(rows, width, dtype=_dtype(X, columns), device=X.device)
    for start in range(0, max(1, len(X)), rows):
        chunk = X[start : start + rows]
        require_finite("the matrix of vectors X", chunk)
        with full_precision():
            ends = _both_ends(chunk, columns, k, scores[: len(chunk)])
        yield ends


def rows_at_once(width: int) -> int:
    """As many as the budget holds, in whole multiples of what matrix kernels take at a time."""
    rows = _SCORES_AT_ONCE // width
    return rows - rows % 32 if rows > 32 else rows


def _dtype(X: Float[Tensor, "n d"], columns: Columns) -> torch.dtype:
    doubled = any(Y.dtype == torch.float64 for Y in (X, *columns.blocks))
    return torch.float64 if doubled else torch.float32


def _both_ends(
    X: Float[Tensor, "n d"], columns: Columns, k: int, scores: Float[Tensor, "n padded"]
) -> TopVectors:
    multiply(X, columns, scores)
    _leave_out(scores, columns)
    top_values, top = top_scores(scores, columns.count, k)
    _leave_out(scores.neg_(), columns)
    bottom_values, bottom = top_scores(scores, columns.count, k)
    if columns.ids is not None:
        ids = columns.ids.to(X.device)
        top, bottom = ids[top], ids[bottom]
    return TopVectors(top_values, top, -bottom_values, bottom)


def _leave_out(scores: Float[Tensor, "n padded"], columns: Columns) -> None:
    if columns.left_out is not None:
        scores[:, columns.left_out.to(scores.device)] = -torch.inf


def multiply(X: Float[Tensor, "n d"], columns: Columns, scores: Float[Tensor, "n padded"]) -> None:
    """scores[:, :e] = X·E. Blocks of another dtype or device are converted piece by piece, all in
    one place: new memory for each costs as much as the conversion."""
    X = X.to(scores.dtype)
    start = 0
    for block in columns.blocks:
        alike = block.dtype == scores.dtype and block.device == scores.device
        alike = alike and columns.mean is None
        few = min(_BLOCK_COLUMNS, _BLOCK_NUMBERS // max(1, block.shape[0]))
        step = max(1, min(block.shape[1], block.shape[1] if alike else few))
        room = None if alike else scores.new_empty(step, block.shape[0]).T
        for piece in torch.split(block, step, dim=1):
            stop = start + piece.shape[1]
            if room is not None:
                piece = room[:, : piece.shape[1]].copy_(piece)
            if columns.mean is not None:
                piece -= columns.mean.to(piece)[:, None]
            torch.mm(X, piece, out=scores[:, start:stop])
            start = stop
    if columns.scale is not None:
        scores[:, :start] *= columns.scale.to(scores)


def top_scores(
    scores: Float[Tensor, "n padded"], count: int, k: int
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """The k largest of the first `count` columns, by (value descending, id ascending)."""
    scores[:, count:] = -torch.inf
    values, ids, next_best = _top_up_to_ties(scores, k)
    if not values.isfinite().all():
        raise LexrayError(f"the product of X and E overflows {scores.dtype}: scale X down")
    repeated = (values[:, 1:] == values[:, :-1]).any(1)
    tied: Bool[Tensor, " n"] = repeated | (values[:, -1:] == next_best).any(1)
    step = max(1, _TIED_AT_ONCE // max(1, scores.shape[1]))
    for some in torch.split(tied.nonzero()[:, 0], step) if tied.any() else ():
        own = scores[some]
        chosen = _top_by_id(own, values[some, -1:], k)
        ids[some], values[some] = chosen, own.gather(1, chosen)
    return values, ids


def _top_up_to_ties(
    scores: Float[Tensor, "n padded"], k: int
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"], Float[Tensor, "n 1"]]:
    """The k largest, ties decided arbitrarily, and a bound on every value left out.

    k segments have a maximum of at least the k-th best maximum, so the k best entries are at
    least that large and lie in the k best segments, but for ties. One segment more is taken:
    its maximum bounds all the others, and only if the k-th value equals it can there be a tie.
    """
    candidates, starts, width = scores, None, 1
    next_best = torch.full_like(scores[:, :1], -torch.inf)
    for segment in _SEGMENTS:
        segments = candidates.view(len(candidates), candidates.shape[1] // segment, segment)
        if segments.shape[1] <= 2 * k:
            continue
        best = segments.amax(2).topk(k + 1, sorted=False)
        next_best = torch.maximum(next_best, best.values.amin(1, keepdim=True))
        candidates = _segments_at(segments, best.indices)
        starts, width = _ids(best.indices * segment, starts, width), segment
    best = candidates.topk(min(k + 1, candidates.shape[1]))
    next_best = torch.cat([next_best, best.values[:, k:]], dim=1).amax(1, keepdim=True)
    return best.values[:, :k].clone(), _ids(best.indices[:, :k], starts, width), next_best


def _segments_at(
    segments: Float[Tensor, "n segments width"], chosen: Int[Tensor, "n m"]
) -> Float[Tensor, "n m_width"]:
    """The chosen segments of every row side by side; whole segments are copied, not entries."""
    first = torch.arange(len(segments), device=chosen.device)[:, None] * segments.shape[1]
    rows = segments.flatten(0, 1).index_select(0, (first + chosen).flatten())
    return rows.view(len(segments), chosen.shape[1] * segments.shape[2])


def _ids(
    positions: Int[Tensor, "n m"], starts: Int[Tensor, "n segments"] | None, width: int
) -> Int[Tensor, "n m"]:
    """The columns of `scores` that positions in the chosen segments stand for."""
    if starts is None:
        return positions.clone()
    return starts.gather(1, positions // width) + positions % width


def _top_by_id(
    scores: Float[Tensor, "n padded"], last: Float[Tensor, "n 1"], k: int
) -> Int[Tensor, "n k"]:
    """The k best columns given the k-th value: all above it, the first of those equal to it."""
    above, equal = scores > last, scores == last
    missing = k - above.sum(1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(1) <= missing))
    ids = chosen.nonzero()[:, 1].view(len(scores), k)
    order = scores.gather(1, ids).argsort(dim=1, descending=True, stable=True)
    return ids.gather(1, order)


def members(a: Int[Tensor, "n j"], b: Int[Tensor, "n k"]) -> Bool[Tensor, "n j"]:
    """Which entries of each row of a are in the same row of b."""
    ordered = b.sort(1).values
    at = torch.searchsorted(ordered, a.contiguous()).clamp(max=b.shape[1] - 1)
    return ordered.gather(1, at) == a
