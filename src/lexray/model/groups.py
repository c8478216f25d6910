"""Vectors that lie together: the linear, norm and slice that hold all keys, values, subheads …

One walk for everything that goes through a model's vectors: calibration, search, comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.families import Experts, FeedForward, Linear, Norm
from lexray.model.weights import Weights
from lexray.space.kinds import WRITES, Kind


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
    def tensor(self) -> Float[Tensor, "n d_model"]:
        return self.rows(0, self.n)

    def rows(self, start: int, stop: int) -> Float[Tensor, "some d_model"]:
        """Some of the vectors; only these are read."""
        at = slice(self.start + start, self.start + stop)
        if self.kind in WRITES:
            return self.weights.writer(self.owner.layer, self.linear, self.norm, at)
        return self.weights.reader(self.owner.layer, self.linear, self.norm, at).T

    @property
    def cost(self) -> int:
        """The bytes that reading all of them reads."""
        at = slice(self.start, self.start + self.n)
        kept = {"inputs": at} if self.kind in WRITES else {"outputs": at}
        return self.linear.cost(self.weights.checkpoint, **kept)

    def address_of(self, i: int) -> str:
        if self.owner.head is not None or self.owner.mixer:
            return f"{self.owner}.{self.kind}{self.number + i}"
        return f"{self.owner}N{i}.{self.kind}"


def head_group(weights: Weights, layer: int, index: int, kind: Kind) -> Group:
    """The columns of a query head's W_Q, W_K or W_V, or the rows of its W_O."""
    spec = weights.architecture.blocks[layer].attention
    owner = Address(layer, head=index)
    if kind == "O":
        width = spec.v.d_head
        return Group(weights, owner, kind, spec.o, spec.post_norm, index * width, width)
    heads = {"Q": spec.q, "K": spec.k, "V": spec.v}[kind]
    start = heads.starts[index * len(heads.starts) // len(spec.q.starts)]
    return Group(weights, owner, kind, heads.linear, spec.pre_norm, start, heads.d_head)


def neuron_group(
    weights: Weights, owner: Address, ff: FeedForward, norms: FeedForward | Experts, kind: Kind
) -> Group | None:
    """The keys, gates or values of a feed-forward; None for the gates of one without."""
    linear = {"key": ff.w_in, "gate": ff.w_gate, "value": ff.w_out}[kind]
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
    found, number = [], 0
    for linear in mixer.inputs:
        n = linear.size or 0
        found.append(Group(weights, owner, kind, linear, mixer.pre_norm, 0, n, number))
        number += n
    return found


def feed_forwards(weights: Weights, layer: int) -> Iterator[tuple[Address, FeedForward]]:
    """The feed-forward of a layer, or each expert and then the shared one."""
    ff = weights.architecture.blocks[layer].ff
    if isinstance(ff, FeedForward):
        if not ff.absent:
            yield Address(layer), ff
        return
    for e, expert in enumerate(ff.experts):
        yield Address(layer, expert=e), expert
    if ff.shared is not None:
        yield Address(layer, shared=True), ff.shared


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
    n = len(block.attention.q.starts)
    shared = n // len(block.attention.k.starts) if kind in ("K", "V") else 1
    return [head_group(weights, layer, i, kind) for i in range(0, n, shared)]


def all_groups(weights: Weights, kind: Kind) -> Iterator[Group]:
    """All vectors of a kind, group after group, layer after layer; what layers share once."""
    for layer in weights.architecture.own_layers:
        yield from layer_groups(weights, layer, kind)
