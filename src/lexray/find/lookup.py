"""Searching a whole model: which parameters know a word, or read like a vector of the user's.

Everything streams, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.choice import Some, choose
from lexray.errors import LexrayError
from lexray.find.hits import (
    Hit,
    Hits,
    Searched,
    at_least_one,
    own_address,
    read_at,
    shared_key,
    turn,
)
from lexray.find.prominence import Score, prominence
from lexray.model.anatomy import Anatomy
from lexray.progress import track
from lexray.result.readings import Token
from lexray.space.correlation import Kernels
from lexray.space.kinds import Kind, kind_of
from lexray.space.legibility import WINDOW
from lexray.space.space import EmbeddingSpace
from lexray.vocabulary.filters import Filter, FilterLike, read_filter

By = Literal["standard", "dot", "cosine"]
LOOKED_AT = 1000
"""So many of the best are looked at where only legible ones are wanted."""
SCORES = {"standard": "standard score", "dot": "dot product", "cosine": "cosine"}


@dataclass(frozen=True, eq=False)
class Lookup:
    """The answer of `Model.lookup`: every parameter's score; `.top(k)` reads the best of them."""

    model: Anatomy
    words: tuple[Token, ...]
    """None of them if a vector was looked up."""
    among: tuple[str, ...]
    by: By
    groups: tuple[Searched, ...]
    scores: Float[Tensor, "n"]
    suppressed: bool = False
    """Whether those come first that push the words down."""

    def top(
        self,
        k: int = 10,
        *,
        tokens: int = 10,
        filter: FilterLike = None,
        layers: Some = None,
        legible: float | None = None,
    ) -> Hits:
        """The k parameters with the largest scores, each with its top tokens.

        Of those that push words down it is the smallest scores, and their bottom tokens. `layers`:
        only those of these layers; `legible`: only lists at least so legible, among the best
        thousand.
        """
        at_least_one(k)
        filter = read_filter(filter)
        order = self._order(layers)
        if legible is None:
            hits = tuple(self._hits(order[:k], tokens, filter))
        else:
            hits = tuple(self._legible(order, k, tokens, filter, legible))
        title = f"Of {len(self.scores):,} {self._where}, {self._sought}"
        name = "correlation" if not self.words and self.by == "standard" else SCORES[self.by]
        facts = {
            "words": [word.to_dict() for word in self.words],
            "among": self.among[0] if len(self.among) == 1 else list(self.among),
            "by": self.by,
        }
        shown = tuple(word.shown for word in self.words)
        return Hits(self.model.space.source("", filter), title, name, hits, facts, shown)

    def _order(self, layers: Some) -> list[int]:
        """The places of the parameters, the best first."""
        order = self.scores.argsort(descending=not self.suppressed, stable=True)
        if layers is None:
            return order.tolist()
        wanted = {*choose(layers, self.model.n_layers, "layer")}
        inside = [Address.parse(group.address_of(0)).layer in wanted for group in self.groups]
        sizes = torch.tensor([group.n for group in self.groups])
        admitted = torch.tensor(inside).repeat_interleave(sizes)
        return order[admitted[order]].tolist()

    def _legible(
        self, order: list[int], k: int, tokens: int, filter: Filter | None, least: float
    ) -> Iterator[Hit]:
        """The first k that read well enough, a few at a time."""
        left, step = k, max(k, LOOKED_AT // 20)
        for start in range(0, min(len(order), LOOKED_AT), step):
            for hit in self._hits(order[start : start + step], tokens, filter):
                if hit.reading.legibility >= least:
                    yield hit
                    left -= 1
                    if not left:
                        return

    @property
    def _where(self) -> str:
        return " and ".join(self.among)

    @property
    def _sought(self) -> str:
        words = " ".join(word.shown for word in self.words)
        if not words:
            return "the most like the given vector"
        return f"those that push down {words}" if self.suppressed else f"the nearest to {words}"

    def _hits(self, order: list[int], tokens: int, filter: Filter | None) -> Iterator[Hit]:
        ids = [word.id for word in self.words]
        k = max(tokens, WINDOW) if self.suppressed else tokens
        down = self.suppressed
        read = read_at(self.groups, order, k, filter=filter, words=ids, suppressed=down)
        for i, (reading, ranks) in zip(order, read, strict=True):
            shown = turn(self.model, reading, tokens) if down else reading
            yield Hit(float(self.scores[i]), shown, ranks, down)

    def rank(self, address: str) -> int:
        """The place of one parameter, from 0: `lookup.rank("L14N1215")`."""
        at = Address.parse(address)
        whole = at.neuron is not None and at.vector is None
        wanted = "" if whole else own_address(self.model, address)
        start = 0
        for group in self.groups:
            for i in range(group.n):
                name = group.address_of(i)
                if name == wanted or (whole and name == f"{at}.{group.kind}"):
                    mine = self.scores[start + i]
                    ahead = self.scores < mine if self.suppressed else self.scores > mine
                    return int(ahead.sum())
            start += group.n
        raise LexrayError(f"{address} is not among the {self._where} of {self.model.name}")

    def __rich__(self) -> Any:
        return self.top().__rich__()

    def __str__(self) -> str:
        return str(self.top())

    def _repr_html_(self) -> str:
        return self.top()._repr_html_()


def lookup(
    model: Anatomy,
    words: str | int | Sequence[str | int],
    among: str | Sequence[str] = "values",
    *,
    by: By = "standard",
    suppressed: bool = False,
    groups: Sequence[Searched] | None = None,
) -> Lookup:
    """Ranks all parameters of some groups by how they score these words, on average.

    By "standard" the score is how many standard deviations of its own list a parameter gives a
    word, see `lexray.find.prominence`; by "dot" and "cosine" it is the product with the words' mean
    centred embedding, as in the paper. `groups`: what is searched instead of the model itself.
    """
    names = _name_kinds(among, by)
    ids = seeds(model, words)
    searched = groups_of(model, names) if groups is None else tuple(groups)

    def score(space: EmbeddingSpace, kind: Kind) -> Score:
        if by == "standard":
            return prominence(space.with_view(standardised=True), kind).towards(ids)
        side = space.with_view(centred=True).whole(kind).only(torch.tensor(ids))
        return _along(torch.cat(list(side.columns())).mean(0), by)

    tokens = tuple(model.space.token(i) for i in ids)
    scores = score_all(searched, score, f"looking through {' and '.join(names)}")
    return Lookup(model, tokens, names, by, searched, scores, suppressed)


def lookup_vector(
    model: Anatomy,
    x: Float[Tensor, "d_model"],
    among: str | Sequence[str] = "values",
    *,
    kind: Kind = "value",
    by: By = "standard",
    space: EmbeddingSpace | None = None,
    groups: Sequence[Searched] | None = None,
) -> Lookup:
    """Ranks all parameters of some groups by how much they are like a vector.

    By "standard" that is the correlation of the two lists of scores, the vector read as a `kind`
    (in `space`, if that is not the model's own); by "dot" and "cosine" that of the vectors.
    """
    names = _name_kinds(among, by)
    searched = groups_of(model, names) if groups is None else tuple(groups)
    own = model.space if space is None else space
    if not x.any():
        raise LexrayError("the vector is zero everywhere: nothing is like it")

    def score(space: EmbeddingSpace, other: Kind) -> Score:
        if by != "standard":
            return _along(x, by)
        ids = space.list_ids(None)
        kernel = Kernels(own, space, ids, ids).between(kind, other)
        correlate = kernel.correlations_with(own.shift(x[None], kind)[0])
        return lambda X: correlate(space.shift(X, other))

    scores = score_all(searched, score, f"looking through {' and '.join(names)}")
    return Lookup(model, (), names, by, searched, scores)


def _name_kinds(among: str | Sequence[str], by: str) -> tuple[str, ...]:
    if by not in get_args(By):
        raise LexrayError(f"lookup by {by!r}? by is {', '.join(map(repr, get_args(By)))}")
    names = (among,) if isinstance(among, str) else tuple(among)
    if not names:
        raise LexrayError("lookup among nothing? among is values, keys, gates, Q, K, V or O")
    return names


def groups_of(model: Anatomy, names: Sequence[str]) -> tuple[Searched, ...]:
    """All vectors of these groups; those that the model does not have are left out."""
    groups = tuple(group for name in names for group in model.groups(kind_of(name)))
    if not groups:
        raise LexrayError(f"{model.name} has no {' and no '.join(names)}")
    return groups


def score_all(
    groups: Sequence[Searched], make: Callable[[EmbeddingSpace, Kind], Score], what: str
) -> Float[Tensor, "n"]:
    """Every vector's score; what the score needs is made once for each kind and space."""
    made: dict[Hashable, Score] = {}
    scores: list[Tensor] = []
    for group in track(groups, len(groups), what):
        key = shared_key(group)
        if key not in made:
            made[key] = make(group.space, group.kind)
        scores += [made[key](block).cpu() for block in group.blocks()]
    return torch.cat(scores)


def _along(direction: Float[Tensor, "d_model"], by: By) -> Score:
    """The product with a direction, or the cosine."""

    def score(X: Float[Tensor, "n d_model"]) -> Float[Tensor, "n"]:
        X = X.to(direction)
        product: Tensor = X @ direction
        if by == "dot":
            return product
        cosine: Tensor = product / (X.norm(dim=1) * direction.norm()).clamp(min=1e-30)
        return cosine

    return score


def seeds(model: Anatomy, words: str | int | Sequence[str | int]) -> list[int]:
    """A token for each word: itself, else itself at the start of a word; no silent first piece."""
    if isinstance(words, str | int):
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
