"""What passed through a decoder's cross-attention, of one layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


def through_output(
    z: Float[Tensor, "p n_heads d_head"], W_O: Float[Tensor, "inner d_model"]
) -> Float[Tensor, "p n_heads d_model"]:
    """Each head's sum of values through its part of W_O."""
    return torch.einsum("phr,hrd->phd", z, W_O.to(z).view(*z.shape[1:], W_O.shape[-1]))


@dataclass(frozen=True, eq=False)
class CrossTrace:
    """The attention of a decoder's layer to the source: p are positions of the target."""

    part: Callable[[str], Tensor]
    W_O: Callable[[], Float[Tensor, "inner d_model"]]
    normed: bool = False
    """Whether a norm stands behind what it writes."""
    merged: bool = False
    """Whether its queries are those of the layer's own attention (T5Gemma 2)."""

    @property
    def read(self) -> Float[Tensor, "p d_model"]:
        """What its queries are made of."""
        return self.part("attn_in" if self.merged else "cross_in")

    @property
    def q(self) -> Float[Tensor, "p n_heads d_head"]:
        """Queries, with QK-norm, before rotation."""
        return self.part("q" if self.merged else "cross_q")

    @property
    def q_rotated(self) -> Float[Tensor, "p n_heads d_head"]:
        """Queries as they meet the keys of the source, which nothing turns."""
        return self.part("q_rotated") if self.merged else self.q

    @property
    def k(self) -> Float[Tensor, "n_source n_kv_heads d_head"]:
        """Keys, of the source's positions."""
        return self.part("cross_k")

    @property
    def v(self) -> Float[Tensor, "n_source n_kv_heads d_head"]:
        return self.part("cross_v")

    @property
    def pattern(self) -> Float[Tensor, "n_heads p n_source"]:
        """By how much each head looks at each position of the source."""
        return self.part("cross_pattern")

    @property
    def z(self) -> Float[Tensor, "p n_heads d_head"]:
        """Each head's weighted sum of values, before W_O."""
        return self.part("cross_z")

    @property
    def head_out(self) -> Float[Tensor, "p n_heads d_model"]:
        """What each head writes: z through its part of W_O."""
        return through_output(self.z, self.W_O())

    @property
    def write(self) -> Float[Tensor, "p d_model"]:
        """Σ_heads and the bias, before any norm; of merged attention without the bias."""
        return self.part("cross_write")

    @property
    def out(self) -> Float[Tensor, "p d_model"]:
        """What it adds to the stream."""
        return self.part("cross_out") if self.normed else self.write
