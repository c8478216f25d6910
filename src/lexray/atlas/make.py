"""From a chunk to its tables, and from these to files: what every worker does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa
import torch

from lexray.atlas.evidence import read_evidence
from lexray.atlas.heads import Tables, read_heads, read_links, read_relations, read_roles
from lexray.atlas.index import read_index
from lexray.atlas.options import AtlasOptions
from lexray.atlas.plan import Chunk
from lexray.atlas.schema import NO_VIEW, TABLES, count_rows, to_parquet
from lexray.atlas.store import Store
from lexray.atlas.vectors import read_others, read_vectors
from lexray.model.embedding import embedding, unembedding
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.scratch import join_rows
from lexray.space.untrained import untrained
from lexray.view import VIEWS

AT_ONCE = 4096


@dataclass(frozen=True)
class Written:
    """A file of an atlas."""

    name: str
    rows: int
    size: int
    """In bytes."""
    sha256: str

    @classmethod
    def of(cls, name: str, data: bytes) -> Written:
        return cls(name, count_rows(data), len(data), sha256(data).hexdigest())


@dataclass(frozen=True)
class Task:
    """A chunk, and what of its surroundings it needs."""

    chunk: Chunk
    over: tuple[str, ...] = ()
    """Of the index: the files of vectors."""
    parts: int = 1
    """Of the index: in how many files it is."""


def write_chunk(model: Model, task: Task, options: AtlasOptions, store: Store) -> list[Written]:
    """Makes a chunk with one thread, so that it is the same whoever makes it; then its files."""
    with one_thread():
        tables = make_tables(model, task, options, store)
    written = []
    for name in task.chunk.names:
        data = to_parquet(name.partition("/")[0], tables[name.partition("/")[0]])
        store.write(name, data)
        written.append(Written.of(name, data))
    return written


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums of several threads depend on how many there are, in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)


def make_tables(model: Model, task: Task, options: AtlasOptions, store: Store) -> Tables:
    chunk = task.chunk
    if chunk.view != NO_VIEW:
        model = model.with_view(VIEWS[chunk.view])
    match chunk.job:
        case "tokens":
            return {"tokens": read_tokens(model)}
        case "vectors":
            return {"vectors": read_vectors(model, chunk, options.k)}
        case "others":
            return {"vectors": read_others(model, chunk, options.k)}
        case "heads":
            return read_heads(model, chunk, options.k, options.directions)
        case "roles":
            return read_roles(model)
        case "relations":
            return {"relations": read_relations(model)}
        case "links":
            return {"links": read_links(model, options.links)}
        case "evidence":
            assert options.text is not None
            return read_evidence(model, chunk, options.text)
        case "index":
            n = model.space.n_rows
            part, step = chunk.part or 0, -(-n // task.parts)
            table = read_index(store, task.over, part * step, min(n, (part + 1) * step))
            return {"index": table}


def read_tokens(model: Model) -> pa.Table:
    """Every row of the embedding: its text, its length, and whether training has touched it."""
    vocabulary, rows = model.vocabulary, unembedding(model)
    n = len(rows)
    there = vocabulary.mask(n).tolist()
    aside = untrained(model)
    a = model.architecture
    own = a.embed != a.unembed and a.embed in model.checkpoint.names()
    inputs = embedding(model, a.embed) if own else rows
    norms = _norms(rows)
    columns = {
        "id": list(range(n)),
        "text": [vocabulary.text(i) if there[i] else None for i in range(n)],
        "shown": [vocabulary.shown(i) if there[i] else None for i in range(n)],
        "norm": norms.numpy(),
        "input_norm": [*_norms(inputs)[:n].tolist(), *[None] * (n - len(inputs))],
        "special": [there[i] and vocabulary.is_special(i) for i in range(n)],
        "untrained": [aside.get(i) if there[i] else "no token" for i in range(n)],
    }
    return pa.table(columns, schema=TABLES["tokens"])


def _norms(rows: torch.Tensor) -> torch.Tensor:
    blocks = torch.split(rows, AT_ONCE)
    return join_rows(len(rows), (at_least_float32(b).norm(dim=1).float().cpu() for b in blocks))
