"""The questions that an atlas answers, as SQL: fixed text, with values only as parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2
from typing import Any, NamedTuple

from lexray.address import Address
from lexray.errors import LexrayError

ADDRESS = """CASE
    WHEN number IS NULL THEN owner
    WHEN kind IN ('key', 'gate', 'value') THEN owner || 'N' || number || '.' || kind
    ELSE owner || '.' || kind || number END"""
"""A vector's address from where it lies."""
PLACE = "kind, side, layer, owner, number"
"""Where a vector lies, and how it is read."""
KNOWN = "_known"
"""The vectors but for their lists, with the first words, in memory: see `Database`."""
FIRST = 10
"""So many of a list's words are shown beside others."""
MOST = 100_000
"""Rows that a question with a limit gives at most."""


class Question(NamedTuple):
    sql: str
    parameters: list[Any]


class _Where:
    """Conditions that are asked for; those that are None are not."""

    def __init__(self, **equal: Any) -> None:
        self.parts: list[str] = []
        self.values: list[Any] = []
        for name, value in equal.items():
            if isinstance(value, tuple):  # one of these
                self.parts.append(f'"{name}" IN ({", ".join("?" * len(value))})')
                self.values += value
            else:
                self.add(f'"{name}" = ?', value)

    def add(self, text: str, value: Any) -> _Where:
        if value is not None:
            self.parts.append(text)
            self.values.append(value)
        return self

    def __str__(self) -> str:
        return " AND ".join(self.parts) or "true"


def _limit(n: int | None) -> str:
    if n is None:
        return ""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise LexrayError(f"asked for {n!r} rows; there has to be at least one")
    return f"LIMIT {min(n, MOST)}"


def _list(ids: Sequence[int]) -> str:
    """Numbers, written out: files whose tokens are others are passed over then."""
    return ", ".join(str(int(i)) for i in ids) or "-1"


def find_tokens(word: str | int) -> Question:
    """By id, else as it is shown, else by its text, else any form of the word."""
    if isinstance(word, int):
        return Question("SELECT id FROM tokens WHERE id = ?", [word])
    sql = """
    WITH found AS (
        SELECT id, CASE WHEN shown = $1 THEN 1 WHEN text = $1 THEN 2 WHEN text = ' ' || $1 THEN 3
            ELSE 4 END AS how
        FROM tokens WHERE shown = $1 OR text = $1 OR lower(trim(text)) = lower(trim($1))
    )
    SELECT id FROM found WHERE trim($1) = $1 OR how < 3 ORDER BY how, id
    """
    return Question(sql.replace("trim($1) = $1", _forms(word)), [word])


def _forms(word: str) -> str:
    """Who writes the space wants that token alone."""
    exact = word != word.strip() or word.startswith("·")
    return "false" if exact else "true"


def find_parameters(
    view: str,
    ids: Sequence[int],
    n: int,
    end: str | None,
    kind: str | None,
    layer: int | None,
    by: str,
) -> Question:
    if by not in ("rank", "score"):
        raise LexrayError(f"parameters by {by!r}? by is rank or score")
    where = _Where(view=view, end=end, kind=kind, layer=layer)
    order = "rank, abs(score) DESC" if by == "rank" else "abs(score) DESC, rank"
    sql = f"""
    WITH hits AS MATERIALIZED (  -- else files are read twice, for the order and for the columns
        SELECT address, {PLACE}, token, "end", rank, score FROM index
        WHERE token IN ({_list(ids)}) AND {where}
    ),
    best AS (SELECT * FROM hits ORDER BY {order}, address, side {_limit(n)})
    SELECT best.* EXCLUDE (owner, number), {_words_of("best", '"end"')}
    FROM best {_known("best")} ORDER BY {order}, address, side"""
    return Question(sql, [*where.values, view])


def _words_of(table: str, end: str) -> str:
    """The first words of that end of a list."""
    return f"CASE {table}.{end} WHEN 'top' THEN first_ids ELSE last_ids END AS first_ids"


def _known(table: str) -> str:
    """A join with what is known of the vectors of a few rows; its view is the next parameter."""
    names = ", ".join(f"{table}.{name}" for name in ("kind", "side", "owner", "number"))
    return f"LEFT JOIN {KNOWN} AS known ON known.place = hash(CAST(? AS VARCHAR), {names})"


