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


Watcher = Callable[[float, Callable[[], Any]], bool]
"""Sees a long search: the share that is done, what gives its result as it stands; False ends it."""


def _patient(done: float, standing: Callable[[], Any]) -> bool:
    return True


_reporter: ContextVar[Reporter] = ContextVar("reporter", default=_silent)
_watcher: ContextVar[Watcher] = ContextVar("watcher", default=_patient)


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


def watch(done: float, standing: Callable[[], Any]) -> bool:
    """Shows a search as it stands; whether it should go on."""
    return _watcher.get()(done, standing)


def watcher() -> Watcher:
    """Who watches here, for work that goes on in other threads."""
    return _watcher.get()


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Inside, searches that can end early are seen by `watcher`."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)
