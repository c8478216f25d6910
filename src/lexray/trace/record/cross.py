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

    @property
    def read(self) -> Float[Tensor, "p d_model"]:
        """What its queries are made of."""
        return self.part("cross_in")

    @property
    def q(self) -> Float[Tensor, "p n_heads d_head"]:
        return self.part("cross_q")

    @property
    def k(self) -> Float[Tensor, "n_source n_heads d_head"]:
        """Keys, of the source's positions."""
        return self.part("cross_k")

    @property
    def v(self) -> Float[Tensor, "n_source n_heads d_head"]:
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
        """Σ_heads and the bias: what it adds to the stream."""
        return self.part("cross_write")
