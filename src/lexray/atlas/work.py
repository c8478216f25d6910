"""Who makes the chunks of an atlas: this process, or several that open the model themselves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from threading import Thread

from lexray.atlas.make import Task, Written, write_chunk
from lexray.atlas.options import AtlasOptions
from lexray.atlas.store import Store
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.model.origin import Origin

Done = tuple[Task, list[Written]]
Run = Callable[[Sequence[Task]], Iterable[Done]]
"""Makes tasks, in any order, and says which are done."""

_opened: list[tuple[Origin, Model]] = []
"""Of a worker: the model that it works on."""


def open_once(origin: Origin) -> Model:
    if not _opened or _opened[0][0] != origin:
        _opened[:] = [(origin, Model.reopen(origin))]
    return _opened[0][1]


def work_on(task: Task, origin: Origin, options: AtlasOptions, store: Store) -> Done:
    """In a worker."""
    return task, write_chunk(open_once(origin), task, options, store)


def end_with_parent() -> None:
    """In a worker: a process that was killed hard takes its workers along."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's, which ends its workers
    Thread(target=_outlive, daemon=True).start()


def _outlive() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def run_here(model: Model, options: AtlasOptions, store: Store) -> Run:
    """This process, one chunk after the other."""

    def run(tasks: Sequence[Task]) -> Iterator[Done]:
        for task in tasks:
            yield task, write_chunk(model, task, options, store)

    return run


def run_in_processes(workers: int, origin: Origin, options: AtlasOptions, store: Store) -> Run:
    """Several processes, each with a copy of the embedding."""

    def run(tasks: Sequence[Task]) -> Iterator[Done]:
        if not tasks:
            return
        pool = ProcessPoolExecutor(
            min(workers, len(tasks)), get_context("spawn"), initializer=end_with_parent
        )
        try:
            futures = [pool.submit(work_on, task, origin, options, store) for task in tasks]
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise LexrayError(
                "a worker was ended from outside (out of memory?); what is done is kept: run it "
                "again, with fewer workers if need be"
            ) from error
        finally:
            end_pool(pool)

    return run


def end_pool(pool: ProcessPoolExecutor) -> None:
    """At once: a chunk that nobody waits for any more need not be finished."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
