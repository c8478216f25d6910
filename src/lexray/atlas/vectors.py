"""Chunks of vectors: the lists of all keys, gates, values, subheads, biases, norms and routers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.address import LayerVector
from lexray.atlas.plan import AT_ONCE, Chunk, groups_at, sides_of
from lexray.atlas.schema import TABLES, round_scores
from lexray.errors import LexrayError
from lexray.model.feedforward import Mixture
from lexray.model.fold import at_least_float32
from lexray.model.groups import Group
from lexray.model.model import Model
from lexray.model.vectors import Vector
from lexray.model.weights import Weights
from lexray.space.kinds import Kind
from lexray.space.legibility import WINDOW
from lexray.space.space import space_of
from lexray.space.topk.vectors import TopVectors

Columns = dict[str, Any]


def read_vectors(model: Model, chunk: Chunk, k: int) -> pa.Table:
    """One kind of one layer, or some of them where they are many."""
    assert chunk.layer is not None
    start = AT_ONCE * (chunk.part or 0)
    whole = groups_at(model, chunk.stack, chunk.layer, chunk.kind)
    groups = [*between(whole, start, start + AT_ONCE)]
    X = torch.cat([group.rows(a, b) for group, a, b in groups])
    kind, stack, layer = whole[0].kind, whole[0].read_in, whole[0].layer
    owners = [str(group.owner) for group, a, b in groups for _ in range(a, b)]
    numbers = [i for _, a, b in groups for i in range(a, b)]
    addresses = [group.address_of(i) for group, a, b in groups for i in range(a, b)]
    parts = []
    for side in sides_of(model.options, kind):
        ends = list_ends(_see(stack, side), layer, X, kind, k)
        columns: Columns = {
            "address": addresses,
            "kind": [kind] * len(X),
            "side": [side] * len(X),
            "layer": [chunk.layer] * len(X),
            "owner": owners,
            "number": numbers,
            "norm": _norms(X),
            **ends,
        }
        parts.append(pa.table(columns, schema=TABLES["vectors"]))
    return pa.concat_tables(parts)


def between(groups: Sequence[Group], start: int, stop: int) -> Iterator[tuple[Group, int, int]]:
    """The parts of groups, put one after another, that lie between two places."""
    before = 0
    for group in groups:
        a, b = max(start - before, 0), min(stop - before, group.n)
        if a < b:
            yield group, a, b
        before += group.n


def _see(model: Weights, side: str) -> Weights:
    return model.view(reading="output") if side == "expects" else model


def _norms(X: Float[Tensor, "n d_model"]) -> Any:
    return at_least_float32(X).norm(dim=1).float().cpu().numpy()


def list_ends(
    seen: Weights, layer: int | None, X: Float[Tensor, "n d_model"], kind: Kind, k: int
) -> Columns:
    """Both ends of the lists of vectors, and their legibility, as columns."""
    space = space_of(seen, layer)
    best = space.top(X, kind, max(k, WINDOW))
    legible = space.legibility(best.top_ids, kind)
    return {"legibility": legible.float().numpy(), **as_columns(best, k)}


def as_columns(best: TopVectors, k: int) -> Columns:
    return {
        "top_ids": _lists(best.top_ids[:, :k].int()),
        "top_scores": _lists(best.top_values[:, :k].float()),
        "bottom_ids": _lists(best.bottom_ids[:, :k].int()),
        "bottom_scores": _lists(best.bottom_values[:, :k].float()),
    }


def _lists(x: Float[Tensor, "n k"] | Int[Tensor, "n k"]) -> pa.ListArray:
    flat = x.contiguous().cpu().numpy().reshape(-1)
    flat = round_scores(flat) if x.is_floating_point() else flat
    starts = np.arange(0, x.numel() + 1, max(1, x.shape[1]), dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(starts), pa.array(flat))


# ------------------------------------------------------------------ biases, norms and routers


def read_others(model: Model, chunk: Chunk, k: int) -> pa.Table:
    """What there is only a handful of: all layers together."""
    alike: dict[tuple[Kind, bool, bool], list[Vector]] = {}
    for stack in reversed(model.stacks):
        for vector in (*_layer_vectors(stack), *_final_norm(stack)):
            alike.setdefault((vector.kind, vector.layer == 0, stack is model), []).append(vector)
    rows = [_together(some, k) for some in alike.values()] + [*_routers(model, k)]
    return pa.concat_tables(rows) if rows else TABLES["vectors"].empty_table()


def _layer_vectors(model: Model) -> Iterator[Vector]:
    for layer in model.layers:
        for name in get_args(LayerVector):
            yield from _if_there(lambda layer=layer, name=name: layer.vector(name))  # type: ignore[misc]


def _final_norm(model: Model) -> Iterator[Vector]:
    yield from _if_there(lambda: model.final_norm("gain"))
    yield from _if_there(lambda: model.final_norm("bias"))


def _if_there(make: Callable[[], Vector]) -> Iterator[Vector]:
    """A bias or norm that this model may not have, or whose width is not the stream's."""
    try:
        vector = make()
    except LexrayError:
        return
    if vector.tensor.shape == (vector.weights.d_model,):
        yield vector


def _together(vectors: Sequence[Vector], k: int) -> pa.Table:
    """Vectors that are read alike."""
    X, first = torch.stack([vector.tensor for vector in vectors]), vectors[0]
    model = first.weights
    addresses = [vector.address for vector in vectors]
    columns: Columns = {
        "address": addresses,
        "kind": [first.kind] * len(X),
        "side": [sides_of(model.options, first.kind)[0]] * len(X),
        "layer": [vector.layer for vector in vectors],
        "owner": addresses,
        "number": [None] * len(X),
        "norm": _norms(X),
        **list_ends(model, first.layer, X, first.kind, k),
    }
    return pa.table(columns, schema=TABLES["vectors"])


def _routers(model: Model, k: int) -> Iterator[pa.Table]:
    """A router's keys, one for each expert: too few for statistics of their own, read plainly."""
    for layer in model.layers:
        if not isinstance(layer.ff, Mixture):
            continue
        X = layer.ff.W_router.T
        addresses = [f"{layer.address}E{e}" for e in range(len(X))]
        columns: Columns = {
            "address": addresses,
            "kind": ["router"] * len(X),
            "side": [sides_of(model.options, "router")[0]] * len(X),
            "layer": [layer.index] * len(X),
            "owner": addresses,
            "number": [None] * len(X),
            "norm": _norms(X),
            **list_ends(model, layer.index, X, "norm", k),
        }
        yield pa.table(columns, schema=TABLES["vectors"])
