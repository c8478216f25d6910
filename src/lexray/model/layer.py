"""A layer: its heads, its feed-forward, and what lies between them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

from torch import Tensor

from lexray.address import LayerVector, Subhead
from lexray.errors import LexrayError
from lexray.families import Block, Experts
from lexray.model.component import Component, Parts
from lexray.model.feedforward import FeedForward, Mixture
from lexray.model.groups import layer_groups
from lexray.model.head import Head
from lexray.model.mixer import Mixer, find_mixer
from lexray.model.vectors import Vector, VectorGroup
from lexray.model.weights import Weights
from lexray.space.kinds import Kind


class Layer(Component):
    """One block: its heads (or a mixer) and its feed-forward."""

    calls = ".heads[0], .ff"

    def __init__(self, weights: Weights, index: int) -> None:
        super().__init__(weights, weights.at(index))
        self.index = index
        self.spec: Block = weights.architecture.blocks[index]

    @property
    def heads(self) -> Parts[Head]:
        n = len(self.spec.attention.q.starts)
        instead = "" if n else self._instead

        def make(i: int) -> Head:
            return Head(self.weights, self.index, i)

        return Parts("head", str(self.address), make, n, instead)

    @property
    def _instead(self) -> str:
        """What a layer without heads has, and which layers have some."""
        blocks, mixer = self.weights.architecture.blocks, self.spec.mixer
        what = "a feed-forward" if mixer is None else f"a {mixer.kind} mixer, {self.address}.mixer"
        having = [str(n) for n, block in enumerate(blocks) if not block.attention.absent]
        return f"{what}; heads are in layers {', '.join(having) or 'none'}"

    @property
    def mixer(self) -> Mixer:
        """What stands in attention's place, or beside it, in hybrids."""
        return find_mixer(self.weights, self.index)

    @property
    def cross_heads(self) -> Parts[Head]:
        """The heads of a decoder's cross-attention; none elsewhere."""
        n = 0 if self.spec.cross is None else len(self.spec.cross.q.starts)
        make = partial(Head, self.weights, self.index, cross=True)
        return Parts("cross-attention head", str(self.address), make, n)

    @property
    def every_head(self) -> list[Head]:
        """Its heads, and those of cross-attention."""
        return [*self.heads, *self.cross_heads]

    @cached_property
    def ff(self) -> FeedForward | Mixture:
        """The feed-forward; in mixture-of-experts layers the `Mixture`."""
        if isinstance(self.spec.ff, Experts):
            return Mixture(self.weights, self.index, self.spec.ff)
        return FeedForward(self.weights, self.address, self.spec.ff, self.spec.ff)

    @property
    def feed_forwards(self) -> Iterator[FeedForward]:
        """The feed-forward, or each expert and then the shared one."""
        if isinstance(self.ff, FeedForward):
            if not self.spec.ff.absent:
                yield self.ff
            return
        yield from self.ff.experts
        if self.ff.shared is not None:
            yield self.ff.shared

    def groups(self, kind: Kind) -> list[VectorGroup]:
        """The vectors of a kind: one group, or one per expert or head; shared K and V once."""
        return [
            VectorGroup(str(group.owner), [group])
            for group in layer_groups(self.weights, self.index, kind)
        ]

    @property
    def keys(self) -> VectorGroup:
        return self._join("key")

    @property
    def gates(self) -> VectorGroup:
        return self._join("gate")

    @property
    def values(self) -> VectorGroup:
        return self._join("value")

    def subheads(self, side: Subhead) -> VectorGroup:
        """The subheads of all heads; keys and values that heads share are listed once."""
        return self._join(side)

    def _join(self, kind: Kind) -> VectorGroup:
        groups = layer_groups(self.weights, self.index, kind)
        if not groups:
            raise LexrayError(f"{self.address} has no {kind} vectors")
        return VectorGroup(str(self.address), groups)

    def vector(self, name: LayerVector) -> Vector:
        """A bias that the layer writes, or a norm's gain or bias, as a readable vector."""
        attention, ff, mixer = self.spec.attention, self.spec.ff, self.spec.mixer
        checkpoint = self.weights.checkpoint
        dense = next(iter(self.feed_forwards), None)
        norms = {
            "attn_norm": attention.pre_norm
            or attention.post_norm
            or attention.sum_norm
            or (None if mixer is None else mixer.pre_norm),
            "mlp_norm": ff.pre_norm or ff.post_norm or ff.sum_norm,
        }
        stem = name.removesuffix("_bias")
        tensor: Tensor | None
        if name == "b_O":
            tensor = self.weights.write_bias(attention.o, attention.post_norm)
        elif name == "b_out":
            tensor = None if dense is None else dense.b_out
        else:
            norm = norms[stem]
            read = None if norm is None else (norm.read_gain if stem == name else norm.read_bias)
            tensor = None if read is None else read(checkpoint)
        if tensor is None:
            raise LexrayError(f"{self.address} has no {name}")
        values = self.weights.place(tensor)
        kind: Kind = "bias" if name.startswith("b_") else "norm"
        return Vector(
            self.weights, f"{self.address}.{name}", kind, lambda: values, name, self.index
        )
