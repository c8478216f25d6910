"""The heads of one attention at one position of a recorded pass: what they looked at, and wrote."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families import Attention, Block
from lexray.model.component import Parts
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.model.layer import Layer
from lexray.trace.attribute.moment import Moment
from lexray.trace.recording import LayerTrace

SubBlock = Literal["attention", "laurel", "mixer", "cross", "ff"]
ROUNDED = 0.02
"""What rounding in half precision may take from a head's sum, as a share of its parts."""


@dataclass(frozen=True, eq=False)
class HeadsStep:
    """A block's own attention, or that of a decoder to its source."""

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

    # ------------------------------------------------------------------ which attention

    @property
    @abstractmethod
    def attention(self) -> Attention: ...

    @property
    @abstractmethod
    def own_heads(self) -> Parts[Head]:
        """The heads' weights."""

    @property
    @abstractmethod
    def part(self) -> SubBlock: ...

    @property
    @abstractmethod
    def written(self) -> Float[Tensor, "d_model"]:
        """All that it wrote, before any norm."""

    @cached_property
    @abstractmethod
    def q(self) -> Float[Tensor, "n_heads d_head"]: ...

    @cached_property
    @abstractmethod
    def k(self) -> Float[Tensor, "n n_kv_heads d_head"]: ...

    @cached_property
    @abstractmethod
    def z(self) -> Float[Tensor, "n_heads d_head"]:
        """By how much each row of W_O is added."""

    @cached_property
    @abstractmethod
    def pattern(self) -> Float[Tensor, "n_heads n"]: ...

    @cached_property
    @abstractmethod
    def v(self) -> Float[Tensor, "n n_kv_heads d_head"]: ...

    @property
    def gate(self) -> Float[Tensor, "n_heads d_head"] | None:
        """What heads' sums of values are multiplied by at this position, where they have gates."""
        return None

    # ------------------------------------------------------------------ what follows from that

    @cached_property
    def W_O(self) -> Float[Tensor, "n_heads d_head d_model"]:
        spec, weights = self.attention, self.layer.weights
        W = weights.place(spec.o.read(weights.checkpoint))
        return at_least_float32(W).reshape(len(spec.q.starts), spec.v.d_head, W.shape[-1])

    @property
    def b_O(self) -> Float[Tensor, "d_model"] | None:
        bias = self.layer.weights.write_bias(self.attention.o, self.attention.post_norm)
        return None if bias is None else self.moment.place(bias)

    @cached_property
    def heads(self) -> Float[Tensor, "n_heads d_model"]:
        """What each head writes."""
        return torch.einsum("hr,hrd->hd", self.z, self.W_O)

    def values(self, head: int) -> Float[Tensor, "n d_head"]:
        """The values of all positions as this one takes them: through the head's gate, if any."""
        values = self.v[:, self.own_heads[head].kv_index]
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

    def is_changed(self, head: int, g: Float[Tensor, "d_model"]) -> bool:
        """Whether an edit of the run made the head write something else than it took from where."""
        if not self.moment.recording.edits:
            return False
        taken = self.memories_along(head, g)
        whole = (self.z[head] @ self.W_O[head]) @ g
        return float((taken.sum() - whole).abs()) > ROUNDED * float(taken.abs().sum())


@dataclass(frozen=True, eq=False)
class CrossStep(HeadsStep):
    """A decoder's attention to its source."""

    @property
    def attention(self) -> Attention:
        assert self.spec.cross is not None
        return self.spec.cross

    @property
    def own_heads(self) -> Parts[Head]:
        return self.layer.cross_heads

    @property
    def part(self) -> SubBlock:
        return "cross"

    @property
    def written(self) -> Float[Tensor, "d_model"]:
        return self.at(self.recorded.cross.write)

    @property
    def b_O(self) -> Float[Tensor, "d_model"] | None:
        return None if self.spec.merged else super().b_O  # which is counted with the other

    @cached_property
    def q(self) -> Float[Tensor, "n_heads d_head"]:
        return self.at(self.recorded.cross.q)

    @cached_property
    def k(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        return self.moment.place(self.recorded.cross.k)

    @cached_property
    def z(self) -> Float[Tensor, "n_heads d_head"]:
        return self.at(self.recorded.cross.z)

    @cached_property
    def pattern(self) -> Float[Tensor, "n_heads n"]:
        return self.moment.place(self.recorded.cross.pattern[:, self.moment.row])

    @cached_property
    def v(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        return self.moment.place(self.recorded.cross.v)
