"""All heads with their roles: from weights, and measured in repeated random text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import torch

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.result.page import Script, page
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table, html_table
from lexray.roles.chance import q_values
from lexray.roles.induction import Match, induction
from lexray.roles.measured import Did, all_did
from lexray.roles.patterns import (
    OFFSETS,
    MeanLooks,
    Repeated,
    all_looks,
    by_chance,
    is_causal,
    repeated_tokens,
)
from lexray.roles.places import first_chance, place_chances, stands_out, tail
from lexray.roles.scores import SIGNS, Relations, Score
from lexray.roles.spectrum import Copying, all_copying
from lexray.space.area import area

SURE = 0.01
COPIES, FINDS = 0.25, 1.0
"""What a role takes beside a small q: of the eigenvalues, in effect sizes."""
DOES = 0.3
"""The attention from which on a head is measured to have a role."""
COPIED = 2.0
"""Likewise for copying, in standard deviations of all tokens' scores."""


MEASURED = ("previous", "first", "duplicate", "prefix", "copies")
"""What is measured of every head, in a word."""


@dataclass(frozen=True)
class Role:
    """Something a head does, from its weights."""

    name: str
    score: float
    chance: float
    q: float
    measured: float | None = None
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "role": self.name,
            "score": self.score,
            "chance": self.chance,
            "q": self.q,
            "measured": self.measured,
            "detail": self.detail,
        }


@dataclass(frozen=True)
class Entry:
    """One head."""

    address: str
    roles: tuple[Role, ...]
    """Those it has, with all that speaks for them."""
    copying: float
    looks: MeanLooks
    induction: Match
    duplicate: Match
    did: Did | None
    relations: tuple[Score, ...] = ()

    @property
    def said(self) -> str:
        """Its roles and relations in a line."""
        held = [f"{'' if s.sign == 1 else 'not '}{s.relation.name}" for s in self.relations[:4]]
        return ", ".join([role.name + role.detail for role in self.roles] + held)

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "roles": [role.to_dict() for role in self.roles],
            "copying": self.copying,
            "previous": self.looks.previous,
            "first": self.looks.first,
            "duplicate": self.duplicate.effect,
            "induction": self.induction.effect,
            "mover": self.induction.mover,
            "measured": None if self.did is None else _say_measured(self.did),
            "relations": [
                {"relation": s.relation.name, "sign": SIGNS[s.sign], "share": s.share, "q": s.q}
                for s in self.relations
            ],
        }


def _say_measured(did: Did) -> dict[str, float]:
    return {
        "previous": did.looks.previous,
        "first": did.looks.first,
        "duplicate": did.looks.double,
        "prefix_matching": did.looks.follower,
        "copying": did.copies,
    }


@dataclass(frozen=True)
class Told:
    """How static scores of a role go along with what was measured."""

    area: float
    """How often a head that is measured to have the role scores above one that has not (0.5 says
    nothing); NaN if none or all have it."""
    heads: int
    """How many have it."""
    rank: float
    """The rank correlation over all heads, whether or not any has the role."""