def find_lists(
    view: str,
    forms: Mapping[str, Sequence[int]],
    n: int,
    end: str | None,
    kind: str | None,
    layer: int | None,
    legibility: float | None,
) -> Question:
    """Lists with several words: most words first, then those where they stand higher."""
    where = _Where(view=view, end=end, kind=kind, layer=layer)
    numbers = [(w, i) for w, ids in enumerate(forms.values()) for i in ids]
    wanted = ", ".join(f"({w}, {int(i)})" for w, i in numbers)
    ids = _list([i for _, i in numbers])
    legible = _Where(view=view).add("legibility >= ?", legibility)
    only = f"SEMI JOIN (SELECT {PLACE} FROM {KNOWN} WHERE {legible}) AS legible USING ({PLACE})"
    sql = f"""
    WITH wanted(word, token) AS (VALUES {wanted}),
    hits AS (
        SELECT {PLACE}, "end", wanted.word AS word, min(rank) AS rank,
            arg_min(index.token, rank) AS token
        FROM index JOIN wanted ON index.token = wanted.token
        WHERE index.token IN ({ids}) AND {where}
        GROUP BY ALL
    ),
    lists AS (
        SELECT {PLACE}, "end", count(*) AS found,
            CAST(sum(1 / log2(1 + rank)) AS FLOAT) AS weight,
            list(CAST(token AS INTEGER) ORDER BY rank, token) AS found_ids,
            list(rank ORDER BY rank, token) AS ranks
        FROM hits {only if legibility is not None else ""} GROUP BY ALL
    ),
    best AS (
        SELECT *, {ADDRESS} AS address FROM lists
        ORDER BY found DESC, weight DESC, address, side, "end" {_limit(n)}
    )
    SELECT address, best.kind, best.side, best.layer, "end", found, weight, found_ids, ranks,
        {_words_of("best", '"end"')}
    FROM best {_known("best")} ORDER BY found DESC, weight DESC, address, best.side, "end" """
    values = where.values + (legible.values if legibility is not None else [])
    return Question(sql, [*values, view])


def find_like(
    view: str,
    lists: Mapping[str, Sequence[int | None]],
    n: int,
    kind: str | None,
    itself: str | None,
) -> Question:
    """Lists that share tokens, weighed by 1/log₂(1 + rank) on both sides, over the most there is:
    1 is the same list, −1 the list turned over."""
    own = [
        (token, 1 if end == "top" else -1, 1 / log2(1 + rank))
        for end, ids in lists.items()
        for rank, token in enumerate(ids, 1)
        if token is not None
    ]
    if not own:
        raise LexrayError("no token of this list is in the other vocabulary")
    where = _Where(view=view, kind=kind)
    rows = ", ".join(f"({int(token)}, {sign * weight:.9g}::FLOAT)" for token, sign, weight in own)
    most = sum(1 / log2(1 + rank) ** 2 for ids in lists.values() for rank in range(1, len(ids) + 1))
    not_itself = _Where().add("address <> ?", itself)
    sql = f"""
    WITH own(token, weight) AS (VALUES {rows}),
    hits AS (
        SELECT kind, side, layer, owner, number, sum(CASE "end" WHEN 'top' THEN own.weight
            ELSE -own.weight END / log2(1 + rank)) AS total, list(index.token) AS shared
        FROM index JOIN own ON index.token = own.token
        WHERE index.token IN ({_list([token for token, _, _ in own])}) AND {where}
        GROUP BY ALL ORDER BY abs(total) DESC LIMIT {n + 50}
    ),
    best AS (
        SELECT *, {ADDRESS} AS address, CAST(total / {most:.12g} AS FLOAT) AS alike FROM hits
        WHERE {not_itself} ORDER BY abs(alike) DESC, address, side {_limit(n)}
    )
    SELECT address, best.kind, best.side, best.layer, alike,
        CAST(len(shared) AS INTEGER) AS shared,
        list_transform(list_sort(shared, 'ASC'), lambda x: CAST(x AS INTEGER)) AS shared_ids,
        CASE WHEN alike < 0 THEN last_ids ELSE first_ids END AS first_ids
    FROM best {_known("best")} ORDER BY abs(alike) DESC, address, best.side"""
    return Question(sql, [*where.values, *not_itself.values, view])


