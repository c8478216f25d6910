"""One block of a trace at one position: what was recorded, beside the weights that were at work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.families import Block
from lexray.model.anatomy import Anatomy
from lexray.model.cache import Drawer
from lexray.model.feedforward import FeedForward
from lexray.model.fold import at_least_float32
from lexray.model.layer import Layer
from lexray.trace.record.module import MODULE
from lexray.trace.trace import LayerTrace, Trace

Neuron = tuple[str, int]
"""The address of a feed-forward or an expert, and a neuron's number in it."""


LIVE: Drawer[None, Anatomy] = Drawer(most=1)


def live(model: Anatomy) -> Anatomy:
    """The raw model, read from the module that ran it if that is in memory."""
    raw = model.view(folded=False)
    module = MODULE.peek(model.cache, None)
    if module is None or isinstance(model.checkpoint, ModuleCheckpoint):
        return raw

    def make() -> Anatomy:
        return Anatomy(
            ModuleCheckpoint(module),
            vocabulary=model.vocabulary,
            family=model.family.name,
            config=model.config,
            device=next(module.parameters()).device,
        )

    return LIVE.get(model.cache, None, make)


@dataclass(frozen=True, eq=False)
class Step:
    """What happened in a block at a position, in float32 at least, where the weights are."""

    trace: Trace
    layer: Layer
    position: int

    @property
    def index(self) -> int:
        return self.layer.index

    @property
    def spec(self) -> Block:
        return self.layer.spec

    @cached_property
    def recorded(self) -> LayerTrace:
        return self.trace[self.index]

    def at(self, x: Float[Tensor, "p *rest"]) -> Float[Tensor, "*rest"]:
        """A recorded part at this position."""
        return self.placed(x[self.trace.row(self.position)])

    def placed(self, x: Tensor) -> Tensor:
        return at_least_float32(x.to(self.layer.weights.device))

    # ------------------------------------------------------------------ attention

    @cached_property
    def W_O(self) -> Float[Tensor, "n_heads d_head d_model"]:
        heads = self.spec.attention.q
        W = self.layer.weights.place(self.spec.attention.o.read(self.layer.weights.checkpoint))
        return at_least_float32(W).reshape(len(heads.starts), heads.d_head, -1)

    @cached_property
    def z(self) -> Float[Tensor, "n_heads d_head"]:
        """By how much each row of W_O is added."""
        return self.at(self.recorded.z)

    @cached_property
    def heads(self) -> Float[Tensor, "n_heads d_model"]:
        """What each head writes."""
        return torch.einsum("hr,hrd->hd", self.z, self.W_O)

    @cached_property
    def pattern(self) -> Float[Tensor, "n_heads n"]:
        return self.placed(self.recorded.pattern[:, self.trace.row(self.position)])

    @cached_property
    def v(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        return self.placed(self.recorded.v)

    @property
    def own_values(self) -> Float[Tensor, "d_model"]:
        """Σ_j v_j W_O^j: this position's own values."""
        shared = len(self.z) // self.v.shape[1]
        own = self.v[self.position].repeat_interleave(shared, 0)
        return torch.einsum("hr,hrd->d", own, self.W_O)

    def values(self, head: int) -> Float[Tensor, "n d_head"]:
        return self.v[:, self.layer.heads[head].kv_index]

    # ------------------------------------------------------------------ feed-forward

    @cached_property
    def _active(self) -> list[tuple[FeedForward, Float[Tensor, "d_mlp"], float]]:
        """The feed-forwards that wrote, their coefficients, and the weights of their biases."""
        ours = {str(ff.address): ff for ff in self.layer.feed_forwards}
        return [
            (ours[str(a.ff.address)], self.placed(a.coefficients), a.weight)
            for a in self.recorded.active(self.position)
        ]

    @property
    def feed_forwards(self) -> list[tuple[FeedForward, float]]:
        """Those that wrote, and by how much their output biases were added."""
        return [(ff, weight) for ff, _, weight in self._active]

    @cached_property
    def coefficients(self) -> Float[Tensor, "n_neurons"]:
        """By how much the value of each neuron was added, over all feed-forwards that wrote."""
        return torch.cat([coefficients for _, coefficients, _ in self._active])

    @cached_property
    def W_out(self) -> Float[Tensor, "n_neurons d_model"]:
        parts = [at_least_float32(ff.W_out) for ff, _, _ in self._active]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @cached_property
    def _starts(self) -> dict[str, tuple[int, FeedForward]]:
        found, start = {}, 0
        for ff, coefficients, _ in self._active:
            found[str(ff.address)] = (start, ff)
            start += len(coefficients)
        return found

    def place_of(self, neuron: Neuron) -> int | None:
        """Where a neuron is among `coefficients`; None if its expert was not chosen."""
        start, ff = self._starts.get(neuron[0], (0, None))
        return None if ff is None or neuron[1] >= ff.d_mlp else start + neuron[1]

    def neurons(self, places: Iterable[int]) -> list[Neuron]:
        """Which neurons are at these places."""
        owners = sorted(((start, name) for name, (start, _) in self._starts.items()), reverse=True)
        return [
            next((name, place - start) for start, name in owners if place >= start)
            for place in places
        ]

    def feed_forward(self, name: str) -> FeedForward:
        return self._starts[name][1]
