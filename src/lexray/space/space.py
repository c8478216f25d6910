"""A model's embedding space under one view: its two sides, and vectors read as tokens in it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model import fold
from lexray.model.cache import Drawer
from lexray.model.embedding import embedding
from lexray.model.fold import at_least_float32
from lexray.model.kept import keep
from lexray.model.weights import Weights
from lexray.result.readings import Glossary, Reading, Scored, Source, Token
from lexray.space.effective import effective_rows
from lexray.space.jacobian import head_jacobian
from lexray.space.kernels import invert
from lexray.space.kinds import WRITES, Kind
from lexray.space.legibility import WINDOW, WordColumns, legibility, words_of
from lexray.space.side import Side
from lexray.space.topk.vectors import TopVectors
from lexray.space.untrained import untrained
from lexray.space.usual import CENTRED, usual
from lexray.view import STANDARD, View
from lexray.vocabulary.filters import Filter
from lexray.vocabulary.words import telling

Shared = tuple[Hashable, View, bool]
"""What tells sides apart: the kind, as far as it matters, the view, whether it is layer 0's."""

ROWS: Drawer[str, Tensor] = Drawer(most=4)
BARE: Drawer[Shared, Side] = Drawer(most=8)
"""By whether it writes: sides before any calibration."""
WHOLE: Drawer[Shared, Side] = Drawer(most=8)
SOME: Drawer[tuple[Shared, Filter | None], Side] = Drawer(most=4)
"""Each holds a copy of the rows that its filter admits."""
INVERSES: Drawer[tuple[str, bool, bool, str], Side] = Drawer(most=2)
ADMITTED: Drawer[tuple[Filter | None, bool], Tensor | None] = Drawer(most=16)
WORDS: Drawer[bool | None, WordColumns] = Drawer(most=3)
"""By how tokens are compared: as the first layer sees them or the others; None: as written."""
UPCAST_BELOW = 2**25
"""Embeddings of half precision with fewer elements are held in float32 (128 MB)."""


def space_of(weights: Weights, layer: int | None = None) -> EmbeddingSpace:
    """The embedding space of a model under its view, for what lies in this layer.

    Only the first layer differs: no block has worked on the tokens that it reads.
    """
    return EmbeddingSpace(weights, layer)


