"""How a module is run while it is watched: one run at a time, without dropout and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch
from torch import nn

RECORDING = RLock()
"""One recording at a time: configs and transformers' tables of functions are shared."""


class EnoughError(Exception):
    """Raised by a hook: what was wanted of a pass is known, and the rest is not run."""


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Inside, dropout is off and no gradients are kept."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
