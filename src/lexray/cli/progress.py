"""Progress bars for the terminal: on stderr, and only where that is one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from lexray.clean import clean

if TYPE_CHECKING:
    from rich.progress import Progress


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
        try:
            for item in items:
                yield item
                display.advance(task)
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
