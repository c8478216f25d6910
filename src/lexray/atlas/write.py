"""Writing an atlas: what is there is kept, what is missing is made, here or by workers.

A chunk is done when its files are there. They are written beside and renamed, so an end at any
point, however hard, leaves an atlas that can be read, and gone on with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

import pyarrow as pa

from lexray.atlas.make import Task, Written
from lexray.atlas.manifest import Manifest, sample
from lexray.atlas.options import AtlasOptions
from lexray.atlas.plan import Chunk, cost_of, order_of, plan_chunks, plan_index
from lexray.atlas.store import Store
from lexray.atlas.work import Done, Run, run_here, run_in_processes
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.progress import track

TICKS = 1000
"""Steps of the progress bar, shared out by what chunks cost."""
SAVED_EVERY = 10.0
"""Seconds between two notes of what is done; the files themselves say it too."""


@dataclass(frozen=True)
class Wrote:
    """What a run has done."""

    manifest: Manifest
    new: int
    """Chunks that it made; the others were there."""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(written.size for written in self.manifest.files.values())


def write_atlas(
    model: Model,
    to: str,
    options: AtlasOptions | None = None,
    *,
    workers: int = 1,
    ray: str | None = None,
) -> Wrote:
    """Reads every parameter of a model into a folder, or any address of fsspec's.

    `workers` are processes that open the model themselves, from where it came; `ray` is the
    address of a cluster whose workers do so ("auto": one that runs here, or a new one). What an
    earlier run has left is kept.
    """
    options, store = options or AtlasOptions(), Store(to)
    manifest = prepare(model, store, options, model.origin.source if model.origin else "")
    manifest.write(store)
    run = choose_run(model, store, options, workers, ray)
    files = keep_done(store, manifest)
    reading = [chunk for chunk in manifest.planned if chunk.job != "index"]
    index = [chunk for chunk in manifest.planned if chunk.job == "index"]
    work = AtlasWriter(model, store, options, manifest, files)
    new = work.do(sorted(reading, key=order_of), run, f"reading {model.name}")
    new += work.do(sorted(index, key=order_of), run, "indexing")
    return Wrote(work.finish(), new)


def prepare(model: Model, store: Store, options: AtlasOptions, source: str) -> Manifest:
    """The manifest with all that is there and all that is asked for."""
    here = Manifest.begin(model, options, source)
    there = Manifest.read(store)
    if there is None and store.names():
        raise LexrayError(
            f"{store.where} holds files like an atlas's, but no manifest; choose another folder"
        )
    joined = here if there is None else there.join(here, store.where)
    before = [chunk for chunk in joined.planned if chunk.job != "index"]
    chunks = {*before, *plan_chunks(model, options)}
    planned = frozenset([*chunks, *plan_index(model, options, chunks)])
    return replace(joined, planned=planned)


def keep_done(store: Store, manifest: Manifest) -> dict[str, Written]:
    """The files of chunks that are whole; those that a killed run did not note are looked at."""
    names, noted = store.names(), manifest.files
    whole_files: dict[str, Written] = {}
    for chunk in manifest.planned:
        if not names.issuperset(chunk.names):
            continue
        files = [noted.get(name) or _look(store, name) for name in chunk.names]
        whole = [file for file in files if file is not None]
        if len(whole) == len(files):
            whole_files |= {file.name: file for file in whole}
    return whole_files


def _look(store: Store, name: str) -> Written | None:
    data = store.read(name)
    with suppress(pa.ArrowInvalid, OSError):  # no Parquet file: it is made again
        return None if data is None else Written.of(name, data)
    return None


@dataclass
class AtlasWriter:
    """An atlas while it is written."""

    model: Model
    store: Store
    options: AtlasOptions
    manifest: Manifest
    files: dict[str, Written]
    saved: float = 0.0

    def do(self, chunks: Sequence[Chunk], run: Run, what: str) -> int:
        """Makes what is missing of some chunks; how many that were."""
        left = [chunk for chunk in chunks if not self._has(chunk)]
        if self.options.text is None and any(chunk.job == "evidence" for chunk in left):
            raise LexrayError(
                f"{self.store.where} was begun with a text, and its evidence is not finished: give "
                "the same text again"
            )
        costs = {chunk: cost_of(self.model, self.options, chunk) for chunk in chunks}
        try:
            done = run([self._task(chunk) for chunk in left])
            for _ in track(self._ticks(chunks, costs, done), TICKS, what):
                pass
        finally:
            self.save()
        return len(left)

    def _has(self, chunk: Chunk) -> bool:
        return all(name in self.files for name in chunk.names)

    def _task(self, chunk: Chunk) -> Task:
        if chunk.job != "index":
            return Task(chunk)
        planned = [c for c in self.manifest.planned if c.view == chunk.view]
        over = [c for c in planned if c.job in ("vectors", "others")]
        parts = sum(c.job == "index" for c in planned)
        return Task(chunk, tuple(c.name for c in sorted(over, key=order_of)), parts)

    def _ticks(
        self, chunks: Sequence[Chunk], costs: dict[Chunk, float], done: Iterable[Done]
    ) -> Iterator[None]:
        """Steps of the bar as their share of the cost is done."""
        total = sum(costs.values()) or 1.0
        reached = sum(costs[chunk] for chunk in chunks if self._has(chunk))
        given = 0
        for task, written in done:
            self.files |= {file.name: file for file in written}
            reached += costs[task.chunk]
            if monotonic() - self.saved > SAVED_EVERY:
                self.save()
            steps = int(TICKS * reached / total)
            yield from [None] * (steps - given)
            given = steps

    def save(self) -> None:
        self.manifest = self.manifest.with_files(self.files)
        self.manifest.write(self.store)
        self.saved = monotonic()

    def finish(self) -> Manifest:
        """Takes away what an index of fewer vectors has left."""
        planned = {name for chunk in self.manifest.planned for name in chunk.names}
        for name in self.store.names() - planned:
            if name.startswith("index/"):
                self.store.remove(name)
        return self.manifest


def choose_run(
    model: Model, store: Store, options: AtlasOptions, workers: int, ray: str | None
) -> Run:
    """This process, several, or a cluster."""
    if workers < 1:
        raise LexrayError(f"asked for {workers} workers; there has to be at least one")
    if ray is None and workers == 1:
        return run_here(model, options, store)
    if model.origin is None:
        raise LexrayError(
            f"workers open the model themselves, and {model.name} was not opened from files: save "
            "it to a folder and open that, or take one worker"
        )
    if not store.shared:
        raise LexrayError(f"{store.where} is this process's own; workers could not write there")
    if ray is None:
        return run_in_processes(workers, model.origin, options, store)
    from lexray.atlas.ray import run_on_ray  # which brings Ray along

    return run_on_ray(ray, model.origin, sample(model), options, store.absolute)
