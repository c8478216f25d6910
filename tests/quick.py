"""`pytest --quick`: every test function, a few of its cases, for the loop while one writes.

Where a test runs on the zoo's models, one model of each kind is left, and of its other parameters
one choice each, another for every model. Of other parametrised tests two cases are left. What is
marked `slow` (a process of its own, a whole study) is left to `make test`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

KINDS = ("gpt2", "llama", "gemma2", "mixtral", "bert")
"""Learned positions and biases; rotary, gated, grouped; norms after; experts; an encoder."""
CASES = 2
LEFT_OUT = ("slow", "browser")
T = TypeVar("T")


def thin(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The items that are run, in their order."""
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(item.get_closest_marker(name) for name in LEFT_OUT):
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [item for cases in families.values() for item in _few(cases)]


def _few(cases: list[pytest.Item]) -> list[pytest.Item]:
    by_kind = [[case for case in cases if kind in _values(case)] for kind in KINDS]
    if any(by_kind):
        chosen = {id(found[i % len(found)]) for i, found in enumerate(by_kind) if found}
        return [case for case in cases if id(case) in chosen]
    return spread(cases, CASES)


def _values(case: pytest.Item) -> set[str]:
    """A case's parameters by their names: a variant of the zoo is called as it is."""
    given = getattr(case, "callspec", None)
    return set() if given is None else {v for v in given.params.values() if isinstance(v, str)}


def spread(cases: Sequence[T], n: int) -> list[T]:
    """n of them, the first and the last among them."""
    if len(cases) <= n:
        return list(cases)
    return [cases[round(i * (len(cases) - 1) / (n - 1))] for i in range(n)]
