"""Several residual streams at once (AltUp, in Gemma 3n), and how they become one.

Before the first layer each further stream is a map of the embedding, as large as the embedding. A
layer predicts all streams from all, works on one of them, and corrects all by what it made of that
one. Behind the last layer each further stream goes through a map back, is made as large as the
first, and the answer is read from their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families.linear import Linear

LEAST = 1e-5
"""No mean square of a stream counts as less."""
SHRUNK = 2**-0.5
"""What the sum of attention and LAuReL with all they read is multiplied by."""

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AltUp:
    """What tells, position by position, how a layer mixes the streams."""

    predict: Linear
    """Gives n · n numbers: the j-th n say what of each stream is added to the j-th."""
    correct: Linear
    """Gives n numbers: 1 more is how much of what the layer changed each stream gets."""
    others: tuple[str, ...] = ()
    """The tensors by which both are told from the stream, which are not read."""


@dataclass(frozen=True)
class Streams:
    """How many there are, and the maps at both ends."""

    count: int
    active: int
    """The one that layers work on."""
    spread: tuple[Linear, ...]
    """From the embedding to each stream but the first."""
    gather: tuple[Linear, ...]
    """From each stream but the first to what the final norm reads."""


def unite(
    X: Float[Tensor, "*rows n d_model"], maps: Sequence[Map]
) -> Float[Tensor, "*rows d_model"]:
    """All streams as the model's last step takes them: as if it ended here."""
    first, *rest = X.unbind(-2)
    others = [own(x) for own, x in zip(maps, rest, strict=True)]
    sized = [x * scale_to(first, x) for x in others]
    return torch.stack([first, *sized]).mean(0)


def scale_to(
    like: Float[Tensor, "*rows d_model"], x: Float[Tensor, "*rows d_model"]
) -> Float[Tensor, "*rows 1"]:
    """What makes x as large as another vector."""
    size = x.square().mean(-1, keepdim=True).clamp(min=LEAST).sqrt()
    return like.square().mean(-1, keepdim=True).sqrt() / size
