"""The tokens that two models have in common, and the ids under which each knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.vocabulary.filters import Filter
from lexray.vocabulary.vocabulary import Vocabulary

LEAST = 3
"""Over fewer tokens every correlation is ±1 or nothing."""


@dataclass(frozen=True, eq=False)
class SharedTokens:
    """Each token's id in A and in B."""

    a: Int[Tensor, "n"]
    b: Int[Tensor, "n"]
    sizes: tuple[int, int]
    """How many tokens each model has."""
    filter: str = ""

    def __len__(self) -> int:
        return len(self.a)

    @property
    def same_ids(self) -> bool:
        return bool((self.a == self.b).all())

    def __str__(self) -> str:
        n, (a, b) = len(self), self.sizes
        how = "by id" if self.same_ids else "by string"
        tokens = f"{n:,} tokens" if n == a == b else f"{n:,} tokens of {a:,} and {b:,}"
        return f"{tokens}, matched {how}" + (f", only {self.filter}" if self.filter else "")

    def to_dict(self) -> dict[str, Any]:
        a, b = self.sizes
        return {
            "shared": len(self),
            "a": a,
            "b": b,
            "same_ids": self.same_ids,
            "filter": self.filter,
        }


def shared_tokens(a: Model, b: Model, filter: Filter | None = None) -> SharedTokens:
    """The tokens that both vocabularies and both embeddings have, and that a filter admits.

    Where all ids mean the same in both, as far as both go, ids are matched; otherwise strings, and
    of several tokens that stand for one string the most ordinary.
    """
    ids = [_embedded_ids(model) for model in (a, b)]
    sizes = (len(ids[0]), len(ids[1]))
    if _same_prefix(a.vocabulary, b.vocabulary):
        other = set(ids[1])
        pairs = [(i, i) for i in ids[0] if i in other]
    else:
        left, right = (_by_bytes(m.vocabulary, own) for m, own in zip((a, b), ids, strict=True))
        pairs = [(i, right[data]) for data, i in left.items() if data in right]
        pairs.sort()
    if filter is not None:
        mask = filter.mask(a.vocabulary, a.space.n_rows).tolist()
        admitted = [pair for pair in pairs if mask[pair[0]]]
        if len(admitted) < LEAST <= len(pairs):
            raise LexrayError(
                f"the filter ({filter.describe()}) leaves {len(admitted)} of the {len(pairs):,} "
                f"tokens that {a.name} and {b.name} share; at least {LEAST} are needed"
            )
        pairs = admitted
    if len(pairs) < LEAST:
        raise LexrayError(_different(a, b, sizes, len(pairs)))
    described = "" if filter is None else filter.describe()
    both = torch.tensor(pairs)
    return SharedTokens(both[:, 0].clone(), both[:, 1].clone(), sizes, described)


def _embedded_ids(model: Model) -> list[int]:
    """The ids that have a token and a row in every embedding that is read."""
    sides = (model.space.writing, model.space.reading)
    n = min(len(side.rows) for side in sides)
    return torch.nonzero(model.vocabulary.mask(n))[:, 0].tolist()


def _same_prefix(a: Vocabulary, b: Vocabulary) -> bool:
    """Whether the ids that both have mean the same; one may have more behind them."""
    if a is b or a.fingerprint == b.fingerprint:
        return True
    n = min(a.n_ids, b.n_ids)
    return n > 0 and a.all_shown[:n] == b.all_shown[:n]


def _by_bytes(vocabulary: Vocabulary, ids: list[int]) -> dict[bytes, int]:
    """Each string's token; special tokens are strings too."""
    table: dict[bytes, int] = {}
    known = set(ids)
    for i in ids:
        data = vocabulary.all_bytes[i]
        if not data:
            continue
        if data in table:
            ordinary = vocabulary.id(vocabulary.shown(i))
            table[data] = ordinary if ordinary in known else table[data]
        else:
            table[data] = i
    return table


def _different(a: Model, b: Model, sizes: tuple[int, int], n: int) -> str:
    some = [
        f"{model.name} has {size:,} tokens such as {_examples(model)}"
        for model, size in zip((a, b), sizes, strict=True)
    ]
    common = "no token" if n == 0 else f"only {n} token{'s' * (n > 1)}"
    return (
        f"models are compared through their vocabulary, and {a.name} and {b.name} have {common} in "
        f"common: {'; '.join(some)}"
    )


def _examples(model: Model) -> str:
    """A few tokens from the middle of the vocabulary, where they are ordinary."""
    ids = _embedded_ids(model)
    start = len(ids) // 2
    return " ".join(model.vocabulary.shown(i) for i in ids[start : start + 4])
