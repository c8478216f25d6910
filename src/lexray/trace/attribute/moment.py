"""One kept position of a recorded pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.trace.recording import Recording


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
