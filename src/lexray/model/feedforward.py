"""The parts of a model: thin views that read from the checkpoint when they are asked.

Names and shapes are the field's: `W_Q`, `W_K`, `W_V` are d_model × d_head, `W_O` d_head × d_model,
`W_in` and `W_gate` d_model × d_mlp, `W_out` d_mlp × d_model; rows are hidden states. An absent bias
or gate is None. Seen through a folded view the norms are part of the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from lexray import families
from lexray.address import Address, LayerVector, Subhead
from lexray.errors import LexrayError
from lexray.families import Block, Experts
from lexray.families.activation import activation
from lexray.model.component import Component, Parts
from lexray.model.head import Head
from lexray.model.vectors import Vector, VectorGroup
from lexray.result.readings import NamedReadings
from lexray.space.kinds import Kind
from lexray.vocabulary.filters import Filter

if TYPE_CHECKING:
    from lexray.model.model import Model

__all__ = ["FeedForward", "Head", "Layer", "Mixture", "Neuron", "Parts"]


class Neuron(Component):
    """One feed-forward unit: it reads with its key (and gate), and writes its value."""

    def __init__(self, ff: FeedForward, index: int) -> None:
        super().__init__(ff.model, replace(ff.address, neuron=index))
        self.ff, self.index = ff, index
        self._at = slice(index, index + 1)

    @property
    def W_in(self) -> Float[Tensor, "d_model"]:
        """The key."""
        return self._read(self.ff.spec.w_in, self.ff.norms.pre_norm, self._at)[:, 0]

    @property
    def W_gate(self) -> Float[Tensor, "d_model"] | None:
        """The gate's key, in gated feed-forwards."""
        if self.ff.spec.w_gate is None:
            return None
        return self._read(self.ff.spec.w_gate, self.ff.norms.pre_norm, self._at)[:, 0]

    @property
    def W_out(self) -> Float[Tensor, "d_model"]:
        """The value."""
        return self._write(self.ff.spec.w_out, self.ff.norms.post_norm, self._at)[0]

    @property
    def b_in(self) -> Float[Tensor, ""] | None:
        bias = self._read_bias(self.ff.spec.w_in, self.ff.norms.pre_norm, self._at)
        return None if bias is None else bias[0]

    @property
    def b_gate(self) -> Float[Tensor, ""] | None:
        if self.ff.spec.w_gate is None:
            return None
        bias = self._read_bias(self.ff.spec.w_gate, self.ff.norms.pre_norm, self._at)
        return None if bias is None else bias[0]

    @property
    def b_out(self) -> Float[Tensor, "d_model"] | None:
        """The output bias, which all neurons of the feed-forward share."""
        return self.ff.b_out

    @property
    def key(self) -> Vector:
        """The key as a readable vector."""
        return self._vector("key", lambda: self.W_in)

    @property
    def gate(self) -> Vector:
        """The gate as a readable vector, in gated feed-forwards."""
        if self.ff.spec.w_gate is None:
            raise LexrayError(f"{self.address} has no gate: its feed-forward is not gated")
        gate = self.ff.spec.w_gate
        norm = self.ff.norms.pre_norm
        return self._vector("gate", lambda: self._read(gate, norm, self._at)[:, 0])

    @property
    def value(self) -> Vector:
        """The value as a readable vector."""
        return self._vector("value", lambda: self.W_out)

    def _vector(self, kind: Kind, read: Callable[[], Tensor]) -> Vector:
        return Vector(self.model, f"{self.address}.{kind}", kind, read)

    def top(self, k: int = 30, *, filter: Filter | None = None) -> NamedReadings:
        """Key, gate and value, each as tokens."""
        vectors = [self.key, *([self.gate] if self.ff.spec.w_gate else []), self.value]
        read = tuple(vector.top(k, filter=filter) for vector in vectors)
        return NamedReadings(self.model.space.source(str(self.address), filter), read)


