"""Who has a token in its list: the lists turned round, sorted by token."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lexray.atlas.schema import TABLES
from lexray.atlas.store import Store
from lexray.errors import LexrayError

ENDS = ("bottom", "top")
OF_VECTOR = ("kind", "side", "layer", "owner", "number")


@dataclass
class _Entries:
    """What the files have for some tokens, and the vectors it belongs to."""

    tokens: list[Any] = field(default_factory=list)
    vectors: list[Any] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    ranks: list[Any] = field(default_factory=list)
    scores: list[Any] = field(default_factory=list)
    known: list[pa.Table] = field(default_factory=list)
    n: int = 0

    def add(self, table: pa.Table, start: int, stop: int) -> None:
        for end, name in enumerate(ENDS):
            ids, counts = _flatten(table[f"{name}_ids"])
            scores, _ = _flatten(table[f"{name}_scores"])
            at = np.flatnonzero((ids >= start) & (ids < stop))
            vector = np.repeat(np.arange(len(table)), counts)
            first = np.repeat(np.cumsum(counts) - counts, counts)
            self.tokens.append(ids[at])
            self.vectors.append((vector[at] + self.n).astype(np.int32))
            self.ranks.append((at - first[at] + 1).astype(np.int16))
            self.ends.append(np.full(len(at), end, dtype=np.int8))
            self.scores.append(scores[at])
        self.known.append(table.select(OF_VECTOR))
        self.n += len(table)

    def sort(self) -> pa.Table:
        """By token, then the top before the bottom, then as the vectors lie in the model."""
        if not self.known:
            return TABLES["index"].empty_table()
        tokens, vectors, ends = map(np.concatenate, (self.tokens, self.vectors, self.ends))
        order = np.lexsort((vectors, -ends, tokens))
        known = pa.concat_tables(self.known).combine_chunks()
        columns = {
            "token": tokens[order],
            **{name: known[name].take(vectors[order]) for name in OF_VECTOR},
            "end": pa.DictionaryArray.from_arrays(ends[order], list(ENDS)).cast(pa.string()),
            "rank": np.concatenate(self.ranks)[order],
            "score": np.concatenate(self.scores)[order],
        }
        return pa.table(columns)


def read_index(store: Store, over: Sequence[str], start: int, stop: int) -> pa.Table:
    """The tokens from `start` to before `stop`, in all these files of vectors."""
    entries = _Entries()
    for table in _tables(store, over):
        entries.add(table, start, stop)
    return entries.sort()


def _tables(store: Store, over: Sequence[str]) -> Iterator[pa.Table]:
    for name in over:
        data = store.read(name)
        if data is None:
            raise LexrayError(f"{name} is gone from {store.where}; the index needs it")
        lists = [f"{end}_{what}" for end in ENDS for what in ("ids", "scores")]
        yield pq.read_table(io.BytesIO(data), columns=[*OF_VECTOR, *lists])


def _flatten(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """A column of lists as one array, and the lists' lengths."""
    whole = column.combine_chunks()
    counts = np.diff(whole.offsets.to_numpy())
    return whole.flatten().to_numpy(), counts
