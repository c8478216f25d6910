"""Areas under the curve: how often a reading puts what it should above what it should not."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.effects.areas import area as area

RESAMPLES = 1000


def interval(values: Float[Tensor, "n"], seed: int = 0) -> float:
    """Half of the 95 % interval of the mean, by resampling."""
    if len(values) < 2:
        return float("nan")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    return float(1.96 * values[drawn].mean(1).std())
