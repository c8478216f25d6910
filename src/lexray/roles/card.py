"""One card for a head or a neuron: everything there is to say of it, in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.cache import Drawer
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.roles.catalogue import Catalogue, Entry, catalogue
from lexray.roles.relations import relations
from lexray.roles.scores import SIGNS, Score, show_pairs
from lexray.roles.wiring import readers, writers
from lexray.space.space import space_of
from lexray.view import View

SALIENT, MAPPED = 10, 6
PARTNERS = 6
PAIRS = 10
ALL_HEADS: Drawer[tuple[View, bool], Catalogue] = Drawer(most=4)
"""The roles of all heads, which every head's card is taken from."""


@dataclass(frozen=True)
class Card(Result):
    """Sections, each a table."""

    source: Source
    sections: tuple[Table, ...]
    facts: dict[str, Any]

    def tables(self) -> list[Table]:
        return list(self.sections)

    def csv_tables(self) -> list[Table]:
        columns = ("address", "section", "row", "column", "value")
        rows: list[tuple[Cell, ...]] = [
            (self.source.address, table.title, i, name, cell)
            for table in self.sections
            for i, row in enumerate(table.rows, 1)
            for name, cell in zip(table.columns, row, strict=True)
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {**self.source.to_dict(), **self.facts}


def describe(model: Anatomy, address: Address, *, measure: bool = True) -> Card:
    """What a head or neuron does: `model["L25H1"].describe()`."""
    if address.head is not None:
        return _describe_head(model, model.head(address), measure)
    if address.neuron is not None:
        return _describe_neuron(model, address)
    raise LexrayError(f"{address} is neither a head nor a neuron; try L3H7 or L12N345")


def _describe_head(model: Anatomy, head: Head, measure: bool) -> Card:
    name = str(head.address)
    all_heads = ALL_HEADS.get(
        model.cache, (model.options, measure), lambda: catalogue(model, measure=measure)
    )
    entry = all_heads[name]
    scores = relations(model, only=head.address).at(name)
    moved = salient(head)
    vo, qk = head.vo.top(PAIRS, exclude_same=True), head.qk.top(PAIRS)
    directions = head.vo.svd(3, MAPPED)
    fed, feeds = writers(model, head.address, PARTNERS), readers(model, head.address, PARTNERS)
    sections = [
        _roles(entry, all_heads),
        *([_relations(scores)] if scores else []),
        _salient(name, moved),
        Table(
            ("attended to", "written", "score", "query", "looks for", "score "),
            tuple(
                (a.row.shown, a.col.shown, a.score, b.row.shown, b.col.shown, b.score)
                for a, b in zip(vo, qk, strict=False)
            ),
            f"{name}: the strongest pairs of VO, different words, and of QK",
        ),
        *directions.tables(),
        *fed.tables(),
        *feeds.tables(),
    ]
    facts = {
        **entry.to_dict(),
        "relations": [score.to_dict() for score in scores],
        "salient": [{"token": token, "size": size, "writes": list(w)} for token, size, w in moved],
        "VO": [pair.to_dict() for pair in vo],
        "QK": [pair.to_dict() for pair in qk],
        "writers": [link.to_dict() for link in fed],
        "readers": [link.to_dict() for link in feeds],
    }
    return Card(space_of(model, head.layer).source(name), tuple(sections), facts)


def _describe_neuron(model: Anatomy, address: Address) -> Card:
    neuron = model.neuron(address)
    read = neuron.top(12)
    fed, feeds = writers(model, address, PARTNERS), readers(model, address, PARTNERS)
    rows = tuple(
        (r.name, " ".join(r.tokens), " ".join(s.token.shown for s in r.bottom), r.legibility)
        for r in read
    )
    name = str(neuron.address)
    columns = ("vector", "top tokens", "bottom tokens", "legibility")
    sections = [
        Table(columns, rows, f"{name} as tokens", str(read.source)),
        *fed.tables(),
        *feeds.tables(),
    ]
    facts = {
        "readings": {r.name: r.ends() for r in read},
        "writers": [link.to_dict() for link in fed],
        "readers": [link.to_dict() for link in feeds],
    }
    return Card(space_of(model, address.layer).source(name), tuple(sections), facts)


def salient(head: Head, n: int = SALIENT) -> list[tuple[str, float, tuple[str, ...]]]:
    """The tokens that move the head most (the largest ‖e W_V W_O‖), and what they are mapped to.

    The size is a multiple of its root mean square over all tokens.
    """
    space = space_of(head.weights, head.layer)
    W_V, W_O = at_least_float32(head.W_V), at_least_float32(head.W_O)
    plain = replace(head.vo.space_of("V").side("V"), sigma=None)  # tokens at their own size
    A = plain.factor(W_V)
    R = torch.linalg.qr(W_O.T.double(), mode="r").R.to(A)
    sizes = (A @ R.T).norm(dim=1)
    best = sizes.topk(min(n, len(sizes))).indices
    X = A[best] @ W_O.to(A)
    written = space.side("O").top(X, MAPPED)
    typical = float(sizes.square().mean().sqrt()) or 1.0
    ids = best.cpu() if plain.ids is None else plain.ids[best.cpu()]
    shown = head.weights.vocabulary.shown
    return [
        (shown(int(token)), float(sizes[at]) / typical, tuple(shown(i) for i in row))
        for token, at, row in zip(ids, best, written.top_ids.tolist(), strict=True)
    ]


def _roles(entry: Entry, whole: Catalogue) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (role.name + role.detail, role.score, role.chance, role.q, role.measured)
        for role in entry.roles
    ]
    areas = [
        f"{role}: {told.area:.2f}"
        for role, told in whole.agreement.items()
        if told.area == told.area
    ]
    note = str(whole.source) + (
        f" · agreement (AUC) over all heads: {', '.join(areas)}" * bool(areas)
    )
    title = f"{entry.address}: roles from weights" + (", and measured" if entry.did else "")
    if not rows:
        rows = [("none that its weights show", None, None, None, None)]
    return Table(("role", "score", "chance", "q", "measured"), tuple(rows), title, note)


def _relations(scores: list[Score]) -> Table:
    rows = tuple(
        (str(s.relation), SIGNS[s.sign], s.share, s.chance, s.q, show_pairs(s.right, 6))
        for s in scores
    )
    columns = ("relation", "", "share", "chance", "q", "right")
    return Table(columns, rows, f"{scores[0].address}: relations", bars=frozenset({"share"}))


def _salient(name: str, moved: list[tuple[str, float, tuple[str, ...]]]) -> Table:
    rows = tuple((token, size, " ".join(written)) for token, size, written in moved)
    note = "size: ‖e W_V W_O‖ as a multiple of its root mean square over all tokens"
    return Table(("token", "size", "writes"), rows, f"{name}: the tokens that move it most", note)