@dataclass(frozen=True)
class Catalogue(Result):
    """All heads of a model."""

    source: Source
    entries: tuple[Entry, ...]
    agreement: dict[str, Told]
    """By role, how well weights alone tell what was measured."""

    def __getitem__(self, address: str) -> Entry:
        for entry in self.entries:
            if entry.address == address:
                return entry
        raise LexrayError(f"there is no head {address!r} in this catalogue")

    def having(self, role: str) -> list[Entry]:
        """The heads with a role, the strongest first."""
        ranked = [
            (-abs(each.score), entry)
            for entry in self.entries
            for each in entry.roles
            if each.name == role
        ]
        return [entry for _, entry in sorted(ranked, key=lambda pair: pair[0])]

    def tables(self) -> list[Table]:
        columns = ("head", "does", "copying", "previous", "first", "duplicate", "induction")
        done = tuple(f"{name}, measured" for name in MEASURED)
        has = any(entry.did for entry in self.entries)
        rows: list[tuple[Cell, ...]] = []
        for entry in self.entries:
            row: tuple[Cell, ...] = (
                entry.address,
                entry.said,
                entry.copying,
                entry.looks.previous,
                entry.looks.first,
                entry.duplicate.effect,
                entry.induction.effect,
            )
            rows.append((*row, *(_say_measured(entry.did).values() if entry.did else ())))
        title = f"The heads of {self.source.called}: from weights" + (
            ", and measured" if has else ""
        )
        return [
            Table(columns + (done if has else ()), tuple(rows), title, self._note),
            *([self._agreement_table()] if self.agreement else []),
        ]

    @property
    def _note(self) -> str:
        return f"{self.source} · roles with q < {SURE}"

    def _agreement_table(self) -> Table:
        rows = tuple(
            (name, _or_none(told.area), told.heads, _or_none(told.rank))
            for name, told in self.agreement.items()
        )
        note = "AUC: how often a head that does it scores above one that does not, by weights alone"
        columns = ("role", "AUC", "heads that do it", "rank correlation")
        return Table(columns, rows, "What weights tell of what was measured", note)

    def csv_tables(self) -> list[Table]:
        table = self.tables()[0]
        names = [
            f"measured_{MEASURED[i - 7]}" if i >= 7 else name
            for i, name in enumerate(table.columns)
        ]
        return [replace(table, columns=tuple(names))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "heads": [entry.to_dict() for entry in self.entries],
            "agreement": {
                name: {"auc": _or_none(told.area), "heads": told.heads, "rank": _or_none(told.rank)}
                for name, told in self.agreement.items()
            },
        }

    def to_html(self) -> str:
        """A page whose table can be searched, and sorted by a click on its columns."""
        first, *others = self.tables()
        find = '<p><input id="find" type="search" placeholder="search" aria-label="search"></p>'
        body = [f"<main>{find}", html_table(first), *map(html_table, others), "</main>"]
        return page(first.title, "\n".join(body), scripts=[Script(SORT)])


SORT = """
const table = document.querySelector("table"), body = table.tBodies[0];
const value = (row, i) => row.cells[i].textContent;
const number = (text) => parseFloat(text.replace("−", "-"));
table.querySelectorAll("th").forEach((head, i) => {
  head.style.cursor = "pointer";
  head.tabIndex = 0;
  let down = true;
  const sort = () => {
    const rows = [...body.rows];
    const numeric = rows.every((row) => value(row, i) === "–" || !isNaN(number(value(row, i))));
    rows.sort((a, b) => numeric
      ? (number(value(a, i)) || 0) - (number(value(b, i)) || 0)
      : value(a, i).localeCompare(value(b, i), undefined, { numeric: true }));
    if (down) rows.reverse();
    down = !down;
    body.append(...rows);
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
});
document.getElementById("find").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
"""


def catalogue(
    model: Anatomy,
    *,
    measure: bool = True,
    relations: Relations | None = None,
    seed: int = 0,
) -> Catalogue:
    """Every head's roles; `measure` runs repeated random tokens, `relations` adds what it found."""
    text = repeated_tokens(model, seed)
    copied, seen = all_copying(model), all_looks(model, text)
    through, direct = induction(model, [each.previous for each in seen], seed=seed)
    did: Sequence[Did | None] = all_did(model, text) if measure else [None] * len(seen)
    heads = [str(head.address) for head in model.every_head]
    roles = _roles(model, text, copied, seen, through, direct, did)
    entries = tuple(
        Entry(
            address,
            tuple(roles[i]),
            copied[i].score,
            seen[i],
            through[i],
            direct[i],
            did[i],
            () if relations is None else tuple(relations.at(address)),
        )
        for i, address in enumerate(heads)
    )
    agreement = _agreement(entries) if measure else {}
    return Catalogue(model.space.source(""), entries, agreement)


