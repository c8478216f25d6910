"""Progress of long work: the library says how far it is, whoever runs it decides how to show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Item = TypeVar("Item")
Reporter = Callable[[Iterable[Any], int, str], Iterable[Any]]
"""Wraps an iterable of known length and a description."""


def _silent(items: Iterable[Any], total: int, what: str) -> Iterable[Any]:
    return items


_reporter: ContextVar[Reporter] = ContextVar("reporter", default=_silent)


def track(items: Iterable[Item], total: int, what: str) -> Iterable[Item]:
    """The same items, their passing reported."""
    return _reporter.get()(items, total, what)


@contextmanager
def reported_by(reporter: Reporter) -> Iterator[None]:
    """Inside, `track` reports to `reporter`."""
    token = _reporter.set(reporter)
    try:
        yield
    finally:
        _reporter.reset(token)
