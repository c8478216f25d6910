"""`pytest --quick`: every test function, one of its cases, for the loop while one writes.

Where a test runs on the zoo's models, one model is left, another kind for another test, so that
all kinds are met. Of other parametrised tests the first case is left, and of hypothesis's examples
a handful. What is marked `slow` (a process of its own, a whole study, a fifth of a
second or more) is left to `make test`, as is the check of the shapes in signatures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import cycle

import pytest

KINDS = ("gpt2", "llama", "gemma2", "mixtral", "bert")
"""Learned positions and biases; rotary, gated, grouped; norms after; experts; an encoder."""
EXAMPLES = 10
LEFT_OUT = ("slow", "browser")
VARIABLE = "LEXRAY_QUICK"
"""Tells the workers of pytest-xdist, which collect before they know their options."""


def is_quick() -> bool:
    """Whether `--quick` was given, to this process or to the one that started it."""
    if "--quick" in sys.argv:
        os.environ[VARIABLE] = "1"
    return VARIABLE in os.environ


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
    return cases[:1]


def _values(case: pytest.Item) -> set[str]:
    """A case's parameters by their names: a variant of the zoo is called as it is."""
    given = getattr(case, "callspec", None)
    values = [] if given is None else list(given.params.values())
    return {name for v in values if isinstance(name := getattr(v, "name", v), str)}
