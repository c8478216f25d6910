"""One position of a recorded pass, block by block, beside the weights that were at work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families import Attention, Experts, Mixer
from lexray.families import FeedForward as FeedForwardSpec
from lexray.model.component import Parts
from lexray.model.feedforward import FeedForward
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.trace.attribute.heads import CrossStep, HeadsStep, SubBlock
from lexray.trace.attribute.moment import Moment
from lexray.trace.record.active import ActiveFF

NeuronName = tuple[str, int]
"""The address of a feed-forward or an expert, and a neuron's number in it."""


@dataclass(frozen=True, eq=False)
class Step(HeadsStep):
    """What happened in one block at one position.

    Weights are read, and widened to float32, when they are first asked for: make one step per
    block and let it go before the next.
    """

    @classmethod
    def of(cls, moment: Moment, layer: int) -> Step:
        return cls(moment, moment.weights.layers[layer])

    @property
    def cross(self) -> CrossStep:
        """A decoder's attention to its source, in the same block."""
        return CrossStep(self.moment, self.layer)

    # ------------------------------------------------------------------ both sub-blocks

    def sub_block(self, part: SubBlock) -> Attention | Mixer | FeedForwardSpec | Experts:
        if part in ("mixer", "laurel"):
            beside = self.spec.mixer if part == "mixer" else self.spec.laurel
            assert beside is not None
            return beside
        if part == "cross":
            assert self.spec.cross is not None
            return self.spec.cross
        return self.spec.attention if part == "attention" else self.spec.ff

    def output_of(self, part: SubBlock) -> Float[Tensor, "d_model"]:
        """What a sub-block wrote, before any norm."""
        recorded = self.recorded
        if part in ("mixer", "laurel"):
            return self.at(recorded.mixer_write if part == "mixer" else recorded.laurel_write)
        if part == "cross":
            return self.at(recorded.cross.write)
        return self.at(recorded.attn_write if part == "attention" else recorded.mlp_write)

    def before_norm_of(self, part: SubBlock) -> Float[Tensor, "d_model"]:
        """What the norm behind a sub-block reads: what it wrote, with what cross-attention did
        where both are one."""
        if self.spec.merged and part in ("attention", "cross"):
            return self.output_of("attention") + self.output_of("cross")
        return self.output_of(part)

    def total(self, part: SubBlock) -> Float[Tensor, "d_model"]:
        """The stream with what a sub-block added to it, before the norm of the sum."""
        recorded = self.recorded
        if part == "attention":
            return self.at(recorded.resid_pre) + self.at(recorded.attn_out)
        if part == "cross":
            return self.at(recorded.resid_self) + self.at(recorded.cross.out)
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
        narrow: tuple[SubBlock, ...] = () if self.spec.laurel is None else ("laurel",)
        return ("attention", *narrow, *between, *beside, "ff", *last)

    # ------------------------------------------------------------------ its own attention

    @property
    def attention(self) -> Attention:
        return self.spec.attention

    @property
    def own_heads(self) -> Parts[Head]:
        return self.layer.heads

    @property
    def part(self) -> SubBlock:
        return "attention"

    @property
    def written(self) -> Float[Tensor, "d_model"]:
        return self.output_of("attention")

    @cached_property
    def q(self) -> Float[Tensor, "n_heads d_head"]:
        return self.at(self.recorded.q)

    @cached_property
    def k(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        return self.moment.place(self.recorded.k)

    @cached_property
    def z(self) -> Float[Tensor, "n_heads d_head"]:
        return self.at(self.recorded.z)

    @cached_property
    def pattern(self) -> Float[Tensor, "n_heads n"]:
        if self.spec.attention.absent:
            return self.z.new_zeros(0, len(self.moment.recording))
        return self.moment.place(self.recorded.pattern[:, self.moment.row])

    @cached_property
    def v(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        return self.moment.place(self.recorded.v)

    @cached_property
    def gate(self) -> Float[Tensor, "n_heads d_head"] | None:
        return None if (gate := self.recorded.gate) is None else self.at(gate)

    @property
    def own_values(self) -> Float[Tensor, "d_model"]:
        """Σ_j v_j W_O^j: this position's own values."""
        shared = len(self.z) // self.v.shape[1]
        own = self.v[self.position].repeat_interleave(shared, 0)
        if self.gate is not None:
            own = own * self.gate
        return torch.einsum("hr,hrd->d", own, self.W_O)

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
