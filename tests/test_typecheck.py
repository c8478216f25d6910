"""What is checked while tests run: calls, the sizes of axes, and in which tests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tests.families.zoo import VARIANTS
from tests.typecheck import CHECKED, EACH, MANY, Switch, checked, choose


@checked
def add(a: Float[Tensor, "n d"], b: Float[Tensor, " d"]) -> Float[Tensor, "n d"]:
    return a + b


@checked
def repeat(text: str, times: int = 2) -> str:
    return text * times


def test_sizes_and_types_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.zeros(3, 2), torch.ones(2)
    assert torch.equal(add(a, b), a + 1)
    assert repeat("ab") == "abab"
    with pytest.raises(Exception, match="violates"):
        add(a, torch.ones(1))
    with pytest.raises(Exception, match="violates"):
        repeat(3)  # type: ignore[arg-type]
    monkeypatch.setattr(Switch, "on", False)
    assert torch.equal(add(a, torch.ones(1)), a + 1)
    assert repeat(3) == 6  # type: ignore[arg-type, comparison-overlap]


def test_every_model_and_every_test_is_chosen() -> None:
    def item(function: int, name: str) -> Any:
        return SimpleNamespace(nodeid=f"t{function}[{name}]", name=name, stash={})

    names = [variant.name for variant in VARIANTS]
    large = [[item(i, name) for name in names] for i in range(8 * EACH)]
    small = [item(-1, name) for name in names[: MANY - 1]]
    choose([*small, *(case for cases in large for case in cases)])
    assert all(case.stash[CHECKED] for case in small)
    for cases in large:
        assert len(names) // EACH <= sum(case.stash[CHECKED] for case in cases)
        assert sum(case.stash[CHECKED] for case in cases) <= len(names) // EACH + 1
    assert {case.name for cases in large for case in cases if case.stash[CHECKED]} == set(names)
