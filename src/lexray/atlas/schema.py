"""What an atlas holds: its tables, column by column, and how they lie in Parquet files.

Scores in lists and in the index are kept to 12 bits after the first (one part in 8,192): the last
bits of a float32 are noise of the arithmetic, and half of the files.
"""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

SCHEMA = 1
"""To be raised when a table comes to mean something else."""
ROW_GROUP = 131072
"""Rows that are read together. A word is found thrice as fast as with an eighth of it, where there
are more groups to pass over, though a question then touches less."""
ZSTD = 3
DROPPED = 11
"""Bits of a stored score's 23 that are rounded away."""

IDS, SCORES, WORDS = pa.list_(pa.int32()), pa.list_(pa.float32()), pa.list_(pa.string())


def _table(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


_VECTOR = {
    "kind": pa.string(),
    "side": pa.string(),
    "layer": pa.int16(),
    "owner": pa.string(),
    "number": pa.int32(),
}
TABLES: dict[str, pa.Schema] = {
    "tokens": _table(
        id=pa.int32(),
        text=pa.string(),
        shown=pa.string(),
        norm=pa.float32(),
        input_norm=pa.float32(),
        special=pa.bool_(),
        untrained=pa.string(),
    ),
    "vectors": _table(
        address=pa.string(),
        **_VECTOR,
        norm=pa.float32(),
        legibility=pa.float32(),
        top_ids=IDS,
        top_scores=SCORES,
        bottom_ids=IDS,
        bottom_scores=SCORES,
    ),
    "index": _table(
        token=pa.int32(),
        **_VECTOR,
        end=pa.string(),
        rank=pa.int16(),
        score=pa.float32(),
    ),
    "pairs": _table(
        address=pa.string(),
        circuit=pa.string(),
        layer=pa.int16(),
        head=pa.int16(),
        rank=pa.int16(),
        row=pa.int32(),
        col=pa.int32(),
        score=pa.float32(),
    ),
    "matrices": _table(
        address=pa.string(),
        circuit=pa.string(),
        layer=pa.int16(),
        head=pa.int16(),
        kv=pa.int16(),
        norm=pa.float32(),
        rank=pa.float32(),
        legibility=pa.float32(),
        work=pa.float32(),
        note=pa.string(),
    ),
    "directions": _table(
        address=pa.string(),
        circuit=pa.string(),
        layer=pa.int16(),
        head=pa.int16(),
        rank=pa.int16(),
        singular=pa.float32(),
        share=pa.float32(),
        end=pa.string(),
        legibility=pa.float32(),
        top_ids=IDS,
        top_scores=SCORES,
        bottom_ids=IDS,
        bottom_scores=SCORES,
    ),
    "relations": _table(
        relation=pa.string(),
        address=pa.string(),
        layer=pa.int16(),
        head=pa.int16(),
        sign=pa.string(),
        share=pa.float32(),
        chance=pa.float32(),
        q=pa.float64(),
        pairs=pa.int32(),
        right=WORDS,
    ),
    "roles": _table(
        address=pa.string(),
        layer=pa.int16(),
        head=pa.int16(),
        role=pa.string(),
        score=pa.float32(),
        chance=pa.float32(),
        q=pa.float64(),
        measured=pa.float32(),
        detail=pa.string(),
    ),
    "heads": _table(
        address=pa.string(),
        layer=pa.int16(),
        head=pa.int16(),
        does=pa.string(),
        copying=pa.float32(),
        previous=pa.float32(),
        first=pa.float32(),
        duplicate=pa.float32(),
        induction=pa.float32(),
        mover=pa.string(),
        measured_previous=pa.float32(),
        measured_first=pa.float32(),
        measured_duplicate=pa.float32(),
        measured_prefix_matching=pa.float32(),
        measured_copying=pa.float32(),
    ),
    "links": _table(
        rank=pa.int32(),
        between=pa.string(),
        writer=pa.string(),
        reader=pa.string(),
        via=pa.string(),
        strength=pa.float32(),
        times=pa.float32(),
        writes=WORDS,
        reads=WORDS,
    ),
    "evidence": _table(
        address=pa.string(),
        layer=pa.int16(),
        part=pa.string(),
        rank=pa.int16(),
        activation=pa.float32(),
        before=pa.string(),
        token=pa.int32(),
        text=pa.string(),
        after=pa.string(),
        followed=pa.int32(),
        looked_at=pa.int32(),
        wrote=IDS,
    ),
    "agreement": _table(
        address=pa.string(),
        layer=pa.int16(),
        part=pa.string(),
        reading=pa.string(),
        area=pa.float32(),
    ),
}
"""By name. `view` is a column of each when it is asked; it is kept in the files' paths."""
NO_VIEW = "any"
"""In place of a view, for what is the same under all."""
FLAT = ("norm", "input_norm", "score", "rank", "number", "token", "legibility", "row", "col")
"""Columns of numbers that a dictionary would only lengthen."""


def round_scores(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """To the nearest number with 12 bits after the first; what is not finite stays."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half, mask = np.uint32(1 << (DROPPED - 1)), np.uint32(0xFFFFFFFF ^ ((1 << DROPPED) - 1))
    rounded = ((bits + half) & mask).view(np.float32)
    return np.where(np.isfinite(values) & np.isfinite(rounded), rounded, values)


def to_parquet(name: str, table: pa.Table) -> bytes:
    """A table's file: the same rows give the same bytes."""
    table = table.select(TABLES[name].names).cast(TABLES[name])
    nested = [f.name for f in table.schema if pa.types.is_list(f.type) and f.type != WORDS]
    flat = [f.name for f in table.schema if f.name in FLAT]
    split = dict.fromkeys(flat, "BYTE_STREAM_SPLIT")
    split |= {f"{column}.list.element": "BYTE_STREAM_SPLIT" for column in nested}
    plain = {*flat, *nested}
    out = io.BytesIO()
    pq.write_table(
        table,
        out,
        compression="zstd",
        compression_level=ZSTD,
        row_group_size=ROW_GROUP,
        use_dictionary=[c for c in table.schema.names if c not in plain],
        column_encoding=split,
        store_schema=False,
    )
    return out.getvalue()


def count_rows(data: bytes) -> int:
    return int(pq.read_metadata(io.BytesIO(data)).num_rows)
