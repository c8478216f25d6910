"""The logit lens of many vectors at once: best tokens, probabilities, entropy, a target's rank.

One product with the embedding in chunks, and a few cheap passes over each chunk while it is warm.
The probabilities are the model's own: final norm, scale, bias and cap as in its last step, the
softmax over every row of its embedding. Lists and ranks leave out rows that stand for no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.finite import require_finite
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.progress import track
from lexray.space.side import Side
from lexray.space.space import space_of
from lexray.space.topk.arithmetic import full_precision
from lexray.space.topk.vectors import Columns, multiply, rows_at_once, top_scores
from lexray.view import RAW
from lexray.vocabulary.filters import Filter

SEGMENT = 64
"""Rows of scores are padded to a multiple of this, as the top-k engine wants them."""
WARM_SCORES = 2**20
"""How many scores are read at a time on a CPU, so that its caches hold them."""


class Projected(NamedTuple):
    """What each of n vectors says in the vocabulary; ranks count from 0, entropies are in nats."""

    top_ids: Int[Tensor, "n k"]
    top_probs: Float[Tensor, "n k"]
    entropy: Float[Tensor, "n"]
    target_probs: Float[Tensor, "n m"]
    target_ranks: Int[Tensor, "n m"]
    """How many tokens score higher than the target."""
    target_logits: Float[Tensor, "n m"]
    """Before any cap."""
    bottom_ids: Int[Tensor, "n k_bottom"]
    """The tokens at the other end, lowest first; none unless asked for."""
    bottom_probs: Float[Tensor, "n k_bottom"]


def project(
    model: Anatomy,
    X: Float[Tensor, "n d_model"],
    k: int = 10,
    targets: Sequence[int] | Int[Tensor, "m"] | Int[Tensor, "n m"] = (),
    *,
    norm: bool = True,
    side: Literal["writing", "reading"] = "writing",
    transform: bool = False,
    bottom: bool = False,
    filter: Filter | None = None,
    lists: tuple[Int[Tensor, "n k"], Int[Tensor, "n k"]] | None = None,
    first: bool = False,
) -> Projected:
    """The rows of X as the model's last step would read them.

    - `targets`: token ids whose probability and rank are wanted, the same for all rows or, as a
      matrix, those of each row.
    - `norm=False` leaves the final norm out.
    - `side="reading"` is for vectors that read from the residual stream (queries and keys through
      the QK circuit): no final norm, scale, bias or cap, and the reading embedding of the view.
    - `transform=True` passes the non-linear LM head of encoders such as BERT first.
    - `bottom=True` also lists the k lowest tokens.
    - `filter` restricts the lists; probabilities and ranks stay those among all tokens.
    - `lists`: the tokens at either end, where something else has chosen them (a standardised
      reading); their probabilities, and all ranks, are the model's own all the same.
    - `first`: these vectors read in the first block, which no block has worked for.

    >>> project(model, trace.final, 5, [model.vocabulary.id(" great")]).target_ranks[-1]
    """
    require_finite("the matrix of vectors to project", X)
    step = LastStep.of(model, side, first=first)
    with full_precision():
        H = step.prepare(X, norm=norm and side == "writing", transform=transform)
    wanted = torch.as_tensor(targets, dtype=torch.long, device=H.device)
    wanted = wanted.expand(len(X), -1) if wanted.ndim == 1 else wanted
    _check(k, wanted, step.columns.count)
    given = None if lists is None else (lists[0].to(H.device), lists[1].to(H.device))
    chunks = list(_chunks(step, H, k, wanted, bottom, filter, given))
    return Projected(*(torch.cat(parts) for parts in zip(*chunks, strict=True)))


@dataclass(frozen=True)
class LastStep:
    """From a residual stream to logits, with all weights at hand."""

    model: Anatomy
    side: Side
    columns: Columns
    scale: float = 1.0
    bias: Float[Tensor, "e"] | None = None
    cap: float | None = None

    @classmethod
    def of(
        cls, model: Anatomy, side: Literal["writing", "reading"], *, first: bool = False
    ) -> LastStep:
        raw = model.with_view(RAW)
        if side == "reading":
            asked = replace(RAW, reading=model.options.reading, inverse=model.options.inverse)
            chosen = space_of(model.with_view(asked), 0 if first else None).reading
            return cls(model, chosen, Columns([chosen.rows.T], None))
        chosen = raw.space.writing
        columns = Columns([chosen.rows.T], None)
        a, bias = model.architecture, raw.b_U
        bias = None if bias is None else at_least_float32(bias)
        return cls(model, chosen, columns, a.logit_scale, bias, a.logit_cap)

    def prepare(
        self, X: Float[Tensor, "n d_model"], *, norm: bool, transform: bool
    ) -> Float[Tensor, "n width"]:
        """What is multiplied with the embedding as it is stored."""
        a, checkpoint = self.model.architecture, self.model.checkpoint
        x = at_least_float32(X.to(self.side.rows.device))
        if norm and a.final_norm is not None:
            x = a.final_norm(x, checkpoint)
        if transform:
            x = pass_head(self.model, x)  # into the decoder's width
        elif self.side.P is not None:
            x = x @ self.side.P.to(x)
        return x * self.scale if self.scale != 1 else x

    def holes(self) -> Int[Tensor, "some"]:
        """The columns that stand for no token."""
        mask = self.model.vocabulary.mask(self.columns.count)
        return (~mask).nonzero()[:, 0].to(self.side.rows.device)

    def find_unlisted(self, filter: Filter | None) -> Int[Tensor, "some"] | None:
        """The holes and the columns that a filter keeps out of lists; None without one."""
        if filter is None:
            return None
        count, vocabulary = self.columns.count, self.model.vocabulary
        mask = vocabulary.mask(count) & filter.mask(vocabulary, count)
        if not bool(mask.any()):
            raise LexrayError(f"no token of {self.model.name} is {filter.describe()}")
        return (~mask).nonzero()[:, 0].to(self.side.rows.device)


def pass_head(model: Anatomy, X: Float[Tensor, "n d_model"]) -> Float[Tensor, "n width"]:
    """What a non-linear LM head hands to its decoder."""
    head = model.architecture.head
    if head is None:
        raise LexrayError(
            f"{model.name} has no transform in its LM head: hidden states go straight into the "
            "unembedding; leave transform=True out"
        )
    return head(X, model.checkpoint)


def _check(k: int, targets: Int[Tensor, "n m"], count: int) -> None:
    if k < 1:
        raise LexrayError(f"asked for the top {k} tokens; k must be at least 1")
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < count:
        raise LexrayError(
            f"targets {int(targets.min())} to {int(targets.max())} are no rows of the embedding, "
            f"whose ids are 0–{count - 1}"
        )


def _chunks(
    step: LastStep,
    H: Float[Tensor, "n width"],
    k: int,
    targets: Int[Tensor, "n m"],
    bottom: bool,
    filter: Filter | None,
    lists: tuple[Int[Tensor, "n k"], Int[Tensor, "n k"]] | None,
) -> Iterator[Projected]:
    """At least one chunk, so that no vectors give no rows."""
    count = step.columns.count
    padded = max(1, -(-count // SEGMENT)) * SEGMENT
    at_once = max(1, min(len(H), rows_at_once(padded)))
    dtype = torch.promote_types(H.dtype, at_least_float32(step.side.rows[:0]).dtype)
    scores = torch.empty(at_once, padded, dtype=dtype, device=H.device)
    warm = max(1, WARM_SCORES // padded) if H.device.type == "cpu" else at_once
    spare = torch.empty(min(at_once, warm), padded, dtype=dtype, device=H.device)
    holes = step.holes()
    unlisted = step.find_unlisted(filter)
    starts = range(0, max(1, len(H)), at_once)
    for start in track(starts, len(starts), "projecting vectors"):
        part = H[start : start + at_once]
        with full_precision():
            multiply(part, step.columns, scores[: len(part)])
        wanted = targets[start : start + at_once]
        for at in range(0, max(1, len(part)), len(spare)):
            some = slice(at, min(at + len(spare), len(part)))
            room = spare[: some.stop - at]
            rows = slice(start + some.start, start + some.stop)
            given = None if lists is None else (lists[0][rows], lists[1][rows])
            yield _read(step, scores[some], room, holes, unlisted, k, wanted[some], bottom, given)


def _read(
    step: LastStep,
    scores: Float[Tensor, "n padded"],
    spare: Float[Tensor, "n padded"],
    holes: Int[Tensor, "some"],
    unlisted: Int[Tensor, "others"] | None,
    k: int,
    targets: Int[Tensor, "n m"],
    bottom: bool,
    lists: tuple[Int[Tensor, "n k"], Int[Tensor, "n k"]] | None,
) -> Projected:
    """A chunk's answers; `scores` is used up, and `spare` is room to work in."""
    count = step.columns.count
    left_out = holes if unlisted is None else unlisted
    k = min(k, count - len(left_out))
    if step.bias is not None:
        scores[:, :count] += step.bias
    hidden, unseen = scores[:, holes], scores[:, left_out]
    wanted = scores[:, :count].gather(1, targets)
    if lists is None:
        values, ids, low_values, low_ids = _ends(scores, spare, left_out, count, k, bottom)
    else:
        ids, low_ids = lists[0], lists[1][:, : lists[1].shape[1] if bottom else 0]
        values, low_values = scores.gather(1, ids), -scores.gather(1, low_ids)
    if unlisted is not None or lists is not None:
        scores[:, left_out] = unseen
        scores[:, holes] = -torch.inf
    visible, room = scores[:, :count], spare[:, :count]
    ranks = [_above(visible, wanted[:, [i]], room) for i in range(targets.shape[1])]
    scores[:, holes] = hidden
    total, peak, entropy = _softmax(visible, room, step.cap)

    def probabilities(logits: Tensor) -> Tensor:
        return (_cap(logits, step.cap) - peak).exp() / total

    return Projected(
        ids,
        probabilities(values),
        entropy,
        probabilities(wanted),
        torch.cat(ranks, 1) if ranks else targets[:, :0],
        wanted,
        low_ids,
        probabilities(-low_values),
    )


