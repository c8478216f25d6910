"""Vectors that lie together: the linear, norm and slice that hold all keys, values, subheads …

One walk for everything that goes through a model's vectors: calibration, search, comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.families import Attention, Experts, FeedForward, Linear, Norm
from lexray.model.weights import Weights
from lexray.space.kinds import WRITES, Kind

AGAIN = 1.25
"""How many times a weight may be read for its vectors to come some at a time."""


@dataclass(frozen=True)
class Group:
    """Vectors of one kind in one weight: readers are its columns, writers its rows."""

    weights: Weights
    owner: Address
    """The head, feed-forward or expert they belong to."""
    kind: Kind
    linear: Linear
    norm: Norm | None
    """The one before a reader, or after a writer."""
    start: int
    n: int
    number: int = 0
    """Of the first one, where several weights are counted through (a mixer's)."""

    @property
    def read_in(self) -> Weights:
        """The stack whose embedding space they are read in: the encoder's, for what keys and values
        of cross-attention read."""
        reads_source = self.owner.cross and self.kind in ("K", "V")
        return self.weights.encoder if reads_source else self.weights

    @property
    def layer(self) -> int | None:
        """The layer of that stack in which they read; None behind all of them."""
        return self.owner.layer if self.read_in is self.weights else None

    @property
    def tensor(self) -> Float[Tensor, "n d_model"]:
        return self.rows(0, self.n)

    def rows(self, start: int, stop: int) -> Float[Tensor, "some d_model"]:
        """Some of the vectors; only these are read."""
        at = slice(self.start + start, self.start + stop)
        if self.kind in WRITES:
            return self.weights.writer(self.owner.layer, self.linear, self.norm, at)
        return self.weights.reader(self.owner.layer, self.linear, self.norm, at).T

    def blocks(self, most: int) -> Iterator[Float[Tensor, "_ d_model"]]:
        """All of them, at most so many at a time; read together where reading parts of a weight
        reads much of it again (a latent's first half), or asks a server for each of its lines."""
        starts = range(0, self.n, most)
        apart = sum(self._cost(start, min(start + most, self.n)) for start in starts)
        if len(starts) > 1 and (self.weights.checkpoint.remote or apart > self.cost * AGAIN):
            yield from torch.split(self.tensor, most)
        else:
            for start in starts:
                yield self.rows(start, min(start + most, self.n))

    @property
    def cost(self) -> int:
        """The bytes that reading all of them reads."""
        return self._cost(0, self.n)

    def _cost(self, start: int, stop: int) -> int:
        at = slice(self.start + start, self.start + stop)
        kept = {"inputs": at} if self.kind in WRITES else {"outputs": at}
        return self.linear.cost(self.weights.checkpoint, **kept)

    def address_of(self, i: int) -> str:
        if self.owner.head is not None or self.owner.mixer:
            return f"{self.owner}.{self.kind}{self.number + i}"
        return f"{self.owner}N{i}.{self.kind}"


def attention_of(weights: Weights, layer: int, *, cross: bool) -> Attention:
    """A layer's attention, or a decoder's to its source."""
    block = weights.architecture.blocks[layer]
    attention = block.cross if cross else block.attention
    if attention is None:
        raise LexrayError(
            f"L{layer} of {weights.name} has no cross-attention; its heads are L3H7 …"
        )
    return attention


def head_group(
    weights: Weights, layer: int, index: int, kind: Kind, *, cross: bool = False
) -> Group:
    """The columns of a query head's W_Q, W_K or W_V, or the rows of its W_O."""
    spec = attention_of(weights, layer, cross=cross)
    owner = weights.at(layer, head=index, cross=cross)
    if kind == "O":
        width = spec.v.d_head
        return Group(weights, owner, kind, spec.o, spec.post_norm, index * width, width)
    heads = {"Q": spec.q, "K": spec.k, "V": spec.v}[kind]
    start = heads.starts[index * len(heads.starts) // len(spec.q.starts)]
    return Group(weights, owner, kind, heads.linear, spec.norm_of(kind), start, heads.d_head)


def neuron_group(
    weights: Weights, owner: Address, ff: FeedForward, norms: FeedForward | Experts, kind: Kind
) -> Group | None:
    """The keys, gates or values of a feed-forward; None for the gates of one without."""
    linear = {"key": ff.w_in, "gate": ff.w_gate, "value": ff.w_out}[kind]
    if owner.shared and isinstance(norms, Experts):
        norms = norms.around_shared
    norm = norms.post_norm if kind == "value" else norms.pre_norm
    return None if linear is None else Group(weights, owner, kind, linear, norm, 0, ff.d_mlp)


def mixer_groups(weights: Weights, layer: int, kind: Kind) -> list[Group]:
    """The columns of the maps by which a mixer reads, counted through, or the rows by which it
    writes; none in a layer without a mixer."""
    mixer, owner = weights.architecture.blocks[layer].mixer, Address(layer, mixer=True)
    if mixer is None:
        return []
    if kind == "out":
        return [Group(weights, owner, kind, mixer.w_out, mixer.post_norm, 0, mixer.d_inner)]
    groups, number = [], 0
    for linear in mixer.inputs:
        n = linear.size or 0
        groups.append(Group(weights, owner, kind, linear, mixer.pre_norm, 0, n, number))
        number += n
    return groups


def feed_forwards(weights: Weights, layer: int) -> Iterator[tuple[Address, FeedForward]]:
    """The feed-forward of a layer, or each expert and then the shared one."""
    ff = weights.architecture.blocks[layer].ff
    if isinstance(ff, FeedForward):
        if not ff.absent:
            yield weights.at(layer), ff
        return
    for e, expert in enumerate(ff.experts):
        yield weights.at(layer, expert=e), expert
    if ff.shared is not None:
        yield weights.at(layer, shared=True), ff.shared


def layer_groups(weights: Weights, layer: int, kind: Kind) -> list[Group]:
    """The vectors of a kind: one group, or one per expert or head; shared K and V once."""
    block = weights.architecture.blocks[layer]
    if kind in ("key", "gate", "value"):
        groups = (
            neuron_group(weights, address, ff, block.ff, kind)
            for address, ff in feed_forwards(weights, layer)
        )
        return [group for group in groups if group is not None]
    if kind in ("in", "out"):
        return mixer_groups(weights, layer, kind)
    if kind not in ("Q", "K", "V", "O") or block.attention.absent:
        return []
    elsewhere = kind in ("K", "V") or block.merged  # among the encoder's, or the same vectors
    crossing = [] if elsewhere else cross_groups(weights, layer, kind)
    return [*_heads(weights, layer, kind), *crossing]


def _heads(weights: Weights, layer: int, kind: Kind, *, cross: bool = False) -> list[Group]:
    spec = attention_of(weights, layer, cross=cross)
    n = len(spec.q.starts)
    shared = n // len(spec.k.starts) if kind in ("K", "V") else 1
    return [head_group(weights, layer, i, kind, cross=cross) for i in range(0, n, shared)]


def cross_groups(weights: Weights, layer: int, kind: Kind) -> list[Group]:
    """The vectors of a kind in a decoder layer's cross-attention; none where there is none."""
    if weights.architecture.blocks[layer].cross is None or kind not in ("Q", "K", "V", "O"):
        return []
    return _heads(weights, layer, kind, cross=True)


def source_groups(weights: Weights, kind: Kind) -> Iterator[Group]:
    """Of an encoder: the keys and values of the decoder's cross-attention, which read it."""
    decoder = weights.decoder
    if decoder is None or kind not in ("K", "V"):
        return
    here = decoder.with_view(weights.options)
    for layer in range(len(here.architecture.blocks)):
        yield from cross_groups(here, layer, kind)


def all_groups(weights: Weights, kind: Kind) -> Iterator[Group]:
    """All vectors of a kind, group after group, layer after layer; what layers share once. What
    reads an encoder's output is among the encoder's."""
    blocks = weights.architecture.blocks
    for layer in weights.architecture.own_layers:
        if kind not in ("K", "V") or blocks[layer].attention.shares is None:
            yield from layer_groups(weights, layer, kind)
    yield from source_groups(weights, kind)
