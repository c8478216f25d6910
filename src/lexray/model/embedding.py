"""The embeddings as they are stored, tokens as rows, for all who only look at them.

A quantised one has to be made, which takes time, and eight times the room that it has in its file.
So it is made once for all who look at it at a time, and lies in a file if it is large
(`lexray.scratch`). What a user asks for (`Weights.W_E`, `.W_U`) is read anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from weakref import WeakValueDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.model.cache import Drawer
from lexray.model.groups import AGAIN
from lexray.model.weights import Weights
from lexray.scratch import is_held, join_rows, rows_at_once

LOOKED_AT: Drawer[None, WeakValueDictionary[str, Tensor]] = Drawer(most=1)
"""By name, as long as somebody holds them."""


def unembedding(weights: Weights) -> Float[Tensor, "d_vocab width"]:
    """The output embedding."""
    return embedding(weights, weights.unembed_name)


def embedding(weights: Weights, name: str) -> Float[Tensor, "d_vocab width"]:
    """The embedding of this name."""
    if isinstance(weights.checkpoint, ModuleCheckpoint):  # whose weights may change
        return weights.tensor(name)
    known = LOOKED_AT.get(weights.cache, None, WeakValueDictionary)
    rows = known.get(name)
    if rows is None:
        rows = known[name] = _make(weights, name)
    return rows


def _make(weights: Weights, name: str) -> Float[Tensor, "d_vocab width"]:
    info = weights.checkpoint.info(name)
    size = prod(info.shape) * info.dtype.itemsize
    if is_held(size) or size <= weights.checkpoint.size(name):
        return weights.tensor(name)
    return join_rows(info.shape[0], read_rows(weights, name, size))


def read_rows(weights: Weights, name: str, size: int) -> Iterator[Float[Tensor, "_ _"]]:
    """A tensor that takes so many bytes once it is made, some rows at a time, unless reading these
    reads much of it again."""
    n = weights.checkpoint.info(name).shape[0]
    step, cost = rows_at_once(size // n), weights.checkpoint.cost
    slices = [slice(start, min(n, start + step)) for start in range(0, n, step)]
    if sum(cost(name, rows) for rows in slices) > AGAIN * cost(name):
        yield from torch.split(weights.tensor(name), step)
    else:
        yield from (weights.tensor(name, rows) for rows in slices)
