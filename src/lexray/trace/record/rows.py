"""An embedding that stays as it is stored, of which a module is given the rows that it looks up.

In full precision it would be most of what a module of one block holds, and of many a small model.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Absent:
    """A tensor's shape for transformers to take, with one number in it, which is none."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, index: Any) -> Tensor:
        return torch.full((), torch.nan, dtype=self.dtype).expand(self.shape)


def look_up(embedding: nn.Module, rows: Float[Tensor, "e width"], dtype: torch.dtype) -> None:
    """From now on the module finds its tokens among these rows."""

    def fetch(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        ids, *more = args
        some = rows[ids.flatten().to(rows.device)].to(ids.device, dtype)
        module.weight = nn.Parameter(some, requires_grad=False)
        return (torch.arange(ids.numel(), device=ids.device).view_as(ids), *more)

    embedding.padding_idx = None  # type: ignore[assignment]  # another row here; training's business
    embedding.register_forward_pre_hook(fetch)
