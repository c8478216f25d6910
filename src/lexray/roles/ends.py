"""The two ends of a link: what a part writes with, and what it reads with, as small matrices.

A neuron writes its value v and reads with its key or gate x: vectors. A head writes W_V W_O and
reads through W_Q W_Kᵀ (by its queries), W_K W_Qᵀ (by its keys) or W_V W_O (by its values). Of such
a d×d matrix only one side meets the other part, so the far side shrinks to r×r: with W_V = Q R,
‖W_V W_O X‖ = ‖R W_O X‖ for every X. So every writer is an r×d and every reader a d×r matrix, and

    strength = ‖C_w C_r‖_F / (‖C_w‖_F ‖C_r‖_F),

exact, and for two neurons the cosine. Norms are folded in; norms of queries and keys and rotations
are not part of it. Chance is what random directions with the same spread would give: the root mean
square of the strength over all writers of a kind in one layer and all readers of a kind in another,
√tr(S_w S_r) with S the mean of CᵀC / ‖C‖².
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.cache import Drawer
from lexray.model.fold import at_least_float32
from lexray.model.groups import Group, head_group, layer_groups
from lexray.model.weights import Weights
from lexray.space.kinds import Kind
from lexray.space.topk.arithmetic import full_precision

Via = Literal["key", "gate", "Q", "K", "V"]
NEURON_VIAS: tuple[Via, ...] = ("key", "gate")
HEAD_VIAS: tuple[Via, ...] = ("Q", "K", "V")
OTHER: dict[str, Kind] = {"Q": "K", "K": "Q", "V": "O", "O": "V"}
"""The far side of each side of a head."""

MakeEnd = Callable[[], "End | None"]
"""An end that is made when it is called."""

SPREADS: Drawer[tuple[str, int, bool], Tensor] = Drawer(most=8)
CHANCES: Drawer[tuple[str, int, str, int], float] = Drawer(most=2**16)


@dataclass(frozen=True)
class End:
    """All parts of one kind in one layer: their cores one after another, of `rank` rows each."""

    kind: Kind
    layer: int
    names: tuple[str, ...]
    rank: int
    cores: Float[Tensor, "n_rank d_model"]
    """Readers are transposed: rows are directions of the residual stream for both."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> Float[Tensor, "n"]:
        """‖C‖_F of each."""
        return self.cores.square().view(len(self), -1).sum(1).sqrt()

    @property
    def units(self) -> Float[Tensor, "n_rank d_model"]:
        """C / ‖C‖_F."""
        sizes = self.sizes.clamp(min=1e-30).repeat_interleave(self.rank)
        return self.cores / sizes[:, None]

    def core(self, i: int) -> Float[Tensor, "rank d_model"]:
        return self.cores[i * self.rank : (i + 1) * self.rank]


def fold_view(weights: Weights) -> Weights:
    """Wiring is about what passes from part to part: norms belong to it, whatever the view."""
    return weights if weights.options.folded else weights.view(folded=True)


def end(weights: Weights, layer: int, kind: Kind) -> End | None:
    """All writers (value, O) or readers (key, gate, Q, K, V) of a layer; None if there are none."""
    seen = fold_view(weights)
    if kind in ("value", "key", "gate"):
        groups = layer_groups(seen, layer, kind)
        if not groups:
            return None
        names = tuple(_name(group, i) for group in groups for i in range(group.n))
        cores = torch.cat([at_least_float32(group.tensor) for group in groups])
        return End(kind, layer, names, 1, cores)
    n = len(seen.architecture.blocks[layer].attention.q.starts)
    if not n:
        return None
    heads = [head_core(seen, layer, index, kind) for index in range(n)]
    suffix = "" if kind == "O" else f".{kind}"
    names = tuple(f"{seen.at(layer, head=index)}{suffix}" for index in range(n))
    return End(kind, layer, names, len(heads[0]), torch.cat(heads))


def _name(group: Group, i: int) -> str:
    """A neuron that writes is called by its own name, one that reads with the side it reads by."""
    address = group.address_of(i)
    return address.removesuffix(".value")


def head_core(
    weights: Weights, layer: int, index: int, kind: Kind, *, cross: bool = False
) -> Float[Tensor, "r d_model"]:
    """R W, where R is the triangular factor of the head's other side."""
    near, far = (
        at_least_float32(head_group(weights, layer, index, side, cross=cross).tensor)
        for side in (kind, OTHER[kind])
    )
    R = torch.linalg.qr(far.T.double(), mode="r").R
    with full_precision():
        core: Tensor = R.to(near) @ near
    return core


def spread(weights: Weights, layer: int, kind: Kind) -> Float[Tensor, "d_model d_model"]:
    """S: the mean of CᵀC / ‖C‖², of trace 1."""
    seen = fold_view(weights)

    def make() -> Tensor:
        part = end(seen, layer, kind)
        assert part is not None
        return spread_of(part)

    return SPREADS.get(seen.cache, (kind, layer, True), make)


