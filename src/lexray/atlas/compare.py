"""Two atlases beside each other: of checkpoints, address by address; of any two models, by words.

Lists are compared by the texts of their tokens, so that vocabularies need not be the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lexray.atlas.rows import Rows
from lexray.atlas.schema import IDS
from lexray.atlas.sql import Database
from lexray.errors import LexrayError

AT_ONCE = 4096
ALIKE = ("n_layers", "n_heads", "n_kv_heads", "d_head", "d_mlp")
"""Sizes of models whose addresses stand for the same places."""
LISTS = """SELECT address, side, kind, layer, norm, legibility, top_ids FROM vectors
WHERE view = ? AND number IS NOT NULL {where} ORDER BY layer, kind, owner, number, side"""
PAIRS = """SELECT address || '.' || circuit AS address, 'pairs' AS side, circuit AS kind, layer,
    list(row ORDER BY rank) AS rows, list(col ORDER BY rank) AS cols
FROM pairs WHERE view = ? {where} GROUP BY ALL ORDER BY layer, address"""


@dataclass(frozen=True, eq=False)
class Half:
    """One of two atlases, under a view."""

    database: Database
    view: str
    texts: Sequence[str | None]
    shown: Sequence[str]

    @cached_property
    def ids_of_text(self) -> dict[str, int]:
        """The first token of each text."""
        return {text: i for i, text in reversed(list(enumerate(self.texts))) if text}


def is_alike(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    """Whether two models have the same places."""
    return all(a.get(name) == b.get(name) for name in ALIKE)


def compare_places(
    a: Half, b: Half, kind: str | None, layer: int | None, n: int | None
) -> pa.Table:
    """Vectors and matrices of the same address: what they share of their lists, the least first."""
    to_b = translate(a, b)
    tables = []
    if kind not in ("VO", "QK"):
        tables.append(_compare_lists(a, b, to_b, kind, layer))
    if kind in (None, "VO", "QK"):
        tables.append(_compare_pairs(a, b, to_b, kind, layer))
    whole = pa.concat_tables(
        [table for table in tables if len(table)] or tables[:1], promote_options="default"
    )
    order = np.argsort(whole["shared"].to_numpy(), kind="stable")[:n]
    return whole.take(order)


def translate(a: Half, b: Half) -> NDArray[np.int32]:
    """For each token of one vocabulary the one of the same text in the other, or −1."""
    ids = b.ids_of_text
    return np.array([ids.get(text, -1) if text else -1 for text in a.texts], dtype=np.int32)


def _ask(atlas: Half, query: str, kind: str | None, layer: int | None, name: str) -> pa.Table:
    given = {name: kind, "layer": layer}
    where = "".join(f" AND {key} = ?" for key, value in given.items() if value is not None)
    values = [atlas.view, *(value for value in given.values() if value is not None)]
    return atlas.database.ask(query.format(where=where), values)


def _join(a: pa.Table, b: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows that both have, in the first one's order."""
    places = [
        list(zip(*(t[c].to_pylist() for c in ("address", "side")), strict=True)) for t in (a, b)
    ]
    at = {place: i for i, place in enumerate(places[1])}
    both = [(i, at[place]) for i, place in enumerate(places[0]) if place in at]
    if not both:
        raise LexrayError("the two atlases have no parameter in common; compare them by words")
    return a.take([i for i, _ in both]), b.take([j for _, j in both])


def _compare_lists(
    a: Half, b: Half, to_b: NDArray[np.int32], kind: str | None, layer: int | None
) -> pa.Table:
    one, other = _join(*(_ask(x, LISTS, kind, layer, "kind") for x in (a, b)))
    X, Y = _matrix(one["top_ids"]), _matrix(other["top_ids"])
    X = np.where(X >= 0, to_b[X], -1)
    shared = _share(X, Y)
    columns = {
        **{name: one[name] for name in ("address", "kind", "side", "layer")},
        "shared": shared,
        "norm": one["norm"],
        "other_norm": other["norm"],
        "legibility": one["legibility"],
        "other_legibility": other["legibility"],
        "top_ids": one["top_ids"],
        "other_words": _words(other["top_ids"], b.shown),
    }
    return pa.table(columns)


def _compare_pairs(
    a: Half, b: Half, to_b: NDArray[np.int32], kind: str | None, layer: int | None
) -> pa.Table:
    tables = [_ask(x, PAIRS, kind, layer, "circuit") for x in (a, b)]
    if not all(len(table) for table in tables):
        return pa.table(
            {"address": pa.array([], pa.string()), "shared": pa.array([], pa.float32())}
        )
    one, other = _join(*tables)
    X, Y = (_codes(t, ids) for t, ids in ((one, to_b), (other, np.arange(len(b.shown)))))
    columns = {
        **{name: one[name] for name in ("address", "kind", "side", "layer")},
        "shared": _share(X, Y),
        "top_ids": one["rows"].cast(IDS),
        "other_words": _words(other["rows"], b.shown),
    }
    return pa.table(columns)


def _codes(table: pa.Table, ids: NDArray[Any]) -> NDArray[np.int64]:
    """A number for each pair of tokens, the same in both vocabularies; −1 where there is none."""
    rows, cols = (_matrix(table[name]).astype(np.int64) for name in ("rows", "cols"))
    left, right = ids[rows].astype(np.int64), ids[cols].astype(np.int64)
    there = (rows >= 0) & (left >= 0) & (right >= 0)
    return np.where(there, left << 32 | right, -1)


def _matrix(lists: pa.ChunkedArray) -> NDArray[np.int32]:
    """Lists as rows, filled up with −1."""
    whole = lists.combine_chunks()
    counts = np.diff(whole.offsets.to_numpy())
    padded = np.full((len(whole), max(1, counts.max(initial=1))), -1, dtype=np.int32)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = whole.flatten().to_numpy()
    return padded


def _share(X: NDArray[Any], Y: NDArray[Any]) -> NDArray[np.float32]:
    """Of each row of X: which share of it is in the same row of Y."""
    parts = [np.zeros(0, dtype=np.float32)]
    for start in range(0, len(X), AT_ONCE):
        x, y = X[start : start + AT_ONCE], Y[start : start + AT_ONCE]
        inside = ((x[:, :, None] == y[:, None, :]) & (x >= 0)[:, :, None]).any(2)
        parts.append((inside.sum(1) / np.maximum(1, (y >= 0).sum(1))).astype(np.float32))
    return np.concatenate(parts)


def _words(lists: pa.ChunkedArray, shown: Sequence[str]) -> list[list[str]]:
    return [[shown[i] for i in ids[:10]] for ids in lists.to_pylist()]


def join_partners(owns: Sequence[dict[str, Any]], partners: Sequence[Rows]) -> pa.Table:
    """Vectors of one model, each with the one in the other whose list is most like it; the most
    alike first, then those that have none."""
    rows: list[dict[str, Any]] = []
    for own, theirs in zip(owns, partners, strict=True):
        best = theirs[0] if len(theirs) else {}
        rows.append(
            {
                **{name: own[name] for name in ("address", "kind", "side", "layer", "legibility")},
                "other": best.get("address"),
                "other_side": best.get("side"),
                "alike": best.get("alike"),
                "top_ids": own["top_ids"],
                "shared_words": theirs.words(best.get("shared_ids", ())),
            }
        )
    if not rows:
        raise LexrayError("there are no vectors of that kind and layer")
    rows.sort(key=lambda row: -abs(row["alike"] or 0))
    table = pa.Table.from_pylist(rows)
    at = table.schema.get_field_index("top_ids")
    return table.set_column(at, "top_ids", table["top_ids"].cast(IDS))
