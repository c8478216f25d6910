"""A model's embedding space under one view: its two sides, and vectors read as tokens in it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model import fold
from lexray.model.cache import Drawer
from lexray.model.fold import at_least_float32
from lexray.model.groups import all_groups
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.result.readings import Reading, Scored, Source, Token
from lexray.space.kernels import invert, second_moment
from lexray.space.kinds import WRITES, Kind
from lexray.space.side import Side
from lexray.view import View
from lexray.vocabulary.filters import Filter

Shared = tuple[Hashable, View]
"""What tells sides apart: the kind, as far as it matters, and the view."""

ROWS: Drawer[str, Tensor] = Drawer(most=2)
BARE: Drawer[tuple[bool, View], Side] = Drawer(most=8)
"""By whether it writes: sides before any calibration."""
WHOLE: Drawer[Shared, Side] = Drawer(most=8)
SOME: Drawer[tuple[Shared, Filter | None], Side] = Drawer(most=4)
"""Each holds a copy of the rows that its filter admits."""
INVERSES: Drawer[tuple[str, bool], Side] = Drawer(most=2)
MOMENTS: Drawer[tuple[Kind, bool], Tensor] = Drawer(most=16)
ADMITTED: Drawer[Filter | None, Tensor | None] = Drawer(most=16)
UNITS: Drawer[None, tuple[Tensor, Tensor, float]] = Drawer(most=1)
UPCAST_BELOW = 2**28
"""Embeddings of half precision with fewer elements are held in float32 (1 GB)."""
LEGIBLE = 10
"""How many of the top tokens legibility looks at."""


def space_of(weights: Weights) -> EmbeddingSpace:
    """The embedding space of a model under its view."""
    return EmbeddingSpace(weights)


class EmbeddingSpace:
    """Where a model's parameters are read as words.

    >>> space = model.space
    >>> space.writing.top(model["L3N7"].W_out[None], 10)     # ids and scores
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    # ------------------------------------------------------------------ the two sides

    @property
    def writing(self) -> Side:
        """E: for what is added to the residual stream; folded, with the final norm in it."""
        return BARE.get(self.weights.cache, (True, self._view), self._writing)

    @property
    def reading(self) -> Side:
        """E′ᵀ: for what reads from the residual stream."""
        return BARE.get(self.weights.cache, (False, self._view), self._reading)

    @property
    def _view(self) -> View:
        """What sides depend on: not the offset, which turns queries, not embeddings."""
        return replace(self.weights.options, offset=0)

    def _writing(self) -> Side:
        a, options = self.weights.architecture, self.weights.options
        P = None if a.project_out is None else a.project_out.read(self.weights.checkpoint)
        if options.folded and (a.final_norm is not None or a.logit_scale != 1):
            eye = torch.eye(a.d_model) if P is None else P
            P = fold.reader(eye, a.final_norm, self.weights.checkpoint) * a.logit_scale
        return self._centred(Side(self._rows(a.unembed), self._placed(P)))

    def _reading(self) -> Side:
        a, options = self.weights.architecture, self.weights.options
        P = None
        if options.reading == "input":
            if a.project_in is not None:
                P = a.project_in.read(self.weights.checkpoint).T
            side = Side(self._rows(a.embed), self._placed(P))
        else:
            if a.project_out is not None:
                P = a.project_out.read(self.weights.checkpoint)
            side = Side(self._rows(a.unembed), self._placed(P))
        side = self._centred(side)
        if options.inverse == "transpose":
            return side
        return INVERSES.get(
            self.weights.cache,
            (options.reading, options.centred),
            lambda: invert(side, self.admitted(None)),
        )

    def whole(self, kind: Kind) -> Side:
        """The side on which vectors of this kind are read, with every row of the embedding."""
        return WHOLE.get(self.weights.cache, self._key(kind), lambda: self._calibrated(kind))

    def side(self, kind: Kind, filter: Filter | None = None) -> Side:
        """The same for the tokens a filter admits."""
        ids = self.admitted(filter)
        if ids is None:
            return self.whole(kind)
        key = self._key(kind), filter
        return SOME.get(self.weights.cache, key, lambda: self.whole(kind).only(ids))

    def _key(self, kind: Kind) -> Shared:
        return self.sharing(kind), self._view

    def sharing(self, kind: Kind) -> Hashable:
        """The same for kinds that are read with one side: each has its own σ, if there are any."""
        return kind if self.weights.options.calibrated else kind in WRITES

    def _calibrated(self, kind: Kind) -> Side:
        side = self.writing if kind in WRITES else self.reading
        if not self.weights.options.calibrated or kind in ("bias", "norm"):
            return side
        key = kind, self.weights.options.folded
        S = MOMENTS.get(self.weights.cache, key, lambda: self._moment(kind))
        return side.calibrated(S, self.admitted(None))

    def _moment(self, kind: Kind) -> Float[Tensor, "d_model d_model"]:
        groups = list(all_groups(self.weights, kind))
        tensors = (group.tensor for group in groups)
        return second_moment(track(tensors, len(groups), f"calibrating by all {kind} vectors"))

    def _rows(self, name: str) -> Float[Tensor, "e width"]:
        return ROWS.get(self.weights.cache, name, lambda: self._held(self._read(name)))

    def _read(self, name: str) -> Float[Tensor, "e width"]:
        weights = self.weights
        if name == weights.architecture.unembed:
            return weights.unembedding()
        return weights.tensor(name)

    def _held(self, rows: Float[Tensor, "e width"]) -> Float[Tensor, "e width"]:
        rows = self.weights.place(rows)
        return at_least_float32(rows) if rows.numel() < UPCAST_BELOW else rows

    def _placed(self, P: Tensor | None) -> Tensor | None:
        return None if P is None else at_least_float32(self.weights.place(P))

    def _centred(self, side: Side) -> Side:
        if not self.weights.options.centred:
            return side
        return replace(side, mean=self.mean(side))

    def mean(self, side: Side) -> Float[Tensor, "width"]:
        """μ, over the embeddings that belong to tokens."""
        ids = self.admitted(None)
        bare = replace(side, P=None) if ids is None else replace(side, P=None).only(ids)
        total = torch.stack([block.sum(0) for block in bare.blocks()]).sum(0)
        return total / len(bare.rows)

    @property
    def n_rows(self) -> int:
        """How many rows the output embedding has: more or fewer than there are tokens."""
        return len(self._rows(self.weights.architecture.unembed))

    # ------------------------------------------------------------------ tokens

    def admitted(self, filter: Filter | None) -> Int[Tensor, "some"] | None:
        """The ids that may appear in results; None for all."""
        return ADMITTED.get(self.weights.cache, filter, lambda: self._admitted(filter))

    def _admitted(self, filter: Filter | None) -> Int[Tensor, "some"] | None:
        vocabulary, n = self.weights.vocabulary, self.n_rows
        mask = vocabulary.admitted(n)
        if filter is not None:
            mask = mask & filter.mask(vocabulary, n)
        return None if bool(mask.all()) else mask.nonzero()[:, 0]

    def id(self, token: str | int) -> int:
        """The id of a token that the embedding has a row for."""
        vocabulary = self.weights.vocabulary
        token_id = vocabulary.id(token)
        if token_id >= self.n_rows:
            raise LexrayError(
                f"{vocabulary.shown(token_id)} ({token_id}) has no row in the embedding "
                f"of {self.weights.name}, whose ids are 0–{self.n_rows - 1}"
            )
        return token_id

    def token(self, token_id: int) -> Token:
        vocabulary = self.weights.vocabulary
        return Token(token_id, vocabulary.text(token_id), vocabulary.shown(token_id))

    def source(self, address: str, filter: Filter | None = None) -> Source:
        """How a result at `address` was made."""
        return Source(
            self.weights.name,
            self.weights.checkpoint.revision,
            address,
            self.weights.options,
            "" if filter is None else filter.describe(),
        )

    # ------------------------------------------------------------------ readings

    def readings(
        self,
        X: Float[Tensor, "n d_model"],
        kind: Kind,
        addresses: Sequence[str],
        k: int,
        filter: Filter | None = None,
        name: str = "",
    ) -> list[Reading]:
        """Each vector's k largest and smallest tokens."""
        found = self.side(kind, filter).top(X, k)
        legibility = self.legibility(found.top_ids).tolist()
        rows = zip(*(part.tolist() for part in found), strict=True)
        return [
            Reading(
                self.source(address, filter),
                name or kind,
                self._scored(top_ids, top_values),
                self._scored(bottom_ids, bottom_values),
                legible,
            )
            for address, legible, (top_values, top_ids, bottom_values, bottom_ids) in zip(
                addresses, legibility, rows, strict=True
            )
        ]

    def scored(
        self, scores: Float[Tensor, "n"], k: int, ids: Int[Tensor, "n"] | None
    ) -> tuple[tuple[Scored, ...], tuple[Scored, ...], float]:
        """Both ends of a list of scores, one per token, and the top's legibility."""
        if k < 1:
            raise LexrayError(f"asked for the top {k} tokens; k must be at least 1")
        n = min(k, len(scores))
        ends = []
        for descending in (True, False):
            order = scores.argsort(descending=descending, stable=True)[:n]
            at = order if ids is None else ids.to(order.device)[order]
            ends.append((at, scores[order]))
        legible = float(self.legibility(ends[0][0][None])[0])
        top, bottom = (self._scored(at.tolist(), values.tolist()) for at, values in ends)
        return top, bottom, legible

    def _scored(self, ids: list[int], values: list[float]) -> tuple[Scored, ...]:
        return tuple(Scored(self.token(i), value) for i, value in zip(ids, values, strict=True))

    def legibility(self, ids: Int[Tensor, "n k"]) -> Float[Tensor, "n"]:
        """Mean cosine among the first tokens' centred embeddings, less that of random lists."""
        rows, mean, expected = UNITS.get(self.weights.cache, None, self._units)
        n = min(LEGIBLE, ids.shape[1])
        if n < 2:
            return torch.zeros(len(ids))
        found = at_least_float32(rows[ids[:, :n].to(rows.device)]) - mean
        units = found / found.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        alike = (units.sum(1).square().sum(-1) - n) / (n * (n - 1))
        excess: Tensor = alike - expected
        return excess.cpu()

    def _units(self) -> tuple[Tensor, Tensor, float]:
        """The embeddings, their mean, and the mean cosine over all pairs of different tokens."""
        side = Side(self._rows(self.weights.architecture.unembed))
        mean = self.mean(side)
        ids = self.admitted(None)
        total, n = torch.zeros_like(mean), 0
        for block in (side if ids is None else side.only(ids)).blocks():
            centred = block - mean
            total, n = total + 1 / centred.norm(dim=-1).clamp(min=1e-30) @ centred, n + len(block)
        return side.rows, mean, (float(total.square().sum()) - n) / max(1, n * (n - 1))
