"""One position of a recorded pass, block by block, beside the weights that were at work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families import Attention, Block, Experts, Mixer
from lexray.families import FeedForward as FeedForwardSpec
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import FeedForward
from lexray.model.fold import at_least_float32
from lexray.model.layer import Layer
from lexray.trace.record.active import ActiveFF
from lexray.trace.recording import LayerTrace, Recording

SubBlock = Literal["attention", "mixer", "cross", "ff"]
NeuronName = tuple[str, int]
"""The address of a feed-forward or an expert, and a neuron's number in it."""


@dataclass(frozen=True, eq=False)
class Moment:
    """A kept position of a pass; all vectors in float32 at least, where the weights are."""

    recording: Recording
    row: int
    """Of the position among those that were kept."""

    @classmethod
    def of(cls, recording: Recording, position: int) -> Moment:
        """A position by its number; negative ones count from the end."""
        return cls(recording, recording.row(position))

    @property
    def position(self) -> int:
        """Counted from the start of the sequence."""
        return self.recording.positions[self.row]

    @property
    def causal(self) -> bool:
        return self.weights.architecture.causal

    @property
    def weights(self) -> Anatomy:
        return self.recording.weights

    def at(self, x: Float[Tensor, "p *rest"]) -> Float[Tensor, "*rest"]:
        """A recorded part at this position."""
        return self.place(x[self.row])

    def place(self, x: Tensor) -> Tensor:
        """Where the weights are, in float32 at least."""
        return at_least_float32(x.to(self.weights.device))

    def step(self, layer: int) -> Step:
        return Step(self, self.weights.layers[layer])

    @cached_property
    def embed_parts(self) -> dict[str, Float[Tensor, "width"]]:
        """What the embedding is the sum of, before its norm."""
        return {name: self.at(part) for name, part in self.recording.embed_parts.items()}

    @property
    def embed(self) -> Float[Tensor, "width"]:
        """Their sum."""
        return torch.stack(list(self.embed_parts.values())).sum(0)

    @property
    def embed_as_wide(self) -> Float[Tensor, "d_model"]:
        """The same in the model's width, where a projection stands behind its norm (ALBERT)."""
        a, x = self.weights.architecture, self.embed
        if not a.projects_last or a.project_in is None:
            return x
        return x @ a.project_in.read(self.weights.checkpoint).to(x)

    @property
    def final(self) -> Float[Tensor, "d_model"]:
        """The residual stream after the last block."""
        return self.at(self.recording.final)