# ------------------------------------------------------------------ tables


def place_of(address: str) -> dict[str, Any]:
    """A vector's place, by which files and rows that cannot hold it are passed over; a neuron's is
    that of all its vectors."""
    if neuron := re.fullmatch(r"((?:enc\.)?L(\d+).*)N(\d+)", address):
        place = {"layer": int(neuron[2]), "owner": neuron[1], "number": int(neuron[3])}
        return {"kind": ("key", "gate", "value"), **place}
    layer = re.match(r"(?:enc\.)?L(\d+)", address)
    kind = re.search(r"\.(?:(key|gate|value)|([QKVO])\d+)$", address)
    return {
        "address": address,
        "layer": int(layer[1]) if layer else None,
        "kind": kind and (kind[1] or kind[2]),
    }


def owners_of(sizes: Mapping[str, int], address: str) -> list[str]:
    """Where a vector may be kept: keys and values that heads share, under the first of them; of how
    many, is each layer's own matter (Gemma 4)."""
    if address.removeprefix("enc.").startswith("final_norm"):
        return [address]
    at = Address.parse(address)
    shared = at.subhead in ("K", "V") and at.head is not None
    if not shared or at.head is None or at.head >= sizes["n_heads"]:
        return [str(at)]
    return [str(replace(at, head=head)) for head in range(at.head, -1, -1)]


def head_of(address: str) -> str:
    at = Address.parse(address)
    if at.head is None:
        raise LexrayError(f"{address} is no head; heads look like L3H7")
    return str(Address(at.layer, head=at.head, cross=at.cross, encoder=at.encoder))


def find_vectors(
    view: str, at: Mapping[str, Any], n: int | None, by: str, k: int | None = None
) -> Question:
    """`k`: of either end of a list so many."""
    orders = {
        "place": "layer, kind, owner, number, side",
        "legibility": "legibility DESC, address, side",
        "norm": "norm DESC, address, side",
    }
    if by not in orders:
        raise LexrayError(f"vectors by {by!r}? by is {', '.join(orders)}")
    where = _Where(view=view, **at)
    order = orders[by].replace("side", "side DESC")
    short = ""
    if k is not None:
        most = _limit(k).removeprefix("LIMIT ")
        lists = [f"{end}_{what}" for end in ("top", "bottom") for what in ("ids", "scores")]
        short = f"REPLACE ({', '.join(f'{name}[:{most}] AS {name}' for name in lists)})"
    sql = f"SELECT * EXCLUDE (view) {short} FROM vectors WHERE {where} ORDER BY {order} {_limit(n)}"
    return Question(sql, where.values)


def find_neurons(view: str, layer: int | None, n: int | None, by: str) -> Question:
    """A row for each neuron; a gate decides where it is on, if there is one."""
    orders = {
        "legibility": "value_legibility DESC NULLS LAST",
        "norm": "value_norm DESC",
        "place": "layer, owner, number",
    }
    if by not in orders:
        raise LexrayError(f"neurons by {by!r}? by is {', '.join(orders)}")
    where = _Where(view=view, layer=layer)
    kinds = "".join(
        f""", max(norm) FILTER (kind = '{kind}') AS {kind}_norm,
        max(legibility) FILTER (kind = '{kind}') AS {kind}_legibility"""
        for kind in ("key", "gate", "value")
    )
    lists = ", ".join(
        f"any_value(first_ids) FILTER (kind = '{kind}' AND side <> 'expects') AS {kind}_ids"
        for kind in ("key", "gate", "value")
    )
    sql = f"""
    WITH chosen AS MATERIALIZED (
        SELECT layer, owner, number{kinds} FROM {KNOWN}
        WHERE {where} AND kind IN ('key', 'gate', 'value') GROUP BY ALL
        ORDER BY {orders[by]}, layer, owner, number {_limit(n)}
    ),
    words AS (
        SELECT layer, owner, number, {lists}
        FROM {KNOWN} SEMI JOIN chosen USING (layer, owner, number) WHERE {where} GROUP BY ALL
    )
    SELECT owner || 'N' || number AS address, chosen.* EXCLUDE (owner, number),
        words.* EXCLUDE (layer, owner, number)
    FROM chosen JOIN words USING (layer, owner, number)
    ORDER BY {orders[by]}, layer, owner, number"""
    return Question(sql, where.values * 2)


