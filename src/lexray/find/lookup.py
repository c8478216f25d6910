"""Searching a whole model: which parameters know a word, and which are alike.

Everything streams, layer by layer."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.model.vectors import Vector, VectorGroup
from lexray.progress import track
from lexray.result.readings import Reading, Source, Token
from lexray.result.table import Result, Table
from lexray.space.kinds import GROUPS, WRITES, Kind, kind_of
from lexray.space.side import gram
from lexray.vocabulary.filters import Filter


@dataclass(frozen=True)
class Hit:
    """A parameter that was found, and what it reads as."""

    score: float
    reading: Reading

    @property
    def address(self) -> str:
        return self.reading.source.address


@dataclass(frozen=True)
class Hits(Result):
    """Parameters in the order of a score."""

    source: Source
    title: str
    score: str
    """What the score is."""
    hits: tuple[Hit, ...]
    facts: dict[str, Any]

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, index: int) -> Hit:
        return self.hits[index]

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def tables(self) -> list[Table]:
        rows = tuple(
            (hit.address, hit.score, " ".join(hit.reading.tokens), hit.reading.legibility)
            for hit in self.hits
        )
        columns = ("address", self.score, "top tokens", "legibility")
        return [Table(columns, rows, self.title, str(self.source), frozenset({self.score}))]

    def csv_tables(self) -> list[Table]:
        columns = ("rank", "address", "score", "legibility", "tokens")
        rows = tuple(
            (i, hit.address, hit.score, hit.reading.legibility, " ".join(hit.reading.tokens))
            for i, hit in enumerate(self.hits)
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            **self.facts,
            "hits": [
                {
                    "address": hit.address,
                    "score": hit.score,
                    hit.reading.name: hit.reading.ends(),
                }
                for hit in self.hits
            ],
        }


class Lookup:
    """The answer of `Model.lookup`: every parameter's score; `.top(k)` reads the best of them."""

    def __init__(
        self,
        model: Anatomy,
        words: tuple[Token, ...],
        among: str,
        by: str,
        groups: list[VectorGroup],
        scores: Float[Tensor, "n"],
    ) -> None:
        self.model, self.words, self.among, self.by = model, words, among, by
        self._groups, self.scores = groups, scores

    def top(self, k: int = 10, *, tokens: int = 10, filter: Filter | None = None) -> Hits:
        """The k parameters with the largest scores, each with its top tokens."""
        at_least_one(k)
        order = self.scores.argsort(descending=True, stable=True)[:k]
        found = _located(self._groups, order.tolist())
        hits = tuple(
            Hit(float(self.scores[i]), vector.top(tokens, filter=filter))
            for i, vector in zip(order.tolist(), found, strict=True)
        )
        words = " ".join(word.shown for word in self.words)
        name = "cosine" if self.by == "cosine" else "dot product"
        return Hits(
            self.model.space.source("", filter),
            f"Of {len(self.scores):,} {self.among}, the nearest to {words}",
            name,
            hits,
            {"words": [w.to_dict() for w in self.words], "among": self.among, "by": self.by},
        )

    def rank(self, address: str) -> int:
        """The place of one parameter, from 0: `lookup.rank("L14N1215")`."""
        at = Address.parse(address)
        whole = at.neuron is not None and at.vector is None
        wanted = own_address(self.model, f"{at}.{kind_of(self.among)}" if whole else address)
        start = 0
        for group in self._groups:
            for i in range(group.n):
                if group.address_of(i) == wanted:
                    return int((self.scores > self.scores[start + i]).sum())
            start += group.n
        raise LexrayError(f"{address} is not among the {self.among} of {self.model.name}")

    def __rich__(self) -> Any:
        return self.top().__rich__()

    def __str__(self) -> str:
        return str(self.top())

    def _repr_html_(self) -> str:
        return self.top()._repr_html_()


def lookup(
    model: Anatomy, words: Sequence[str | int], among: str, *, by: Literal["dot", "cosine"] = "dot"
) -> Lookup:
    """Ranks all parameters of a group by their product with the words' mean centred embedding."""
    if by not in ("dot", "cosine"):
        raise LexrayError(f"lookup by {by!r}? by is 'dot' or 'cosine'")
    kind = kind_of(among)
    ids = seeds(model, words)
    groups = list(model.groups(kind))
    if not groups:
        raise LexrayError(f"{model.name} has no {among}")
    side = model.view(centred=True).space.whole(kind).only(torch.tensor(ids))
    direction = torch.cat(list(side.columns())).mean(0)
    scores = []
    for group in track(groups, len(groups), f"looking through {among}"):
        X = group.tensor.to(direction)
        score = X @ direction
        if by == "cosine":
            score = score / (X.norm(dim=1) * direction.norm()).clamp(min=1e-30)
        scores.append(score.cpu())
    tokens = tuple(model.space.token(i) for i in ids)
    return Lookup(model, tokens, among, by, groups, torch.cat(scores))


