"""What passed through a decoder's cross-attention, of one layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class CrossTrace:
    """The attention of a decoder's layer to the source: p are positions of the target."""

    part: Callable[[str], Tensor]

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
    def write(self) -> Float[Tensor, "p d_model"]:
        """Σ_heads and the bias: what it adds to the stream."""
        return self.part("cross_write")
