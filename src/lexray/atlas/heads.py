"""Chunks about heads: their matrices as pairs and directions, their roles, relations and links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import torch

from lexray.address import Address
from lexray.atlas.plan import Chunk
from lexray.atlas.schema import TABLES
from lexray.atlas.vectors import Columns, list_ends
from lexray.errors import LexrayError
from lexray.model.circuits import Circuit, factored_svd
from lexray.model.model import Model
from lexray.model.sweep import each_top
from lexray.result.links import Link
from lexray.result.pairs import Pairs
from lexray.roles.catalogue import Catalogue
from lexray.roles.scores import SURE, Relations, Score

Tables = dict[str, pa.Table]
Row = dict[str, Any]


def read_heads(model: Model, chunk: Chunk, k: int, directions: int) -> Tables:
    """The heads of a layer: VO and QK as their best pairs and their singular directions."""
    assert chunk.layer is not None
    layer = (model.encoder if chunk.stack == "enc" else model).layers[chunk.layer]
    heads = layer.cross_heads if chunk.stack == "cross" else layer.heads
    circuits: list[Circuit] = [c for head in heads for c in (head.vo, head.qk)]
    svds = [factored_svd(*circuit.matrices) for circuit in circuits]
    matrices: list[Row] = []
    pairs: list[Row] = []
    for circuit, best, (_, S, _) in zip(circuits, each_top(circuits, k), svds, strict=True):
        matrices.append(_describe(circuit, best, S))
        pairs += _pair_rows(circuit, best)
    return {
        "directions": _directions(circuits, svds, min(directions, len(svds[0][1])), k),
        "pairs": to_table("pairs", pairs),
        "matrices": to_table("matrices", matrices),
    }


def to_table(name: str, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=TABLES[name])


def _place(circuit: Circuit) -> Row:
    head = circuit.head
    return {
        "address": str(head.address),
        "circuit": circuit.matrix,
        "layer": head.layer,
        "head": head.index,
    }


def _describe(circuit: Circuit, pairs: Pairs, S: torch.Tensor) -> Row:
    squares = S.square()
    total = squares.sum().clamp(min=1e-300)
    return {
        **_place(circuit),
        "kv": circuit.head.kv_index,
        "norm": float(total.sqrt()),
        "rank": float(total.square() / squares.square().sum().clamp(min=1e-300)),
        "legibility": pairs.legibility,
        "work": pairs.work,
        "note": pairs.note,
    }


def _pair_rows(circuit: Circuit, pairs: Pairs) -> Iterator[Row]:
    for rank, pair in enumerate(pairs.pairs, 1):
        place = _place(circuit)
        yield {**place, "rank": rank, "row": pair.row.id, "col": pair.col.id, "score": pair.score}


def _directions(circuits: list[Circuit], svds: list[Any], n: int, k: int) -> pa.Table:
    """The n largest of each, both ends; ends that are read alike are read together."""
    tables = []
    for matrix in ("VO", "QK"):
        chosen = [(c, svd) for c, svd in zip(circuits, svds, strict=True) if c.matrix == matrix]
        for end in range(2):
            group = chosen[0][0].head.group(chosen[0][0].kinds[end])
            X = torch.cat([(svd[2] if end else svd[0]).T[:n] for _, svd in chosen])
            shares = [
                svd[1].square() / svd[1].square().sum().clamp(min=1e-300) for _, svd in chosen
            ]
            places = [_place(circuit) for circuit, _ in chosen for _ in range(n)]
            columns: Columns = {
                **{name: [place[name] for place in places] for name in places[0]},
                "rank": list(range(1, n + 1)) * len(chosen),
                "singular": [float(s) for _, svd in chosen for s in svd[1][:n]],
                "share": [float(s) for share in shares for s in share[:n]],
                "end": [("input", "output")[end]] * len(places),
                **list_ends(group.read_in, group.layer, X, group.kind, k),
            }
            tables.append(pa.table(columns, schema=TABLES["directions"]))
    return pa.concat_tables(tables)


# ------------------------------------------------------------------ of all heads at once


def read_roles(model: Model) -> Tables:
    """Roles from weights; measured in a run too, where the model can be run."""
    try:
        catalogue = model.catalogue()
    except LexrayError:
        catalogue = model.catalogue(measure=False)
    return {
        "heads": to_table("heads", list(_head_rows(catalogue))),
        "roles": to_table("roles", list(_role_rows(catalogue))),
    }


def _at(address: str) -> Row:
    at = Address.parse(address)
    return {"address": address, "layer": at.layer, "head": at.head}


def _head_rows(catalogue: Catalogue) -> Iterator[Row]:
    for entry in catalogue.entries:
        said = entry.to_dict()
        measured = {f"measured_{key}": value for key, value in (said["measured"] or {}).items()}
        names = ("copying", "previous", "first", "duplicate", "induction", "mover")
        plain = {name: said[name] for name in names}
        yield {**_at(entry.address), "does": entry.said, **plain, **measured}


def _role_rows(catalogue: Catalogue) -> Iterator[Row]:
    for entry in catalogue.entries:
        for role in entry.roles:
            yield {**_at(entry.address), **role.to_dict()}


def read_relations(model: Model) -> pa.Table:
    """Every head and relation; the pairs that hold of those that are no chance."""
    try:
        relations = model.relations()
    except LexrayError:  # a vocabulary without the words of any relation
        return TABLES["relations"].empty_table()
    sure = _sure(relations)
    rows = []
    for relation, address, sign, share, chance, _, q, _, pairs in relations.csv_tables()[0].rows:
        score = sure.get((str(relation), str(address), str(sign)))
        right = [f"{a} → {b}" for a, b in score.right] if score else None
        row = {"relation": relation, **_at(str(address)), "sign": sign, "share": share}
        rows.append({**row, "chance": chance, "q": q, "pairs": pairs, "right": right})
    return to_table("relations", rows)


def _sure(relations: Relations) -> dict[tuple[str, str, str], Score]:
    return {
        (score.relation.name, score.address, "writes" if score.sign == 1 else "suppresses"): score
        for address in relations.addresses
        for score in relations.at(address)
        if score.q < SURE
    }


def read_links(model: Model, n: int) -> pa.Table:
    """The strongest links between neurons, and between heads."""
    rows: list[Row] = []
    for between, links in (("neurons", model.wires(n)), ("heads", model.composition(n).links)):
        rows += [_link_row(rank, between, link) for rank, link in enumerate(links, 1)]
    return to_table("links", rows)


def _link_row(rank: int, between: str, link: Link) -> Row:
    reader, _, via = link.reader.rpartition(".")
    return {**link.to_dict(), "rank": rank, "between": between, "reader": reader, "via": via}
