"""A model for byte ranges: weights of all shapes, larger than what a header's request reaches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lexray.checkpoint.hub import remote
from lexray.checkpoint.hub.remote import RemoteCheckpoint

FILE = "model.safetensors"
GUESS = remote.HEADER_GUESS
Open = Callable[..., RemoteCheckpoint]


def tensors() -> dict[str, Tensor]:
    """Random weights; the first lies where the header's request reaches, the others beyond."""
    torch.manual_seed(0)
    return {
        "a.pad": torch.randn(GUESS // 4),
        "b.rows": torch.randn(300, 64),
        "c.wide": torch.randn(40, 32768),
        "d.tall": torch.randn(2000, 256),
        "e.half": torch.randn(7, 3, 5).to(torch.bfloat16),
        "f.scalar": torch.tensor(3.5, dtype=torch.float16),
        "g.empty": torch.empty(0, 4, dtype=torch.float16),
        "h.bytes": torch.randint(0, 255, (5, 11), dtype=torch.uint8),
    }


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
