"""What was worked out stays for a while; what is under way is waited for, not begun again."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from lexray.errors import LexrayError

KEPT = 1024
THREADS = 4
WAITING = 96
"""So many may be under way or in the queue."""


class BusyError(LexrayError):
    """Too much is under way."""


class Answers:
    """Results by what was asked, with a bound; each is worked out once."""

    def __init__(self, kept: int = KEPT, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lexray-answer")
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._most, self._lock = kept, threading.Lock()

    def ask(self, key: Hashable, work: Callable[[], Any]) -> Future[Any]:
        """The answer, perhaps still to come. Errors are not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                done: Future[Any] = Future()
                done.set_result(self._kept[key])
                return done
            if key in self._under_way:
                return self._under_way[key]
            if len(self._under_way) >= WAITING:
                raise BusyError("too much is being worked out already; try again in a moment")
            future = self._pool.submit(work)
            self._under_way[key] = future
        future.add_done_callback(lambda done: self._keep(key, done))
        return future

    def _keep(self, key: Hashable, done: Future[Any]) -> None:
        with self._lock:
            self._under_way.pop(key, None)
            if not done.cancelled() and done.exception() is None:
                self._kept[key] = done.result()
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


async def wait_for(futures: list[Future[Any]], seconds: float | None) -> None:
    """Until all are done, or so long."""
    if futures:
        waiting = [asyncio.wrap_future(asyncio_safe(future)) for future in futures]
        await asyncio.wait(waiting, timeout=seconds)


def asyncio_safe(future: Future[Any]) -> Future[Any]:
    """A follower of a future: who stops waiting for it does not stop the work."""
    follower: Future[Any] = Future()

    def tell(done: Future[Any]) -> None:
        if follower.cancelled():
            return
        error = done.exception() if not done.cancelled() else None
        if not follower.set_running_or_notify_cancel():
            return
        follower.set_result(None if error or done.cancelled() else True)

    future.add_done_callback(tell)
    return follower
