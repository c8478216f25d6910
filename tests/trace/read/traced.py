"""Passes that the tests of lenses look at."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from lexray.trace.trace import Trace
from tests.vocabulary.vocabularies import worded

IDS = [5, 11, 3, 29, 36, 7, 20]
TARGET = 9


@cache
def traced(name: str) -> Trace:
    return worded(name).trace(IDS)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 2e-4) -> None:
    theirs = theirs.detach()
    scale = float(theirs.abs().max()) + 1
    torch.testing.assert_close(ours.to(theirs), theirs, rtol=tolerance, atol=tolerance * scale)
