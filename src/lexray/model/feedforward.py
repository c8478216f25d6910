"""Feed-forwards and experts: thin views that read from the checkpoint when they are asked.

Names and shapes are the field's: `W_in` and `W_gate` are d_model × d_mlp, `W_out` d_mlp × d_model;
rows are hidden states. An absent bias or gate is None. Seen through a folded view the norms are
part of the matrices.
"""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from lexray import families
from lexray.address import Address
from lexray.errors import LexrayError
from lexray.families import Experts
from lexray.model.component import Component, Parts, Wired
from lexray.model.groups import neuron_group
from lexray.model.vectors import Vector, VectorGroup
from lexray.model.weights import Weights
from lexray.result.readings import NamedReadings
from lexray.space.kinds import Kind
from lexray.space.space import space_of
from lexray.vocabulary.filters import FilterLike, read_filter


class Neuron(Wired):
    """One feed-forward unit: it reads with its key (and gate), and writes its value."""

    calls = ".top(), .describe(), .evidence()"

    def __init__(self, ff: FeedForward, index: int) -> None:
        super().__init__(ff.weights, replace(ff.address, neuron=index))
        self.ff, self.index = ff, index
        self._at = slice(index, index + 1)

    @property
    def W_in(self) -> Float[Tensor, "d_model"]:
        """The key."""
        return self.key.tensor

    @property
    def W_gate(self) -> Float[Tensor, "d_model"] | None:
        """The gate's key, in gated feed-forwards."""
        return None if self.ff.spec.w_gate is None else self.gate.tensor

    @property
    def W_out(self) -> Float[Tensor, "d_model"]:
        """The value."""
        return self.value.tensor

    @property
    def b_in(self) -> Float[Tensor, ""] | None:
        """The key's bias; None without one."""
        bias = self.weights.read_bias(self.ff.spec.w_in, self.ff.norms.pre_norm, self._at)
        return None if bias is None else bias[0]

    @property
    def b_gate(self) -> Float[Tensor, ""] | None:
        """The gate's bias; None without one."""
        if self.ff.spec.w_gate is None:
            return None
        bias = self.weights.read_bias(self.ff.spec.w_gate, self.ff.norms.pre_norm, self._at)
        return None if bias is None else bias[0]

    @property
    def b_out(self) -> Float[Tensor, "d_model"] | None:
        """The output bias, which all neurons of the feed-forward share."""
        return self.ff.b_out

    @property
    def key(self) -> Vector:
        """The key as a readable vector."""
        return self.ff.keys[self.index]

    @property
    def gate(self) -> Vector:
        """The gate as a readable vector, in gated feed-forwards."""
        if self.ff.spec.w_gate is None:
            raise LexrayError(f"{self.address} has no gate: its feed-forward is not gated")
        return self.ff.gates[self.index]

    @property
    def value(self) -> Vector:
        """The value as a readable vector."""
        return self.ff.values[self.index]

    def top(self, k: int = 30, *, filter: FilterLike = None) -> NamedReadings:
        """Key, gate and value, each as tokens; key and gate twice where the view has two ways."""
        filter = read_filter(filter)
        vectors = [self.key, *([self.gate] if self.ff.spec.w_gate else []), self.value]
        read = [reading for vector in vectors for reading in vector.every(k, filter=filter)]
        space = space_of(self.weights, self.address.layer)
        return NamedReadings(space.source(str(self.address), filter), tuple(read))


class FeedForward(Component):
    """A dense feed-forward, or one expert of a mixture."""

    calls = ".neurons[0], .values[0].top()"

    def __init__(
        self,
        weights: Weights,
        address: Address,
        spec: families.FeedForward,
        norms: families.FeedForward | Experts,
    ) -> None:
        super().__init__(weights, address)
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
        return self.weights.reader(self.address.layer, self.spec.w_in, self.norms.pre_norm)

    @property
    def W_gate(self) -> Float[Tensor, "d_model d_mlp"] | None:
        if self.spec.w_gate is None:
            return None
        return self.weights.reader(self.address.layer, self.spec.w_gate, self.norms.pre_norm)

    @property
    def W_out(self) -> Float[Tensor, "d_mlp d_model"]:
        return self.weights.writer(self.address.layer, self.spec.w_out, self.norms.post_norm)

    @property
    def b_in(self) -> Float[Tensor, "d_mlp"] | None:
        return self.weights.read_bias(self.spec.w_in, self.norms.pre_norm)

    @property
    def b_gate(self) -> Float[Tensor, "d_mlp"] | None:
        if self.spec.w_gate is None:
            return None
        return self.weights.read_bias(self.spec.w_gate, self.norms.pre_norm)

    @property
    def b_out(self) -> Float[Tensor, "d_model"] | None:
        return self.weights.write_bias(self.spec.w_out, self.norms.post_norm)

    def group(self, kind: Kind) -> VectorGroup:
        """All keys, gates or values."""
        group = neuron_group(self.weights, self.address, self.spec, self.norms, kind)
        if group is None:
            raise LexrayError(f"{self.address} has no gates: its feed-forward is not gated")
        return VectorGroup(str(self.address), [group])

    @property
    def keys(self) -> VectorGroup:
        return self.group("key")

    @property
    def gates(self) -> VectorGroup:
        return self.group("gate")

    @property
    def values(self) -> VectorGroup:
        return self.group("value")


class Mixture(Component):
    """Experts and their router."""

    calls = ".experts[0]"

    def __init__(self, weights: Weights, layer: int, spec: Experts) -> None:
        super().__init__(weights, weights.at(layer))
        self.spec = spec

    @property
    def experts(self) -> Parts[FeedForward]:
        def make(e: int) -> FeedForward:
            address = replace(self.address, expert=e)
            return FeedForward(self.weights, address, self.spec.experts[e], self.spec)

        return Parts("expert", str(self.address), make, len(self.spec.experts))

    @property
    def shared(self) -> FeedForward | None:
        """The expert that every token passes, if there is one."""
        if self.spec.shared is None:
            return None
        address = replace(self.address, shared=True)
        return FeedForward(self.weights, address, self.spec.shared, self.spec.around_shared)

    @property
    def W_router(self) -> Float[Tensor, "d_model n_experts"]:
        """One key per expert."""
        norm = self.spec.router_norm or self.spec.pre_norm
        return self.weights.reader(self.address.layer, self.spec.router, norm)