def _ends(
    scores: Float[Tensor, "n padded"],
    spare: Float[Tensor, "n padded"],
    left_out: Int[Tensor, "some"],
    count: int,
    k: int,
    bottom: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The k best tokens and, if they are wanted, the k last ones with their scores negated;
    what is left out is −∞ afterwards."""
    low_values, low_ids = scores[:, :0], torch.zeros_like(scores[:, :0], dtype=torch.long)
    if bottom:
        scores[:, left_out] = torch.inf
        low_values, low_ids = top_scores(torch.neg(scores, out=spare), count, k)
    scores[:, left_out] = -torch.inf
    return *top_scores(scores, count, k), low_values, low_ids


def _above(
    scores: Float[Tensor, "n e"], limit: Float[Tensor, "n 1"], spare: Float[Tensor, "n e"]
) -> Int[Tensor, "n 1"]:
    """How many scores are above the limit; counted in floats, which is quicker and exact here."""
    return torch.gt(scores, limit, out=spare).sum(1, keepdim=True).long()


def _softmax(
    scores: Float[Tensor, "n e"], spare: Float[Tensor, "n e"], cap: float | None
) -> tuple[Float[Tensor, "n 1"], Float[Tensor, "n 1"], Float[Tensor, "n"]]:
    """Σ exp(x − peak), peak and the entropy of each row, whose scores become x − peak."""
    if cap is not None:
        scores.div_(cap).tanh_().mul_(cap)
    peak = scores.amax(1, keepdim=True)
    scores.sub_(peak)
    weights = torch.exp(scores, out=spare)
    total = weights.sum(1, keepdim=True)
    mean = weights.mul_(scores).sum(1) / total[:, 0]
    return total, peak, total[:, 0].log() - mean


def _cap(logits: Tensor, cap: float | None) -> Tensor:
    return logits if cap is None else cap * (logits / cap).tanh()
