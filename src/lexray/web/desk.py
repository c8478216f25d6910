"""The desk: what waits for the worker, what it is at, what it has done.

Runs are known by what they do, so that what is asked for twice is done once. One that is wanted no
longer is taken from the queue, or the worker is told to stop; if it does not, it is ended and a
new one started.
"""

from __future__ import annotations

import multiprocessing
import secrets
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

from lexray.errors import LexrayError
from lexray.model.origin import Origin
from lexray.web.worker import Work, work_on

State = Literal["waiting", "running", "done", "failed", "cancelled"]
KEPT = 256
WAITING = 24
"""So many may wait."""
GRACE = 1.5
"""Seconds in which a worker may stop by itself."""
TICK = 0.1


class QueueFullError(LexrayError):
    """Too much waits already."""


@dataclass(eq=False)
class Errand:
    """One piece of work."""

    id: str
    key: Hashable
    work: Work
    urgent: bool
    state: State = "waiting"
    wanted: int = 0
    """By how many."""
    progress: tuple[str, int, int] = ("", 0, 0)
    result: Any = None
    words: str = ""
    """Why it failed."""
    ended: threading.Event = field(default_factory=threading.Event)

    def to_dict(self, ahead: int = 0) -> dict[str, Any]:
        what, done, total = self.progress
        return {
            "run": self.id,
            "state": self.state,
            "what": what,
            "done": done,
            "total": total,
            "ahead": ahead,
            "error": self.words,
        }

    def finish(self, state: State, result: Any = None, words: str = "") -> None:
        self.state, self.result, self.words = state, result, words
        self.ended.set()


class Desk:
    """The queue in front of one worker process, which starts with the first run."""

    def __init__(self, origins: Mapping[str, Origin], kept: int = KEPT) -> None:
        self._origins, self._most = dict(origins), kept
        self._lock = threading.Condition()
        self._waiting: list[Errand] = []
        self._runs: OrderedDict[str, Errand] = OrderedDict()
        self._by_key: dict[Hashable, Errand] = {}
        self._now: Errand | None = None
        self._closed = False
        self._process: Any = None
        self._pipe: Any = None
        self._thread: threading.Thread | None = None
        self._context = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()

    def find(self, key: Hashable) -> Errand | None:
        """What was asked for under this key, if it is still known and did not fail."""
        with self._lock:
            return self._by_key.get(key)

    def __getitem__(self, run: str) -> Errand:
        with self._lock:
            if run not in self._runs:
                raise LexrayError("this run is not known any more; ask again")
            return self._runs[run]

    def ahead(self, run: Errand) -> int:
        """How many are before it."""
        with self._lock:
            if run not in self._waiting:
                return 0
            return self._waiting.index(run) + (self._now is not None)

    def submit(self, key: Hashable, work: Work, *, urgent: bool = False) -> Errand:
        """A run, begun or known already; urgent ones go before others."""
        with self._lock:
            if (job := self._by_key.get(key)) is not None:
                job.wanted += 1
                return job
            if len(self._waiting) >= WAITING:
                raise QueueFullError(f"{WAITING} runs wait already; try again when some are done")
            run = Errand(secrets.token_urlsafe(9), key, work, urgent, wanted=1)
            self._by_key[key] = self._runs[run.id] = run
            at = sum(each.urgent for each in self._waiting) if urgent else len(self._waiting)
            self._waiting.insert(at, run)
            self._forget()
            if self._thread is None:
                self._thread = threading.Thread(target=self._attend, daemon=True)
                self._thread.start()
            self._lock.notify_all()
            return run

    def _forget(self) -> None:
        old = [run for run in self._runs.values() if run.ended.is_set()]
        for run in old[: max(0, len(self._runs) - self._most)]:
            self._drop(run)
            del self._runs[run.id]

    def _drop(self, run: Errand) -> None:
        if self._by_key.get(run.key) is run:
            del self._by_key[run.key]

    def cancel(self, run: Errand, *, gently: bool = False) -> None:
        """One who wanted a run wants it no longer; when nobody does, it ends wherever it is.

        `gently`: what is running already goes on, for whoever comes back to the page: to end it
        may mean to start the worker anew.
        """
        with self._lock:
            run.wanted -= 1
            if run.wanted > 0 or run.ended.is_set():
                return
            if run in self._waiting:
                self._waiting.remove(run)
                self._drop(run)
                run.finish("cancelled")
            elif run is self._now and not gently:
                self._drop(run)
                self._stop.set()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._end_process()

    # ------------------------------------------------------------------ the thread that attends

    def _attend(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
                run = self._now = self._waiting.pop(0)
                run.state = "running"
                self._stop.clear()
            self._do(run)
            with self._lock:
                self._now = None
                if run.ended.is_set() and run.result is None:
                    self._drop(run)

    def _do(self, run: Errand) -> None:
        try:
            self._ensure_process()
            self._pipe.send((0, run.work))
            self._listen(run)
        except (EOFError, OSError):
            self._end_process()
            if run.state == "running":
                run.finish("failed", words="the worker ended: there may be too little memory")

    def _listen(self, run: Errand) -> None:
        asked: float | None = None
        while not run.ended.is_set():
            if self._pipe.poll(TICK):
                kind, _, payload = self._pipe.recv()
                self._hear(run, kind, payload)
            elif (process := self._process) is None or not process.is_alive():
                raise EOFError  # it died, or the app is being closed
            if self._stop.is_set() and not run.ended.is_set():
                asked = asked or monotonic()
                if monotonic() - asked > GRACE:
                    self._end_process()
                    run.finish("cancelled")

    def _hear(self, run: Errand, kind: str, payload: Any) -> None:
        if kind == "progress":
            run.progress = payload
        elif kind == "done":
            run.finish("done", payload)
        elif kind == "stopped":
            run.finish("cancelled")
        else:
            run.finish("failed", words=payload)

    def _ensure_process(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._pipe, child = self._context.Pipe()
        given = (child, self._stop, self._origins)
        self._process = self._context.Process(target=work_on, args=given, daemon=True)
        self._process.start()
        child.close()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.join(GRACE)
            if process.is_alive():
                process.kill()