class EmbeddingSpace:
    """Where a model's parameters are read as words.

    >>> space = model.space
    >>> space.writing.top(model["L3N7"].W_out[None], 10)     # ids and scores
    """

    def __init__(self, weights: Weights, layer: int | None = None) -> None:
        self.weights = weights
        self.first = layer == 0 and weights.options.reading == "effective"
        """Whether this is the first layer's space, and differs from the others'."""

    def with_view(self, **changes: Any) -> EmbeddingSpace:
        """The same space under another view; see `Weights.view`."""
        return EmbeddingSpace(self.weights.view(**changes), 0 if self.first else None)

    # ------------------------------------------------------------------ the two sides

    @property
    def writing(self) -> Side:
        """E: for what is added to the residual stream; folded, with the final norm in it."""
        return BARE.get(self.weights.cache, (True, self._view, False), self._writing)

    @property
    def reading(self) -> Side:
        """E′ᵀ: for what reads from the residual stream."""
        return BARE.get(self.weights.cache, (False, self._view, self.first), self._reading)

    @property
    def _view(self) -> View:
        """What sides depend on: not the offset, which turns queries, not embeddings."""
        return replace(self.weights.options, offset=0)

    def _writing(self) -> Side:
        a, options = self.weights.architecture, self.weights.options
        P = self._outwards()
        if options.folded and (a.final_norm is not None or a.logit_scale != 1):
            P = fold.outwards(P, a.d_model, a.final_norm, self.weights.checkpoint, a.logit_scale)
        return self._centre(Side(self._rows(a.unembed), self._place(P)))

    def _outwards(self) -> Float[Tensor, "d_model width"] | None:
        """From the model's width to the output embedding's; None for the identity."""
        a = self.weights.architecture
        if self.weights.options.head == "jacobian":
            return head_jacobian(self.weights)
        return None if a.project_out is None else a.project_out.read(self.weights.checkpoint)

    def _reading(self) -> Side:
        options = self.weights.options
        side = self._centre(self._bare_reading())
        if options.inverse == "transpose":
            return side
        return INVERSES.get(
            self.weights.cache,
            (options.reading, options.centred, self.first, options.head),
            lambda: invert(side, self.list_ids(None)),
        )

    def _bare_reading(self) -> Side:
        a, reading = self.weights.architecture, self.weights.options.reading
        if reading == "effective":
            rows, _ = effective_rows(self.weights, first=self.first)
            if rows is not None:
                name = "entering" if self.first else "effective"
                held = ROWS.get(self.weights.cache, name, lambda: self._hold(rows))
                return Side(held)
        if reading == "output":
            return Side(self._rows(a.unembed), self._place(self._outwards()))
        P = None if a.project_in is None else a.project_in.read(self.weights.checkpoint).T
        return Side(self._rows(a.embed), self._place(P))

    def whole(self, kind: Kind) -> Side:
        """The side on which vectors of this kind are read, with every row of the embedding."""
        return WHOLE.get(self.weights.cache, self._key(kind), lambda: self._calibrate(kind))

    def side(self, kind: Kind, filter: Filter | None = None) -> Side:
        """The same for the tokens a filter admits."""
        ids = self.list_ids(filter)
        if ids is None:
            return self.whole(kind)
        key = self._key(kind), filter
        return SOME.get(self.weights.cache, key, lambda: self.whole(kind).only(ids))

    def top(
        self, X: Float[Tensor, "n d_model"], kind: Kind, k: int, filter: Filter | None = None
    ) -> TopVectors:
        """Both ends of the standardised (or plain) scores of vectors of a kind; rows that are not
        listed cost no copy of all others."""
        return self.whole(kind).top(self.shift(X, kind), k, self.list_ids(filter))

    def _key(self, kind: Kind) -> Shared:
        return self.sharing(kind), self._view, self._is_first(kind)

    def sharing(self, kind: Kind) -> Hashable:
        """The same for kinds that are read with one side: each has its own σ, if there are any."""
        options = self.weights.options
        return kind if options.calibrated or options.standardised else kind in WRITES

    def _is_first(self, kind: Kind) -> bool:
        return self.first and kind not in WRITES

    def _calibrate(self, kind: Kind) -> Side:
        side = self.writing if kind in WRITES else self.reading
        options = self.weights.options
        if not (options.calibrated or options.standardised) or kind in ("bias", "norm"):
            return side
        if not self._is_standard:
            return replace(side, sigma=self._sigma(side, kind))
        name = f"sigma-{self._name_view(kind)}"
        kept = keep(self.weights, name, lambda: {"sigma": self._sigma(side, kind)})
        return replace(side, sigma=kept["sigma"].to(side.rows.device))

    @property
    def _is_standard(self) -> bool:
        """Whether the view's scores are the standard ones, which are kept on disk."""
        here = replace(self._view, reading="effective", trained=True)
        return here == STANDARD and self.note == ""

    def _name_view(self, kind: Kind) -> str:
        side = "writing" if kind in WRITES else self.weights.options.reading
        return f"{kind}-{side}{'-first' * self._is_first(kind)}"

    def _sigma(self, side: Side, kind: Kind) -> Float[Tensor, "e"]:
        """By how the kind's vectors vary: around their mean, or around zero."""
        mean, second = usual(self.weights, kind, first=self._is_first(kind))
        around = mean if self.weights.options.standardised and bool(mean.any()) else None
        sigma = side.calibrate(second, self.list_ids(None), around).sigma
        assert sigma is not None
        return sigma

    def shift(self, X: Float[Tensor, "n d_model"], kind: Kind) -> Float[Tensor, "n d_model"]:
        """X less the mean vector of its kind, where the view standardises scores."""
        if not self.weights.options.standardised or kind not in CENTRED:
            return X
        first = self._is_first(kind)
        if self._is_standard:
            name = f"mean-{kind}{'-first' * first}"
            kept = keep(
                self.weights, name, lambda: {"mean": usual(self.weights, kind, first=first).mean}
            )
            mean = kept["mean"]
        else:
            mean = usual(self.weights, kind, first=first).mean
        X = at_least_float32(X)
        return X - mean.to(X)

    @property
    def note(self) -> str:
        """What a result has to say about how it was read; empty as a rule."""
        if self.weights.options.reading != "effective":
            return ""
        return effective_rows(self.weights, first=self.first)[1]

    def _rows(self, name: str) -> Float[Tensor, "e width"]:
        return ROWS.get(self.weights.cache, name, lambda: self._hold(self._read(name)))

    def _read(self, name: str) -> Float[Tensor, "e width"]:
        weights = self.weights
        if name == weights.architecture.unembed:
            name = weights.unembed_name
        return embedding(weights, name)

    def _hold(self, rows: Float[Tensor, "e width"]) -> Float[Tensor, "e width"]:
        rows = self.weights.place(rows)
        return at_least_float32(rows) if rows.numel() < UPCAST_BELOW else rows

    def _place(self, P: Tensor | None) -> Tensor | None:
        return None if P is None else at_least_float32(self.weights.place(P))

    def _centre(self, side: Side) -> Side:
        if not self.weights.options.centred:
            return side
        return replace(side, mean=self.mean(side))

    def mean(self, side: Side) -> Float[Tensor, "width"]:
        """μ, over the embeddings that belong to tokens."""
        ids = self.list_ids(None)
        total = at_least_float32(side.rows[:0]).sum(0)
        for block in side.blocks(ids):
            total += block.sum(0)
        return total / side.count(ids)

    @property
    def n_rows(self) -> int:
        """How many rows the output embedding has: more or fewer than there are tokens."""
        return len(self._rows(self.weights.architecture.unembed))

    # ------------------------------------------------------------------ tokens

    def list_ids(self, filter: Filter | None) -> Int[Tensor, "some"] | None:
        """The ids that may appear in results; None for all."""
        key = filter, self.weights.options.trained
        return ADMITTED.get(self.weights.cache, key, lambda: self._find_ids(filter))

    def _find_ids(self, filter: Filter | None) -> Int[Tensor, "some"] | None:
        vocabulary, n = self.weights.vocabulary, self.n_rows
        mask = vocabulary.mask(n)
        if filter is not None:
            mask = mask & filter.mask(vocabulary, n)
        if self.weights.options.trained:
            aside = torch.tensor([i for i in untrained(self.weights) if i < n], dtype=torch.long)
            mask = mask.index_fill(0, aside, False)
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

    def glossary(self, ids: Iterable[int]) -> Glossary:
        """Tokens as a result keeps them."""
        tokens = tuple(map(self.token, ids))
        return Glossary(tokens, self.n_rows, self.weights.architecture.causal)

    def source(self, address: str, filter: Filter | None = None) -> Source:
        """How a result at `address` was made."""
        return Source(
            self.weights.name,
            self.weights.checkpoint.revision,
            address,
            self.weights.options,
            "" if filter is None else filter.describe(),
            self.note,
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
        best = self.top(X, kind, k if k < 1 else max(k, WINDOW), filter)
        legibility = self.legibility(best.top_ids, kind).tolist()
        rows = zip(*(part[:, :k].tolist() for part in best), strict=True)
        return [
            Reading(
                self.source(address, filter),
                name or kind,
                self._list(top_ids, top_values),
                self._list(bottom_ids, bottom_values),
                legible,
            )
            for address, legible, (top_values, top_ids, bottom_values, bottom_ids) in zip(
                addresses, legibility, rows, strict=True
            )
        ]

    def score_tokens(
        self, scores: Float[Tensor, "n"], k: int, ids: Int[Tensor, "n"] | None
    ) -> tuple[tuple[Scored, ...], tuple[Scored, ...], float]:
        """Both ends of a list of scores, one per token, and the top's legibility."""
        if k < 1:
            raise LexrayError(f"asked for the top {k} tokens; k must be at least 1")
        n = min(max(k, WINDOW), len(scores))
        ends = []
        for descending in (True, False):
            order = scores.argsort(descending=descending, stable=True)[:n]
            at = order if ids is None else ids.to(order.device)[order]
            ends.append((at, scores[order]))
        legible = float(self.legibility(ends[0][0][None])[0])
        top, bottom = (self._list(at[:k].tolist(), values[:k].tolist()) for at, values in ends)
        return top, bottom, legible

    def _list(self, ids: list[int], values: list[float]) -> tuple[Scored, ...]:
        return tuple(Scored(self.token(i), value) for i, value in zip(ids, values, strict=True))

    def legibility(self, ids: Int[Tensor, "n k"], kind: Kind | None = None) -> Float[Tensor, "n"]:
        """How alike the words at the top of each list are; see `lexray.space.legibility`.

        `kind`: whose lists they are; readers' tokens are compared as they see them.
        """
        reads = kind is not None and kind not in WRITES
        sees = reads and self.weights.options.reading == "effective" and not self.note
        key = self.first if sees else None
        return legibility(WORDS.get(self.weights.cache, key, lambda: self._words(sees)), ids)

    def _words(self, sees: bool) -> WordColumns:
        """The words that may score, embedded as readers see them or as they are written."""
        bare = replace(self._view, centred=False, inverse="transpose", trained=False)
        seen = EmbeddingSpace(self.weights.with_view(bare), 0 if self.first else None)
        side = seen.reading if sees else Side(self._rows(self.weights.architecture.unembed))
        name = f"telling{'-seen' * sees}{'-first' * (sees and self.first)}"
        kept = keep(
            self.weights,
            name,
            lambda: words_of(side.rows, seen.mean(side), self._tell(len(side.rows))),
        )
        return WordColumns(side.rows, **kept).to(side.rows.device)

    def _tell(self, n: int) -> Bool[Tensor, "n"]:
        """Which of the first n tokens are words that say something."""
        vocabulary = self.weights.vocabulary
        says = vocabulary.mask(n)
        tells = telling(vocabulary, n) & says
        tells[[i for i in untrained(self.weights) if i < n]] = False
        return tells if int(tells.sum()) > 1 else says
