"""Models of the zoo and copies of them to which something was done."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.compare.diff.changes import Change
from lexray.compare.diff.result import Diff
from lexray.model.model import Model
from tests.families.zoo import build
from tests.vocabulary.vocabularies import vocabulary

SOME = ("gpt2", "llama", "qwen2-moe", "gemma2", "opt-350m", "bert", "olmo2", "falcon-rw")


def opened(module: nn.Module, n: int = 37, **options: Any) -> Model:
    return Model(ModuleCheckpoint(module), vocabulary=vocabulary(n), **options).view("raw")


def changed(name: str, change: Callable[[Any], None]) -> tuple[Model, Model]:
    """A model of the zoo, and a copy of it to which something was done."""
    module = copy.deepcopy(build(name))
    with torch.no_grad():
        change(module)
    return opened(build(name)), opened(module)


def shaken(size: float, seed: int = 3) -> Callable[[Any], None]:
    def shake(module: Any) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in module.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))

    return shake


def embedding(model: Model) -> Tensor:
    return model.W_U.double()


def close(expected: Tensor, found: list[Any]) -> None:
    actual = torch.tensor(found, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)


def by_address(found: Diff) -> dict[str, Change]:
    return {change.address: change for change in found.changes}