@dataclass(frozen=True, eq=False)
class Step:
    """What happened in one block at one position.

    Weights are read, and widened to float32, when they are first asked for: make one step per
    block and let it go before the next.
    """

    moment: Moment
    layer: Layer

    @property
    def index(self) -> int:
        return self.layer.index

    @property
    def spec(self) -> Block:
        return self.layer.spec

    @property
    def position(self) -> int:
        return self.moment.position

    @cached_property
    def recorded(self) -> LayerTrace:
        return self.moment.recording[self.index]

    def at(self, x: Float[Tensor, "p *rest"]) -> Float[Tensor, "*rest"]:
        return self.moment.at(x)

    # ------------------------------------------------------------------ both sub-blocks

    def sub_block(self, part: SubBlock) -> Attention | Mixer | FeedForwardSpec | Experts:
        if part == "mixer":
            assert self.spec.mixer is not None
            return self.spec.mixer
        if part == "cross":
            assert self.spec.cross is not None
            return self.spec.cross
        return self.spec.attention if part == "attention" else self.spec.ff

    def output_of(self, part: SubBlock) -> Float[Tensor, "d_model"]:
        """What a sub-block wrote, before any norm."""
        recorded = self.recorded
        if part == "mixer":
            return self.at(recorded.mixer_write)
        if part == "cross":
            return self.at(recorded.cross.write)
        return self.at(recorded.attn_write if part == "attention" else recorded.mlp_write)

    def total(self, part: SubBlock) -> Float[Tensor, "d_model"]:
        """The stream with what a sub-block added to it, before the norm of the sum."""
        recorded = self.recorded
        if part == "attention":
            return self.at(recorded.resid_pre) + self.at(recorded.attn_out)
        if part == "cross":
            return self.at(recorded.resid_self) + self.at(recorded.cross.write)
        if part == "mixer" and self.spec.mixer is not None and self.spec.mixer.last:
            return self.at(recorded.resid_late) + self.at(recorded.mixer_out)
        return self.at(recorded.resid_mid) + self.at(recorded.mlp_out)

    @property
    def parts(self) -> tuple[SubBlock, ...]:
        """What writes to the stream, in the order in which it does."""
        mixer, cross = self.spec.mixer, self.spec.cross
        beside: tuple[SubBlock, ...] = () if mixer is None or mixer.last else ("mixer",)
        last: tuple[SubBlock, ...] = ("mixer",) if mixer is not None and mixer.last else ()
        between: tuple[SubBlock, ...] = () if cross is None else ("cross",)
        return ("attention", *between, *beside, "ff", *last)

    # ------------------------------------------------------------------ attention

    @cached_property
    def W_O(self) -> Float[Tensor, "n_heads d_head d_model"]:
        heads, weights = self.spec.attention.v, self.layer.weights
        W = weights.place(self.spec.attention.o.read(weights.checkpoint))
        n_heads = len(self.spec.attention.q.starts)
        return at_least_float32(W).reshape(n_heads, heads.d_head, W.shape[-1])

    @property
    def b_O(self) -> Float[Tensor, "d_model"] | None:
        spec = self.spec.attention
        bias = self.layer.weights.write_bias(spec.o, spec.post_norm)
        return None if bias is None else self.moment.place(bias)

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
        if self.spec.attention.absent:
            return self.z.new_zeros(0, len(self.moment.recording))
        return self.moment.place(self.recorded.pattern[:, self.moment.row])

    @cached_property
    def v(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        return self.moment.place(self.recorded.v)

    @property
    def own_values(self) -> Float[Tensor, "d_model"]:
        """Σ_j v_j W_O^j: this position's own values."""
        shared = len(self.z) // self.v.shape[1]
        own = self.v[self.position].repeat_interleave(shared, 0)
        if self.gate is not None:
            own = own * self.gate
        return torch.einsum("hr,hrd->d", own, self.W_O)

    @cached_property
    def gate(self) -> Float[Tensor, "n_heads d_head"] | None:
        """What heads' sums of values are multiplied by at this position, where they have gates."""
        return None if (gate := self.recorded.gate) is None else self.at(gate)

    def values(self, head: int) -> Float[Tensor, "n d_head"]:
        """The values of all positions as this one takes them: through the head's gate, if any."""
        values = self.v[:, self.layer.heads[head].kv_index]
        return values if self.gate is None else values * self.gate[head]

    def rows_along(self, g: Float[Tensor, "d_model"]) -> Float[Tensor, "n_heads d_head"]:
        """What each row of W_O added in a direction."""
        return self.z * (self.W_O @ g)

    def heads_along(self, g: Float[Tensor, "d_model"]) -> Float[Tensor, "n_heads"]:
        """What each head added in a direction."""
        return self.rows_along(g).sum(-1)

    def memories_along(self, head: int, g: Float[Tensor, "d_model"]) -> Float[Tensor, "n"]:
        """What a head added in a direction, position by position that it looked at."""
        return self.pattern[head] * (self.values(head) @ (self.W_O[head] @ g))

    # ------------------------------------------------------------------ cross-attention

    def cross_writes(self) -> Float[Tensor, "n_heads n_source d_model"]:
        """What each head of cross-attention writes, by the source's positions."""
        spec, weights, row = self.spec.cross, self.layer.weights, self.moment.row
        assert spec is not None
        W = at_least_float32(weights.place(spec.o.read(weights.checkpoint)))
        W_O = W.reshape(len(spec.q.starts), spec.v.d_head, -1)
        pattern = self.moment.place(self.recorded.cross.pattern[:, row])
        values = self.moment.place(self.recorded.cross.v)
        shared = len(spec.q.starts) // values.shape[1]
        values = values.repeat_interleave(shared, 1)
        return torch.einsum("hn,nhr,hrd->hnd", pattern, values, W_O)

    # ------------------------------------------------------------------ feed-forward

    @cached_property
    def active(self) -> list[ActiveFF]:
        """The feed-forwards that wrote, with their coefficients."""
        return [
            ActiveFF(each.ff, self.moment.place(each.coefficients), each.weight)
            for each in self.recorded.active(self.position)
        ]

    @cached_property
    def coefficients(self) -> Float[Tensor, "n_neurons"]:
        """By how much the value of each neuron was added, over all feed-forwards that wrote."""
        if not self.active:
            return self.at(self.recorded.mlp_write)[:0]
        return torch.cat([each.coefficients for each in self.active])

    @cached_property
    def W_out(self) -> Float[Tensor, "n_neurons d_model"]:
        if not self.active:
            return self.at(self.recorded.mlp_write)[None][:0]
        parts = [at_least_float32(each.ff.W_out) for each in self.active]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def neurons_along(self, g: Float[Tensor, "d_model"]) -> Float[Tensor, "n_neurons"]:
        """What each neuron added in a direction."""
        return self.coefficients * (self.W_out @ g)

    @cached_property
    def starts(self) -> dict[str, int]:
        """Where each feed-forward's neurons begin among `coefficients`, by its address."""
        starts, start = {}, 0
        for active in self.active:
            starts[str(active.ff.address)] = start
            start += len(active.coefficients)
        return starts

    def index_of(self, neuron: NeuronName) -> int | None:
        """Where a neuron is among `coefficients`; None if its expert was not chosen."""
        owner, number = neuron
        if owner not in self.starts or number >= self.feed_forward(owner).d_mlp:
            return None
        return self.starts[owner] + number

    def neurons(self, indices: Iterable[int]) -> list[NeuronName]:
        """Which neurons these are."""
        owners = sorted(((start, name) for name, start in self.starts.items()), reverse=True)
        return [next((name, i - start) for start, name in owners if i >= start) for i in indices]

    def feed_forward(self, address: str) -> FeedForward:
        return next(each.ff for each in self.active if str(each.ff.address) == address)
