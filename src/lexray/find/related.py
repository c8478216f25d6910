"""Neurons that write what they read: key and value share many of their top tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.vectors import VectorGroup
from lexray.progress import track
from lexray.result.format import show_percent
from lexray.result.readings import Source, Token
from lexray.result.table import Result, Table
from lexray.space.topk.vectors import members, rows_at_once


@dataclass(frozen=True)
class RelatedNeuron:
    """A neuron whose key and value share tokens."""

    address: str
    shared: int
    overlap: float
    jaccard: float
    tokens: tuple[Token, ...]
    """Some of the shared ones."""


@dataclass(frozen=True)
class Related(Result):
    """Neurons that read much of what they write."""

    source: Source
    k: int
    overlap: float
    read: str
    n_neurons: int
    neurons: tuple[RelatedNeuron, ...]

    @property
    def share(self) -> float:
        """Of all neurons."""
        return len(self.neurons) / max(1, self.n_neurons)

    def __len__(self) -> int:
        return len(self.neurons)

    def __getitem__(self, index: int) -> RelatedNeuron:
        return self.neurons[index]

    def tables(self) -> list[Table]:
        rows = tuple(
            (n.address, n.shared, n.overlap, n.jaccard, " ".join(t.shown for t in n.tokens))
            for n in self.neurons
        )
        title = (
            f"{len(self.neurons):,} of {self.n_neurons:,} neurons ({show_percent(self.share, 1)}) "
            f"share at least {100 * self.overlap:g} % of the top {self.k} tokens of {self.read} "
            "and value"
        )
        columns = ("address", "shared", "|∩| / k", "Jaccard", "shared tokens")
        return [Table(columns, rows, title, str(self.source))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "k": self.k,
            "overlap": self.overlap,
            "read": self.read,
            "n_neurons": self.n_neurons,
            "share": self.share,
            "neurons": [
                {
                    "address": n.address,
                    "shared": n.shared,
                    "overlap": n.overlap,
                    "jaccard": n.jaccard,
                    "tokens": [t.to_dict() for t in n.tokens],
                }
                for n in self.neurons
            ],
        }


def related(
    model: Anatomy, k: int = 100, overlap: float = 0.15, *, read: Literal["key", "gate"] = "key"
) -> Related:
    """Neurons whose key (or gate) and value share at least `overlap` of their top-k tokens."""
    if read not in ("key", "gate"):
        raise LexrayError(f"related by the {read!r}? read is 'key' or 'gate'")
    readers = list(model.groups(read))
    if not readers:
        raise LexrayError(f"{model.name} has no {read}s")
    pairs = list(zip(readers, model.groups("value"), strict=True))
    total = sum(keys.n for keys, _ in pairs)
    each = (n for keys, values in pairs for n in _compare(model, keys, values, k, overlap))
    found = track(each, total, f"comparing {read}s and values")
    neurons = sorted((n for n in found if n is not None), key=lambda neuron: -neuron.shared)
    return Related(model.space.source(""), k, overlap, read, total, tuple(neurons))


def _compare(
    model: Anatomy, keys: VectorGroup, values: VectorGroup, k: int, overlap: float
) -> Iterator[RelatedNeuron | None]:
    """Each neuron of a layer, as many at a time as are scored together; None for those that share
    less."""
    start, step = 0, max(1, rows_at_once(keys.weights.d_vocab))
    for X, Y in _pieces(keys, values, step):
        a = keys.space.top(X, keys.kind, k).top_ids.cpu()
        b = values.space.top(Y, "value", k).top_ids.cpu()
        shared, size = members(a, b), a.shape[1]
        for i, n in enumerate(shared.sum(1).tolist()):
            if n / size < overlap:
                yield None
                continue
            common = a[i][shared[i]][:8].tolist()
            yield RelatedNeuron(
                keys.address_of(start + i).rpartition(".")[0],
                n,
                n / size,
                n / (2 * size - n),
                tuple(map(model.space.token, common)),
            )
        start += len(X)


def _pieces(keys: VectorGroup, values: VectorGroup, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    for X, Y in zip(keys.blocks(), values.blocks(), strict=True):
        yield from zip(torch.split(X, step), torch.split(Y, step), strict=True)
