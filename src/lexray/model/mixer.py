"""A mixer: what stands in attention's place, or beside it, in hybrids."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lexray import families
from lexray.address import Address, Port
from lexray.errors import LexrayError
from lexray.model.component import Component
from lexray.model.groups import mixer_groups
from lexray.model.vectors import VectorGroup
from lexray.model.weights import Weights


class Mixer(Component):
    """A state space, linear attention or a convolution, as one part.

    It reads the residual stream by the columns of W_in and writes to it by the rows of W_out. What
    it moves between positions depends on all that lies between, so there is no table of tokens by
    tokens as a head has one.

    >>> model["L1.mixer.out5"].top()                                       # doctest: +SKIP
    """

    def __init__(self, weights: Weights, layer: int, spec: families.Mixer) -> None:
        super().__init__(weights, Address(layer, mixer=True))
        self.layer, self.spec = layer, spec

    @property
    def W_in(self) -> Float[Tensor, "d_model d_in"]:
        """All maps that read the stream, side by side."""
        groups = mixer_groups(self.weights, self.layer, "in")
        return torch.cat([group.tensor for group in groups]).T

    @property
    def W_out(self) -> Float[Tensor, "d_inner d_model"]:
        return self.vectors("out").tensor

    @property
    def b_out(self) -> Float[Tensor, "d_model"] | None:
        return self.weights.write_bias(self.spec.w_out, self.spec.post_norm)

    def vectors(self, port: Port) -> VectorGroup:
        """The columns by which it reads ("in"), or the rows by which it writes ("out")."""
        return VectorGroup(str(self.address), mixer_groups(self.weights, self.layer, port))


def find_mixer(weights: Weights, layer: int) -> Mixer:
    """The mixer of a layer; a LexrayError where it has none."""
    spec = weights.architecture.blocks[layer].mixer
    if spec is not None:
        return Mixer(weights, layer, spec)
    having = [n for n, block in enumerate(weights.architecture.blocks) if block.mixer is not None]
    there = f"layers {', '.join(map(str, having))} have one" if having else "no layer has one"
    raise LexrayError(f"L{layer} has no mixer: {there}")
