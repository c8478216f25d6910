"""A long search in the terminal: what it has found so far, and ctrl-C for the list as it stands."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from lexray.clean import clean
from lexray.progress import watched_by

if TYPE_CHECKING:
    from rich.live import Live

    from lexray.result.pairs import Pairs

PATIENCE = 2.0
"""Seconds before anything is shown."""
EVERY = 0.5
SHOWN = 12


class Searching:
    """Watches searches; see `lexray.progress.watched_by`."""

    def __init__(self) -> None:
        self.interrupted = False
        self._started = self._due = monotonic()
        self._live: Live | None = None

    def interrupt(self, number: int, frame: Any) -> None:
        """The first ctrl-C ends the search with what there is, a second one the command."""
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def __call__(self, done: float, standing: Callable[[], Pairs]) -> bool:
        now = monotonic()
        if now - self._started > PATIENCE and now > self._due and sys.stderr.isatty():
            self._draw(done, standing())
            self._due = monotonic() + EVERY
        return not self.interrupted

    def _draw(self, done: float, pairs: Pairs) -> None:
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            from rich.console import Console

            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        seconds = monotonic() - self._started
        self._live.update(Text(describe(done, seconds, pairs)), refresh=True)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def describe(done: float, seconds: float, pairs: Pairs) -> str:
    """A search as it stands: how far, how long still at most, the first pairs."""
    left = f", at most {seconds / done - seconds:.0f} s left" if done > 0 else ""
    sure = f"{pairs.sure} of {len(pairs)} sure"
    name = f"{pairs.source.address}.{pairs.matrix}"
    head = f"{name}: {done:.0%} searched{left}; {sure}; ctrl-C takes the list as it stands"
    lines = [f"  {p.score:9.4g}  {p.row.shown} → {p.col.shown}" for p in pairs.pairs[:SHOWN]]
    return clean("\n".join([head, *lines]))


@contextmanager
def searching() -> Iterator[Searching]:
    """Inside, searches are shown and can be ended."""
    shown = Searching()
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, shown.interrupt) if main else None
    try:
        with watched_by(shown):
            yield shown
    finally:
        shown.stop()
        if main:
            signal.signal(signal.SIGINT, before)
