"""What passed through a layer's feed-forwards: which of them wrote, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.feedforward import FeedForward, Mixture


@dataclass(frozen=True)
class ActiveFF:
    """A feed-forward, or one expert, that wrote at a position."""

    ff: FeedForward
    coefficients: Float[Tensor, "d_mlp"]
    """By how much each value was added, the routing weight included."""
    weight: float
    """By how much its output bias was added."""


@dataclass(frozen=True)
class ExpertTrace:
    """What a mixture did at each kept position."""

    chosen: Int[Tensor, "p top_k"]
    weights: Float[Tensor, "p top_k"]
    coefficients: Float[Tensor, "p top_k d_mlp"]
    """Of each chosen expert's values, before the routing weight."""
    shared_coefficients: Float[Tensor, "p d_shared"] | None = None
    shared_weight: Float[Tensor, "p"] | None = None
    """What the shared expert is multiplied by, where a gate decides it."""
    scale: Float[Tensor, "p 1"] | None = None
    """What a norm multiplies the chosen experts' sum by, where they have one of their own, …"""
    shared_scale: Float[Tensor, "p 1"] | None = None
    """… and what the shared expert writes. Their gains are part of W_out."""

    @property
    def added(self) -> Float[Tensor, "p top_k"]:
        """By how much what each chosen expert writes is added: its weight, and what a norm of
        their own multiplies by."""
        return self.weights if self.scale is None else self.weights * self.scale

    @property
    def shared_added(self) -> Float[Tensor, "p"]:
        """The same of the shared expert."""
        ones = self.weights.new_ones(len(self.weights))
        gated = ones if self.shared_weight is None else self.shared_weight
        return gated if self.shared_scale is None else gated * self.shared_scale[:, 0]

    def active(self, ff: Mixture, row: int) -> list[ActiveFF]:
        """The experts that wrote at a kept position, the shared one last."""
        weights = torch.ones_like(self.weights) if ff.spec.routing.on_input else self.added
        active = [
            ActiveFF(ff.experts[e], coefficients * weight, float(weight))
            for e, weight, coefficients in zip(
                self.chosen[row].tolist(),
                weights[row] * ff.spec.share,
                self.coefficients[row],
                strict=True,
            )
        ]
        if ff.shared is not None and self.shared_coefficients is not None:
            share = float(self.shared_added[row]) * ff.spec.share
            active.append(ActiveFF(ff.shared, self.shared_coefficients[row] * share, share))
        return active
