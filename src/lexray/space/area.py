"""The area under the curve: how often scores put what they should above what they should not."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def area(scores: Float[Tensor, "n"], wanted: Bool[Tensor, "n"]) -> float:
    """The probability that a wanted entry scores above another one; ties count half."""
    inside, outside = scores[wanted].contiguous(), scores[~wanted].sort()[0]
    if not len(inside) or not len(outside):
        return float("nan")
    below = torch.searchsorted(outside, inside)
    upto = torch.searchsorted(outside, inside, right=True)
    return float((below + upto).double().mean() / (2 * len(outside)))
