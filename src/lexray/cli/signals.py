"""Being told to stop: a command cleans up after itself first, and its exit code says who asked."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ASKED = {"SIGTERM": "terminated", "SIGHUP": "the terminal was closed"}
INTERRUPTED = 128 + signal.SIGINT


class StopSignal:
    """The signal that ended a command, if one did."""

    def __init__(self) -> None:
        self.code, self.why = INTERRUPTED, "interrupted"

    def __call__(self, number: int, frame: Any) -> None:
        """Raises where the command is, as ctrl-C does, so that what is open is closed there."""
        signal.signal(number, signal.SIG_DFL)  # a second one does not wait
        self.code, self.why = 128 + number, ASKED[signal.Signals(number).name]
        raise KeyboardInterrupt


@contextmanager
def stoppable() -> Iterator[StopSignal]:
    """Inside, SIGTERM and SIGHUP are as kind as ctrl-C; what was ignored stays so (nohup)."""
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = [getattr(signal, name) for name in ASKED if hasattr(signal, name)]
    ours = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield stop
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
