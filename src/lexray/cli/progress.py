"""Progress bars for the terminal: on stderr, and only where that is one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from lexray.clean import clean

if TYPE_CHECKING:
    from rich.progress import Progress

EVERY = 0.1
"""Seconds between two figures: the time left is guessed from the last ones, which must not all lie
in one burst of items."""


class ProgressBars:
    """One display for all that is under way; `lexray.progress.reported_by` takes it."""

    def __init__(self) -> None:
        self._display: Progress | None = None

    def __call__(self, items: Iterable[Any], total: int, what: str) -> Iterable[Any]:
        return self._draw(items, total, what) if sys.stderr.isatty() else items

    def _draw(self, items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
        display = self._display = self._display or _display()
        display.start()
        task = display.add_task(clean(what), total=total)
        told = -inf
        try:
            for done, item in enumerate(items, 1):
                yield item
                if monotonic() >= told + EVERY:
                    display.update(task, completed=done)
                    told = monotonic()
        finally:
            display.remove_task(task)
            if not display.tasks:
                self.stop()

    def stop(self) -> None:
        """Clears the display, whatever was under way."""
        if self._display is not None:
            self._display.stop()
            self._display = None


def _display() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    # no markup: a model may be called [/red]
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Remaining(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)