class FeedForward(Component):
    """A dense feed-forward, or one expert of a mixture."""

    def __init__(
        self,
        model: Model,
        address: Address,
        spec: families.FeedForward,
        norms: families.FeedForward | Experts,
    ) -> None:
        super().__init__(model, address)
        self.spec = spec
        self.norms = norms
        """Whoever owns the norms around the sub-block: the feed-forward, or the mixture."""

    @property
    def d_mlp(self) -> int:
        return self.spec.d_mlp

    @property
    def neurons(self) -> Parts[Neuron]:
        return Parts("neuron", str(self.address), lambda i: Neuron(self, i), self.d_mlp)

    @property
    def W_in(self) -> Float[Tensor, "d_model d_mlp"]:
        return self._read(self.spec.w_in, self.norms.pre_norm)

    @property
    def W_gate(self) -> Float[Tensor, "d_model d_mlp"] | None:
        if self.spec.w_gate is None:
            return None
        return self._read(self.spec.w_gate, self.norms.pre_norm)

    @property
    def W_out(self) -> Float[Tensor, "d_mlp d_model"]:
        return self._write(self.spec.w_out, self.norms.post_norm)

    @property
    def b_in(self) -> Float[Tensor, "d_mlp"] | None:
        return self._read_bias(self.spec.w_in, self.norms.pre_norm)

    @property
    def b_gate(self) -> Float[Tensor, "d_mlp"] | None:
        if self.spec.w_gate is None:
            return None
        return self._read_bias(self.spec.w_gate, self.norms.pre_norm)

    @property
    def b_out(self) -> Float[Tensor, "d_model"] | None:
        return self._write_bias(self.spec.w_out, self.norms.post_norm)

    def group(self, kind: Kind) -> VectorGroup:
        """All keys, gates or values."""
        if kind == "gate" and self.spec.w_gate is None:
            raise LexrayError(f"{self.address} has no gates: its feed-forward is not gated")
        name = {"key": "W_in", "gate": "W_gate", "value": "W_out"}[kind]

        def read() -> Tensor:
            W: Tensor = getattr(self, name)
            return W if kind == "value" else W.T

        def address_of(i: int) -> str:
            return f"{replace(self.address, neuron=i)}.{kind}"

        return VectorGroup(self.model, str(self.address), kind, self.d_mlp, read, address_of)

    @property
    def keys(self) -> VectorGroup:
        return self.group("key")

    @property
    def gates(self) -> VectorGroup:
        return self.group("gate")

    @property
    def values(self) -> VectorGroup:
        return self.group("value")

    def coefficients(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_mlp"]:
        """By how much each neuron's value is added at inputs x."""
        act = activation(self.spec.activation)
        up = _affine(x, self.W_in, self.b_in)
        W_gate = self.W_gate
        return act(up) if W_gate is None else act(_affine(x, W_gate, self.b_gate)) * up

    def __call__(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
        """What the sub-block writes at inputs x."""
        return _affine(self.coefficients(x), self.W_out, self.b_out)


class Mixture(Component):
    """Experts and their router."""

    def __init__(self, model: Model, layer: int, spec: Experts) -> None:
        super().__init__(model, Address(layer))
        self.spec = spec

    @property
    def experts(self) -> Parts[FeedForward]:
        def make(e: int) -> FeedForward:
            address = replace(self.address, expert=e)
            return FeedForward(self.model, address, self.spec.experts[e], self.spec)

        return Parts("expert", str(self.address), make, len(self.spec.experts))

    @property
    def shared(self) -> FeedForward | None:
        """The expert that every token passes, if there is one."""
        if self.spec.shared is None:
            return None
        address = replace(self.address, shared=True)
        return FeedForward(self.model, address, self.spec.shared, self.spec)

    @property
    def W_router(self) -> Float[Tensor, "d_model n_experts"]:
        """One key per expert."""
        return self._read(self.spec.router, self.spec.pre_norm)

    def routing(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n n_experts"]:
        """The weight of each expert at inputs x; zero where it is not chosen."""
        weights = (x @ self.W_router.to(x)).softmax(-1)
        top, chosen = weights.topk(self.spec.top_k, dim=-1)
        if self.spec.normalise:
            top = top / top.sum(-1, keepdim=True)
        return torch.zeros_like(weights).scatter(-1, chosen, top)

    def __call__(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
        """What the sub-block writes at inputs x."""
        routing = self.routing(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            if routing[:, e].any():
                out = out + routing[:, e : e + 1] * expert(x)
        if (shared := self.shared) is None:
            return out
        extra = shared(x)
        if self.spec.shared_gate is not None:
            gate = self._read(self.spec.shared_gate, self.spec.pre_norm)
            extra = extra * (x @ gate.to(x)).sigmoid()
        return out + extra


class Layer(Component):
    """One block: its heads and its feed-forward."""

    def __init__(self, model: Model, index: int) -> None:
        super().__init__(model, Address(index))
        self.index = index
        self.spec: Block = model.architecture.blocks[index]

    @property
    def heads(self) -> Parts[Head]:
        n = len(self.spec.attention.q.starts)
        return Parts("head", str(self.address), lambda i: Head(self.model, self.index, i), n)

    @cached_property
    def ff(self) -> FeedForward | Mixture:
        """The feed-forward; in mixture-of-experts layers the `Mixture`."""
        if isinstance(self.spec.ff, Experts):
            return Mixture(self.model, self.index, self.spec.ff)
        return FeedForward(self.model, self.address, self.spec.ff, self.spec.ff)

    @property
    def feed_forwards(self) -> Iterator[FeedForward]:
        """The feed-forward, or each expert and then the shared one."""
        if isinstance(self.ff, FeedForward):
            yield self.ff
            return
        yield from self.ff.experts
        if self.ff.shared is not None:
            yield self.ff.shared

    def groups(self, kind: Kind) -> list[VectorGroup]:
        """The vectors of a kind: one group, or one per expert or head; shared K and V once."""
        if kind in ("key", "gate", "value"):
            return [
                ff.group(kind)
                for ff in self.feed_forwards
                if kind != "gate" or ff.spec.w_gate is not None
            ]
        if kind not in ("Q", "K", "V", "O"):
            return []
        shared = len(self.heads) // len(self.spec.attention.k.starts) if kind in ("K", "V") else 1
        return [head.subheads(kind) for head in self.heads[::shared]]

    @property
    def keys(self) -> VectorGroup:
        return self._joined("key")

    @property
    def gates(self) -> VectorGroup:
        return self._joined("gate")

    @property
    def values(self) -> VectorGroup:
        return self._joined("value")

    def subheads(self, side: Subhead) -> VectorGroup:
        """The subheads of all heads; keys and values that heads share are listed once."""
        return self._joined(side)

    def _joined(self, kind: Kind) -> VectorGroup:
        groups = self.groups(kind)
        if not groups:
            raise LexrayError(f"{self.address} has no {kind} vectors")
        places = [(group, i) for group in groups for i in range(group.n)]
        return VectorGroup(
            self.model,
            str(self.address),
            kind,
            len(places),
            lambda: torch.cat([group.tensor for group in groups]),
            lambda i: places[i][0].address_of(places[i][1]),
        )

    def vector(self, name: LayerVector) -> Vector:
        """A bias that the layer writes, or a norm's gain or bias, as a readable vector."""
        attention, ff = self.spec.attention, self.spec.ff
        checkpoint = self.model.checkpoint
        dense = next(iter(self.feed_forwards))
        norms = {
            "attn_norm": attention.pre_norm or attention.post_norm or attention.sum_norm,
            "mlp_norm": ff.pre_norm or ff.post_norm or ff.sum_norm,
        }
        stem = name.removesuffix("_bias")
        tensor: Tensor | None
        if name == "b_O":
            tensor = self.heads[0].b_O
        elif name == "b_out":
            tensor = dense.b_out
        else:
            norm = norms[stem]
            read = None if norm is None else (norm.read_gain if stem == name else norm.read_bias)
            tensor = None if read is None else read(checkpoint)
        if tensor is None:
            raise LexrayError(f"{self.address} has no {name}")
        found = self.model.place(tensor)
        kind: Kind = "bias" if name.startswith("b_") else "norm"
        return Vector(self.model, f"{self.address}.{name}", kind, lambda: found, name)


def _affine(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    y = x @ W.to(x)
    return y if b is None else y + b.to(x)