def _roles(
    model: Anatomy,
    text: Repeated,
    copied: Sequence[Copying],
    seen: Sequence[MeanLooks],
    through: Sequence[Match],
    direct: Sequence[Match],
    did: Sequence[Did | None],
) -> list[list[Role]]:
    """Of every head the roles it has: large enough, and with q < 0.01 over all heads."""
    even = _equal_looks(model, text)
    up, down = (q_values(tail([sign * each.z for each in copied])) for sign in (1, -1))
    places = q_values(np.array([place_chances(*each) for each in zip(seen, even, strict=True)]))
    first = q_values(np.array([first_chance(*each) for each in zip(seen, even, strict=True)]))
    doubles = q_values(tail([match.z for match in direct]))
    tried = np.array([match.tried for match in through])
    pairs = q_values(np.minimum(1, tried * tail([match.z for match in through])))
    by_head: list[list[Role]] = []
    for i, looked in enumerate(seen):
        done, equal = did[i], even[i]
        roles = []

        def measured(name: str, done: Did | None = done) -> float | None:
            return None if done is None else _say_measured(done)[name]

        if up[i] < SURE and copied[i].score > COPIES:
            roles.append(Role("copying", copied[i].score, 0.0, float(up[i]), measured("copying")))
        if down[i] < SURE and copied[i].score < -COPIES:
            role = Role("anti-copying", copied[i].score, 0.0, float(down[i]), measured("copying"))
            roles.append(role)
        for offset in range(OFFSETS):
            share = float(looked.offsets[offset])
            q, level = float(places[i, offset]), float(equal.offsets[offset])
            if q < SURE and stands_out(share, level, equal):
                really = None if done is None else float(done.looks.offsets[offset])
                roles.append(Role(_place_name(offset), share, level, q, really))
        if first[i] < SURE and stands_out(looked.first, equal.first, equal):
            q = float(first[i])
            roles.append(Role("first token", looked.first, equal.first, q, measured("first")))
        if doubles[i] < SURE and direct[i].effect > FINDS:
            q = float(doubles[i])
            roles.append(Role("duplicate", direct[i].effect, 0.0, q, measured("duplicate")))
        if pairs[i] < SURE and through[i].effect > FINDS and copied[i].score > 0:
            detail, q = f" (after {through[i].mover})", float(pairs[i])
            really = measured("prefix_matching")
            roles.append(Role("induction", through[i].effect, 0.0, q, really, detail))
        by_head.append(roles)
    return by_head


def _equal_looks(model: Anatomy, text: Repeated) -> list[MeanLooks]:
    """What each head would give that looks at all it can see alike."""
    made: dict[Address, MeanLooks] = {}
    for head in model.every_head:
        layer = replace(head.address, head=0)
        if layer not in made:
            made[layer] = by_chance(text, head.spec, causal=is_causal(head))
    return [made[replace(head.address, head=0)] for head in model.every_head]


def _place_name(offset: int) -> str:
    return {0: "current token", 1: "previous token"}.get(offset, f"token {offset} before")


def _or_none(value: float) -> float | None:
    return None if isnan(value) else value


def _agreement(entries: Sequence[Entry]) -> dict[str, Told]:
    """Static scores against what was measured, role by role."""
    did = [entry.did for entry in entries if entry.did is not None]
    return {
        "previous token": _tell(
            [e.looks.previous for e in entries], [d.looks.previous for d in did], DOES
        ),
        "first token": _tell([e.looks.first for e in entries], [d.looks.first for d in did], DOES),
        "duplicate": _tell(
            [e.duplicate.effect for e in entries], [d.looks.double for d in did], DOES
        ),
        "induction": _tell(
            [e.induction.effect for e in entries], [d.looks.follower for d in did], DOES
        ),
        "copying": _tell([e.copying for e in entries], [d.copies for d in did], COPIED),
    }


def _tell(scores: Sequence[float], measured: Sequence[float], least: float) -> Told:
    from scipy import stats  # which starts slowly

    wanted = torch.tensor(measured) > least
    told = area(torch.tensor(scores, dtype=torch.float64), wanted)
    varies = len({*scores}) > 1 < len({*measured})
    rank = float(stats.spearmanr(scores, measured).statistic) if varies else float("nan")
    return Told(told, int(wanted.sum()), rank)
