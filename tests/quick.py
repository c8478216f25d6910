"""`pytest --quick`: every test function, one or two of its cases, for the loop while one writes.

Where a test runs on the zoo's models, one model is left, another kind for another test, so that
all kinds are met. Of other parametrised tests the first and the last case are left, and of
hypothesis's examples a handful. What is marked `slow` (a process of its own, a whole study, a
second or more) is left to `make test`, as is the check of the shapes in signatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import TypeVar

import pytest

KINDS = ("gpt2", "llama", "gemma2", "mixtral", "bert")
"""Learned positions and biases; rotary, gated, grouped; norms after; experts; an encoder."""
CASES = 2
EXAMPLES = 10
LEFT_OUT = ("slow", "browser")
T = TypeVar("T")


def thin(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The items that are run, in their order."""
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not any(item.get_closest_marker(name) for name in LEFT_OUT):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    turns = cycle(KINDS)
    return [item for cases in functions.values() for item in _few(cases, next(turns))]


def _few(cases: list[pytest.Item], first: str) -> list[pytest.Item]:
    """A case on the model of the kind whose turn it is, or on one of another kind."""
    for kind in (first, *KINDS):
        if chosen := [case for case in cases if kind in _values(case)]:
            return chosen[:1]
    return spread(cases, CASES)


def _values(case: pytest.Item) -> set[str]:
    """A case's parameters by their names: a variant of the zoo is called as it is."""
    given = getattr(case, "callspec", None)
    values = [] if given is None else list(given.params.values())
    return {name for v in values if isinstance(name := getattr(v, "name", v), str)}


def spread(cases: Sequence[T], n: int) -> list[T]:
    """n of them, the first and the last among them."""
    if len(cases) <= n:
        return list(cases)
    return [cases[round(i * (len(cases) - 1) / (n - 1))] for i in range(n)]
