"""An attention head: its matrices, what it asks and offers, and its two circuits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address, Subhead
from lexray.families import Attention, Heads, QKNorm
from lexray.model.circuits import QK, VO
from lexray.model.component import Component
from lexray.model.vectors import VectorGroup

if TYPE_CHECKING:
    from lexray.model.model import Model

Map = Callable[[Tensor], Tensor]


class Head(Component):
    """One query head, with the keys and values of its group."""

    def __init__(self, model: Model, layer: int, index: int) -> None:
        super().__init__(model, Address(layer, head=index))
        self.layer, self.index = layer, index
        self.spec: Attention = model.architecture.blocks[layer].attention
        self.kv_index = index * len(self.spec.k.starts) // len(self.spec.q.starts)

    @property
    def d_head(self) -> int:
        return self.spec.q.d_head

    @property
    def W_Q(self) -> Float[Tensor, "d_model d_head"]:
        return self._read(self.spec.q.linear, self.spec.pre_norm, self.spec.q.outputs(self.index))

    @property
    def W_K(self) -> Float[Tensor, "d_model d_head"]:
        return self._read(
            self.spec.k.linear, self.spec.pre_norm, self.spec.k.outputs(self.kv_index)
        )

    @property
    def W_V(self) -> Float[Tensor, "d_model d_head"]:
        return self._read(
            self.spec.v.linear, self.spec.pre_norm, self.spec.v.outputs(self.kv_index)
        )

    @property
    def W_O(self) -> Float[Tensor, "d_head d_model"]:
        rows = slice(self.index * self.d_head, (self.index + 1) * self.d_head)
        return self._write(self.spec.o, self.spec.post_norm, rows)

    @property
    def b_Q(self) -> Float[Tensor, "d_head"] | None:
        return self._read_bias(
            self.spec.q.linear, self.spec.pre_norm, self.spec.q.outputs(self.index)
        )

    @property
    def b_K(self) -> Float[Tensor, "d_head"] | None:
        return self._read_bias(
            self.spec.k.linear, self.spec.pre_norm, self.spec.k.outputs(self.kv_index)
        )

    @property
    def b_V(self) -> Float[Tensor, "d_head"] | None:
        return self._read_bias(
            self.spec.v.linear, self.spec.pre_norm, self.spec.v.outputs(self.kv_index)
        )

    @property
    def b_O(self) -> Float[Tensor, "d_model"] | None:
        """The output bias, which all heads of the layer share."""
        return self._write_bias(self.spec.o, self.spec.post_norm)

    @property
    def vo(self) -> VO:
        """W_V W_O as token pairs: what attending to a token writes."""
        return VO(self)

    @property
    def qk(self) -> QK:
        """W_Q W_Kᵀ as token pairs: which tokens look for which."""
        return QK(self)

    def subheads(self, side: Subhead) -> VectorGroup:
        """The columns of W_Q, W_K or W_V, or the rows of W_O: one rank-1 term of the head each.

        >>> model["L3H7"].subheads("V")[12].top()
        """

        def read() -> Tensor:
            W: Tensor = getattr(self, f"W_{side}")
            return W if side == "O" else W.T

        def address_of(i: int) -> str:
            return str(Address(self.layer, head=self.index, subhead=side, index=i))

        return VectorGroup(self.model, str(self.address), side, self.d_head, read, address_of)

    @property
    def query_subheads(self) -> VectorGroup:
        return self.subheads("Q")

    @property
    def key_subheads(self) -> VectorGroup:
        return self.subheads("K")

    @property
    def value_subheads(self) -> VectorGroup:
        return self.subheads("V")

    @property
    def output_subheads(self) -> VectorGroup:
        return self.subheads("O")

    def queries(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_head"]:
        """What this head asks for at inputs x, QK-norm included, before rotation."""
        return self.query_map()(x)

    def keys(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_head"]:
        """What this head offers at inputs x, QK-norm included, before rotation."""
        return self.key_map()(x)

    def query_map(self, *, bias: bool = True, clip: bool = True) -> Map:
        """`queries` as a function that has read its weights."""
        spec = self.spec
        return self._map(spec.q, spec.q_norm, self.index, self.W_Q, self.b_Q, bias, clip)

    def key_map(self, *, bias: bool = True, clip: bool = True) -> Map:
        """`keys` as a function that has read its weights."""
        spec = self.spec
        return self._map(spec.k, spec.k_norm, self.kv_index, self.W_K, self.b_K, bias, clip)

    def rotation(self, offset: int | None = None) -> Float[Tensor, "d_head d_head"] | None:
        """R(offset), so that a score is q R kᵀ; offset = key − query position (the view's own
        unless given). None where there is nothing to turn."""
        offset = self.model.options.offset if offset is None else offset
        if self.spec.rotary is None:
            return None
        R, device = self.spec.rotary.matrix(offset, self.d_head), self.model.device
        return (R.float() if device.type == "mps" else R).to(device)  # MPS has no float64

    @property
    def alibi_slope(self) -> float:
        """What each position of distance takes from the score (ALiBi); 0 elsewhere."""
        return self.spec.alibi * alibi_slopes(len(self.spec.q.starts))[self.index]

    def _map(
        self,
        heads: Heads,
        norm: QKNorm | None,
        index: int,
        W: Tensor,
        b: Tensor | None,
        bias: bool,
        clip: bool,
    ) -> Map:
        limit = self.spec.clip if clip else None
        plain = Affine(W, b if bias else None, limit)
        if norm is None:
            return plain
        checkpoint = self.model.checkpoint
        if norm.joint is None:
            own = norm.heads[index] if bias else replace(norm.heads[index], bias=None)
            return lambda x: own(plain(x), checkpoint)
        whole = Affine(
            self._read(heads.linear, self.spec.pre_norm),
            self._read_bias(heads.linear, self.spec.pre_norm) if bias else None,
            limit,
        )
        gain, eps = norm.joint.read_gain(checkpoint), norm.joint.eps
        part = None if gain is None else gain[heads.outputs(index)]

        def jointly(x: Tensor) -> Tensor:
            """One head's part of a norm that runs over all heads of the layer (OLMo 2)."""
            y = plain(x) * torch.rsqrt(whole(x).square().mean(-1, keepdim=True) + eps)
            return y if part is None else y * part.to(y)

        return jointly


@dataclass(frozen=True)
class Affine:
    """x W + b, clamped to ± limit."""

    W: Tensor
    b: Tensor | None = None
    limit: float | None = None

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ self.W.to(x)
        if self.b is not None:
            y = y + self.b.to(x)
        return y if self.limit is None else y.clamp(-self.limit, self.limit)


def alibi_slopes(n_heads: int) -> list[float]:
    """ALiBi's geometric series of slopes; where n is no power of two, interleaved from the next."""
    base = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / base) for i in range(base)]
    return slopes + [2 ** (-4 * (2 * i + 1) / base) for i in range(n_heads - base)]