def find_heads(view: str, layer: int | None) -> Question:
    where = _Where(view=view, layer=layer)
    sides = "".join(
        f"""max({name}) FILTER (circuit = '{circuit}') AS {circuit.lower()}_{name}, """
        for circuit in ("VO", "QK")
        for name in ("norm", "rank", "legibility")
    )
    sql = f"""
    WITH sized AS (
        SELECT address, layer, head, any_value(kv) AS kv, {sides} FROM matrices WHERE {where}
        GROUP BY ALL
    )
    SELECT * FROM sized FULL JOIN (SELECT * EXCLUDE (view) FROM heads WHERE {where}) AS did
    USING (address, layer, head) ORDER BY starts_with(address, 'enc.') DESC, layer,
    regexp_matches(address, 'X'), head"""
    return Question(sql, where.values * 2)


def find_of_head(view: str, table: str, address: str, circuit: str | None) -> Question:
    if circuit not in (None, "VO", "QK"):
        raise LexrayError(f"a head has the matrices VO and QK, not {circuit!r}")
    where = _Where(view=view, address=address, layer=place_of(address)["layer"], circuit=circuit)
    last = ', "end"' if table == "directions" else ""
    sql = f"""SELECT * EXCLUDE (view) FROM {table} WHERE {where}
    ORDER BY circuit DESC, rank{last}"""
    return Question(sql, where.values)


def find_pairs(
    view: str, address: str, circuit: str | None, n: int | None, *, exclude_same: bool
) -> Question:
    """Of each matrix so many; `exclude_same`: without a token and itself, written otherwise."""
    whole = find_of_head(view, "pairs", address, circuit)
    bare = "lower(trim({}.text, ' ' || chr(9) || chr(10) || chr(13)))".format
    same = f"a.id = b.id OR ({bare('a')} = {bare('b')} AND {bare('a')} <> '')"
    number = "row_number() OVER (PARTITION BY circuit ORDER BY rank)"
    most = _limit(n).removeprefix("LIMIT ") or "NULL"
    sql = f"""
    WITH best AS ({whole.sql})
    SELECT best.* FROM best JOIN tokens a ON a.id = "row" JOIN tokens b ON b.id = col
    WHERE {f"NOT coalesce({same}, false)" if exclude_same else "true"}
    QUALIFY coalesce({number} <= {most}, true) ORDER BY circuit DESC, rank"""
    return Question(sql, whole.parameters)


def find_relations(view: str, address: str | None, q: float) -> Question:
    where = _Where(view=view, address=address).add("q < ?", q)
    sql = f"""SELECT * EXCLUDE (view) FROM relations WHERE {where}
    ORDER BY share - chance DESC, q, address"""
    return Question(sql, where.values)


def find_roles(view: str, role: str | None, address: str | None) -> Question:
    where = _Where(view=view, role=role, address=address)
    sql = f"""SELECT * EXCLUDE (view) FROM roles WHERE {where}
    ORDER BY role, abs(score) DESC, address"""
    return Question(sql, where.values)


def find_links(view: str, address: str | None) -> Question:
    where = _Where(view=view).add("(writer = ? OR reader = ?)", address)
    values = where.values + ([address] if address is not None else [])
    sql = f"SELECT * EXCLUDE (view) FROM links WHERE {where} ORDER BY between DESC, rank"
    return Question(sql, values)


def find_evidence(view: str, table: str, address: str) -> Question:
    at = Address.parse(address)
    where = _Where(view=view, address=str(at), layer=at.layer)
    order = "part, rank" if table == "evidence" else "part, area DESC, reading"
    sql = f"SELECT * EXCLUDE (view) FROM {table} WHERE {where} ORDER BY {order}"
    return Question(sql, where.values)