def seeds(model: Anatomy, words: Sequence[str | int]) -> list[int]:
    """A token for each word: itself, else itself at the start of a word; no silent first piece."""
    if isinstance(words, str):
        words = [words]
    if not words:
        raise LexrayError("lookup needs at least one word")
    return [_seed(model, word) for word in words]


def _seed(model: Anatomy, word: str | int) -> int:
    try:
        return model.space.id(word)
    except LexrayError:
        if isinstance(word, str) and not word.startswith((" ", "·")):
            try:
                return model.space.id(f" {word}")
            except LexrayError:
                pass
        raise


def at_least_one(n: int) -> None:
    if n < 1:
        raise LexrayError(f"asked for the top {n} parameters; at least 1 has to be wanted")


def own_address(model: Anatomy, address: str) -> str:
    """The address under which groups list a vector: shared keys and values by the first head."""
    at = Address.parse(address)
    if at.head is None or at.subhead not in ("K", "V"):
        return str(at)
    heads = model.layers[at.layer].heads
    first = next(head for head in heads if head.kv_index == heads[at.head].kv_index)
    return str(replace(at, head=first.index))


class Nearest(Hits):
    """The answer of `Model.nearest`."""


def nearest(
    model: Anatomy,
    address: str | Address,
    n: int = 20,
    *,
    among: Sequence[str] = (),
    tokens: int = 10,
) -> Nearest:
    """The parameters whose projections correlate most with this one's, in either direction.

    Projections are never built: with centred kernels K = E C E′ᵀ the correlation of xE and yE′ is
    x K yᵀ over the two norms. Those with a negative correlation read as its negation.
    """
    target = model[address]
    if not isinstance(target, Vector):
        raise LexrayError(
            f"{address} is no single vector; try L3N7.value, .key or .gate, or a subhead: L3H7.V12"
        )
    at_least_one(n)
    kinds = [kind_of(group) for group in (among or GROUPS)]
    groups = [group for kind in kinds for group in model.groups(kind)]
    if not groups:
        raise LexrayError(f"{model.name} has no {', '.join(among)}")
    kernels = _Kernels(model)
    x = target.tensor
    if not x.any():
        raise LexrayError(f"{address} is zero everywhere: nothing is near it")
    flat = torch.cat(
        [
            kernels.correlations(x, target.kind, group.tensor, group.kind)
            for group in track(groups, len(groups), f"comparing with {target.address}")
        ]
    )
    order = flat.abs().argsort(descending=True, stable=True)[: n + 1].tolist()
    itself = own_address(model, target.address)
    hits = [
        Hit(float(flat[i]), vector.top(tokens))
        for i, vector in zip(order, _located(groups, order), strict=True)
        if vector.address != itself
    ]
    title = f"Of {len(flat):,} parameters, the nearest to {target.address}"
    source = model.space.source(target.address)
    reading = target.top(tokens)
    facts = {"among": list(among or GROUPS), reading.name: reading.ends()}
    return Nearest(source, title, "correlation", tuple(hits[:n]), facts)


class _Kernels:
    """E C E′ᵀ for each pair of sides, over all tokens, made when first needed."""

    def __init__(self, model: Anatomy) -> None:
        self._space = model.space
        self._calibrated = model.options.calibrated
        self._made: dict[tuple[Hashable, Hashable], Tensor] = {}
        self._roots: dict[Hashable, Tensor] = {}

    def _side(self, kind: Kind) -> Hashable:
        """What tells sides apart: each kind has its own σ, if there are any."""
        return kind if self._calibrated else kind in WRITES

    def between(self, a: Kind, b: Kind) -> Float[Tensor, "d d"]:
        key = (self._side(a), self._side(b))
        if key not in self._made:
            one, other = (self._space.side(kind) for kind in (a, b))
            self._made[key] = gram(one, other, centred=True)
        return self._made[key]

    def root(self, kind: Kind) -> Float[Tensor, "d d"]:
        """L with L Lᵀ = E C Eᵀ, so that ‖y L‖ is the size of y's centred projection."""
        side = self._side(kind)
        if side not in self._roots:
            values, vectors = torch.linalg.eigh(self.between(kind, kind))
            self._roots[side] = vectors * values.clamp(min=0).sqrt()
        return self._roots[side]

    def correlations(
        self, x: Float[Tensor, "d"], a: Kind, Y: Float[Tensor, "n d"], b: Kind
    ) -> Float[Tensor, "n"]:
        """The correlation of x's projection with that of each row of Y."""
        cross, exact = self.between(a, b), x.to(self.between(a, b))
        Y = at_least_float32(Y)
        size = (exact @ self.root(a)).norm()
        sizes = (Y @ self.root(b).to(Y)).norm(dim=1)
        found: Tensor = Y @ (cross.T @ exact / size).to(Y) / sizes.clamp(min=1e-30)
        return found.cpu()


def _located(groups: list[VectorGroup], places: list[int]) -> list[Vector]:
    """The vectors at places counted through all groups."""
    starts, total = [], 0
    for group in groups:
        starts.append(total)
        total += group.n
    found = []
    for place in places:
        at = next(i for i in reversed(range(len(groups))) if starts[i] <= place)
        found.append(groups[at][place - starts[at]])
    return found
