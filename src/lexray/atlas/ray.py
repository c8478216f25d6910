"""An atlas made by a Ray cluster: chunks are tasks, workers open the model, Ray does the rest.

Scheduling, and trying again where a worker or a machine is lost, are Ray's. Results go from the
workers straight to where the atlas lies, which all of them have to reach.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lexray.atlas.make import Task
from lexray.atlas.manifest import sample
from lexray.atlas.options import AtlasOptions
from lexray.atlas.store import Store
from lexray.atlas.work import Done, Run, open_once, work_on
from lexray.errors import LexrayError
from lexray.model.origin import Origin

PATIENCE = 10
"""Seconds in which a cluster has to answer."""
RETRIES = 5
"""How often a task is begun again whose worker was lost."""


def run_on_ray(
    address: str, origin: Origin, expected: str, options: AtlasOptions, store: Store
) -> Run:
    """`address` is a cluster's; "auto" is one that runs here, or else a new one for this run."""
    ray = _import()

    def run(tasks: Sequence[Task]) -> Iterator[Done]:
        if not tasks:
            return
        own = _connect(ray, address)
        try:
            begin = ray.remote(num_cpus=1, max_retries=RETRIES)(_work)
            given = [ray.put(x) for x in (origin, expected, options, store)]
            yield from _collect(ray, [begin.remote(task, *given) for task in tasks])
        finally:
            if own:
                ray.shutdown()

    return run


def _import() -> Any:
    try:
        import ray
    except ImportError as error:
        raise LexrayError("Ray is not installed: pip install 'lexray[ray]'") from error
    return ray


def _connect(ray: Any, address: str) -> bool:
    """Whether it was this run that connected, and has to let go."""
    if ray.is_initialized():
        return False
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    _refuse_unreachable(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError, OSError) as error:
        if address != "auto":
            raise LexrayError(f"there is no Ray cluster at {address}: {error}") from error
        _start(ray, quiet)
    return True


def _refuse_unreachable(address: str) -> None:
    """Ray itself looks for a cluster that is not there for a quarter of an hour."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise LexrayError(f"there is no Ray cluster at {address}: {error}") from error


def _start(ray: Any, quiet: dict[str, Any]) -> None:
    try:
        ray.init(address="local", include_dashboard=False, **quiet)
    except Exception as error:  # Ray raises nothing more telling
        raise LexrayError(f"Ray does not start here: {error}") from error


def _work(task: Task, origin: Origin, expected: str, options: AtlasOptions, store: Store) -> Done:
    """In a worker, perhaps on another machine: whose model has to be the same."""
    if sample(open_once(origin)) != expected:
        raise LexrayError(
            f"a worker opened another model under {origin.source!r}; give all machines the same"
        )
    return work_on(task, origin, options, store)


def _collect(ray: Any, pending: list[Any]) -> Iterator[Done]:
    """Results as they come."""
    try:
        while pending:
            done, pending = ray.wait(pending, num_returns=1)
            yield from ray.get(done)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, LexrayError) else error) from None
    except ray.exceptions.RayError as error:
        raise LexrayError(
            f"Ray gave up on a chunk ({type(error).__name__}); what is done is kept: run it again"
        ) from error
    finally:
        _cancel(ray, pending)


def _cancel(ray: Any, pending: Iterable[Any]) -> None:
    if ray.is_initialized():
        for reference in pending:
            ray.cancel(reference)
