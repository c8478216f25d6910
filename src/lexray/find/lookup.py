"""Searching a whole model: which parameters know a word.

Everything streams, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.find.hits import Hit, Hits, at_least_one, own_address, readings_at
from lexray.model.anatomy import Anatomy
from lexray.model.vectors import VectorGroup
from lexray.progress import track
from lexray.result.readings import Token
from lexray.space.kinds import kind_of
from lexray.vocabulary.filters import Filter


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
        order = self.scores.argsort(descending=True, stable=True)[:k].tolist()
        read = readings_at(self._groups, order, tokens, filter)
        scores = self.scores[order].tolist()
        hits = tuple(map(Hit, scores, read))
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