def spread_of(part: End) -> Float[Tensor, "d_model d_model"]:
    """S of an end at hand."""
    units = part.units
    with full_precision():
        S: Tensor = units.T @ units / len(part)
    return S


def chance(weights: Weights, writer: tuple[Kind, int], reader: End) -> float:
    """√tr(S_w S_r): the root mean square strength between two layers' parts."""
    key = (*writer, reader.kind, reader.layer)

    def make() -> float:
        S = spread(weights, writer[1], writer[0])
        units = reader.units
        with full_precision():
            total = ((units @ S) * units).sum(dtype=torch.float64)
        return float((total / len(reader)).clamp(min=1e-30).sqrt())

    return CHANCES.get(weights.cache, key, make)


def comes_later(weights: Weights, writer: tuple[Kind, int], reader: tuple[Kind, int]) -> bool:
    """Whether what the writer adds to the stream can reach the reader; keys and values that a
    layer has from an earlier one read what that one does."""
    shared = weights.architecture.blocks[reader[1]].attention.shares
    if reader[0] in ("K", "V") and shared is not None:
        reader = reader[0], shared
    if writer[1] != reader[1]:
        return writer[1] < reader[1]
    parallel = weights.architecture.blocks[writer[1]].parallel
    return writer[0] == "O" and reader[0] in NEURON_VIAS and not parallel


@dataclass(frozen=True)
class WiredPart:
    """One head or neuron."""

    address: Address
    weights: Weights

    @classmethod
    def at(cls, weights: Weights, address: Address) -> WiredPart:
        bare = replace(address, matrix=None, vector=None)
        if bare.subhead is not None or (bare.head is None and bare.neuron is None):
            raise LexrayError(f"{address} is neither a head nor a neuron; try L3H7 or L12N345")
        return cls(bare, weights)

    @property
    def is_head(self) -> bool:
        return self.address.head is not None

    @property
    def kind(self) -> Kind:
        """Of what it writes."""
        return "O" if self.is_head else "value"

    def writing_end(self) -> End:
        return self._single(self.kind)

    def readers(self, via: Via | None) -> list[End]:
        """Each way in which it reads, or one."""
        there = self._head_vias if self.is_head else self._neuron_vias
        if via is not None and via not in there:
            raise LexrayError(f"{self.address} reads by {', '.join(there)}, not by {via!r}")
        return [self._single(each) for each in there if via in (None, each)]

    @property
    def _head_vias(self) -> tuple[Via, ...]:
        """Of cross-attention the queries alone read this stream."""
        return ("Q",) if self.address.cross else HEAD_VIAS

    @property
    def _neuron_vias(self) -> tuple[Via, ...]:
        kinds = end_kinds(self.weights, self.address.layer)
        return tuple(via for via in NEURON_VIAS if via in kinds)

    def _single(self, kind: Kind) -> End:
        layer, seen = self.address.layer, fold_view(self.weights)
        if self.is_head:
            assert self.address.head is not None
            core = head_core(seen, layer, self.address.head, kind, cross=self.address.cross)
            return End(kind, layer, (self._named(kind),), len(core), core)
        for group in layer_groups(seen, layer, kind):
            owner = replace(self.address, neuron=None)
            if group.owner == owner and self.address.neuron is not None:
                row = group.rows(self.address.neuron, self.address.neuron + 1)
                return End(kind, layer, (self._named(kind),), 1, at_least_float32(row))
        raise LexrayError(f"there is no {self.address} in {self.weights.name}")

    def _named(self, kind: Kind) -> str:
        return str(self.address) if kind in ("O", "value") else f"{self.address}.{kind}"


def end_kinds(weights: Weights, layer: int) -> tuple[Kind, ...]:
    """The kinds of readers that a layer has."""
    return tuple(kind for kind in get_args(Via) if layer_groups(weights, layer, kind))


def later_ends(
    weights: Weights, kind: Kind, layer: int, vias: tuple[Via, ...]
) -> Iterator[MakeEnd]:
    """What could read a writer's output, each made when it is called."""
    for other in range(layer, weights.n_layers):
        for via in vias:
            there = via in end_kinds(weights, other)
            if there and comes_later(weights, (kind, layer), (via, other)):
                yield partial(end, weights, other, via)


def earlier_ends(weights: Weights, kind: Kind, layer: int) -> Iterator[MakeEnd]:
    """What could have written a reader's input."""
    writers: tuple[Kind, ...] = ("O", "value")
    for other in range(layer + 1):
        for writer in writers:
            there = bool(layer_groups(weights, other, writer))
            if there and comes_later(weights, (writer, other), (kind, layer)):
                yield partial(end, weights, other, writer)


def strengths(writers: End, readers: End) -> Float[Tensor, "writers readers"]:
    """All strengths between two ends; signed between vectors."""
    with full_precision():
        product = writers.units @ readers.units.T
    if writers.rank == readers.rank == 1:
        return product
    blocks = product.view(len(writers), writers.rank, len(readers), readers.rank)
    return blocks.square().sum((1, 3), dtype=torch.float64).sqrt().to(product)
