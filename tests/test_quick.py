"""What `--quick` leaves of the suite."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.families.zoo import VARIANTS
from tests.quick import KINDS, thin


def test_the_kinds_are_of_the_zoo() -> None:
    assert set(KINDS) <= {variant.name for variant in VARIANTS}


def item(name: str, *values: Any, marks: tuple[str, ...] = ()) -> Any:
    """As much of a case as is looked at."""
    return SimpleNamespace(
        nodeid=f"{name}[{values}]",
        callspec=SimpleNamespace(params=dict(enumerate(values))),
        get_closest_marker=lambda mark: mark if mark in marks else None,
    )


def test_one_case_of_each_test() -> None:
    zoo = [item(f"t{i}", variant, 3) for i in range(len(KINDS)) for variant in VARIANTS]
    others = [item("other", 1), item("other", 2), item("late", marks=("slow",))]
    kept: list[Any] = thin([*zoo, *others])
    assert [case.callspec.params[0] for case in kept[-1:]] == [1]
    assert [case.callspec.params[0].name for case in kept[:-1]] == list(KINDS), "each kind in turn"
