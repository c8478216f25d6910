"""Areas under the curve: how often a reading puts what it should above what it should not."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

RESAMPLES = 1000


def area(scores: Float[Tensor, "n"], wanted: Bool[Tensor, "n"]) -> float:
    """The probability that a wanted entry scores above another one; ties count half."""
    inside, outside = scores[wanted].contiguous(), scores[~wanted].sort()[0]
    if not len(inside) or not len(outside):
        return float("nan")
    below = torch.searchsorted(outside, inside)
    upto = torch.searchsorted(outside, inside, right=True)
    return float((below + upto).double().mean() / (2 * len(outside)))


def interval(values: Float[Tensor, "n"], seed: int = 0) -> float:
    """Half of the 95 % interval of the mean, by resampling."""
    if len(values) < 2:
        return float("nan")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    return float(1.96 * values[drawn].mean(1).std())
