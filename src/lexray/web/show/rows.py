"""What an atlas answers, each kind of rows in the way of the result that the model itself gives."""

from __future__ import annotations

from typing import Any

from lexray.atlas.rows import Rows
from lexray.result.pairs import Pair
from lexray.result.readings import Reading, Scored, Source, Token
from lexray.trace.evidence.result import Snippet
from lexray.view import VIEWS
from lexray.web.markup import Markup, el, join
from lexray.web.sheet import Viewpoint
from lexray.web.show.results import (
    figure,
    show,
    show_direction,
    show_pairs,
    show_relation,
    show_role,
    show_snippets,
)
from lexray.web.show.words import address_link, link_to, show_readings, token_chip

__all__ = ["show"]
LISTS = ("first_ids", "value_ids")
FIGURES = ("alike", "weight", "score", "value_legibility", "legibility")
WORDS = 10
DIRECTIONS, OF_DIRECTION = 5, 6
KINDS = ("key", "gate", "value")
"""A neuron's vectors, in the order in which they work."""


@show.register
def _(result: Rows, place: Viewpoint) -> Markup:
    if not len(result):
        return el("p", "nothing in the atlas", class_="note")
    columns = set(result.columns)
    note = el("p", f"stored · {result.note}", class_="note")
    for having, way in WAYS:
        if having <= columns:
            return join(way(result, place), note)
    return join(_list(result, place) if "address" in columns else None, note)


def _list(result: Rows, place: Viewpoint) -> Markup:
    """Parameters with the words of their stored lists."""
    rows = list(result)
    column = next((name for name in FIGURES if name in result.columns), None)
    largest = max((abs(row[column] or 0.0) for row in rows), default=0.0) if column else 0.0
    items = [
        el(
            "li",
            el("span", address_link(link_to(row["address"]), place, row["address"]), class_="who"),
            el("div", _words(row, result, place)),
            figure(f"{row[column]:.2f}", row[column] / (largest or 1.0), column)
            if column and row[column] is not None
            else None,
        )
        for row in rows
    ]
    return el("ol", *items, class_="found")


def _words(row: dict[str, Any], result: Rows, place: Viewpoint) -> Markup:
    """The first words of a list, those that were sought marked, and where these stand."""
    ids: list[int] = next((row[name] for name in LISTS if row.get(name)), [])
    sought = {*(row.get("found_ids") or row.get("shared_ids") or ()), row.get("token")}
    chips = [
        el("li", token_chip(token, place, sought=token.id in sought))
        for token in _tokens(result, ids[:WORDS])
    ]
    said = el("span", _say_place(row, result), class_="quiet") if "end" in row else None
    return join(el("ol", *chips, class_="words") if chips else None, said)


def _say_place(row: dict[str, Any], result: Rows) -> str:
    """Where the words stand that were sought."""
    ids, ranks = row.get("found_ids") or [row.get("token")], row.get("ranks") or [row.get("rank")]
    words = [
        f"{word} is number {rank}" for word, rank in zip(result.words(ids), ranks, strict=True)
    ]
    side = row.get("side") or "reads"
    down = "pushes down" if side == "writes" else f"{side} least"
    return f"{', '.join(words)} of what it {side if row['end'] == 'top' else down}"


def _tokens(result: Rows, ids: list[int]) -> list[Token]:
    return [Token(i, word, word) for i, word in zip(ids, result.words(ids), strict=True)]


def _scored(
    result: Rows, row: dict[str, Any], end: str, n: int | None = None
) -> tuple[Scored, ...]:
    tokens = _tokens(result, row[f"{end}_ids"][:n])
    return tuple(map(Scored, tokens, row[f"{end}_scores"]))


def _readings(result: Rows, place: Viewpoint) -> Markup:
    """The lists of one vector, or of a neuron's vectors."""
    order = {kind: i for i, kind in enumerate(KINDS)}
    rows = sorted(result, key=lambda row: order.get(row["kind"], 0))
    readings = [
        Reading(
            Source(place.served.title, None, row["address"], VIEWS[place.view]),
            f"{row['kind']} expects" if row["side"] == "expects" else row["kind"],
            _scored(result, row, "top"),
            _scored(result, row, "bottom"),
            row["legibility"],
        )
        for row in rows
    ]
    return show_readings(readings, place)


def _pairs(result: Rows, place: Viewpoint) -> Markup:
    pairs = [Pair(row["score"], *_tokens(result, [row["row"], row["col"]])) for row in result]
    return show_pairs(result[0]["circuit"], pairs, place)


def _directions(result: Rows, place: Viewpoint) -> Markup:
    ends: dict[int, dict[str, dict[str, Any]]] = {}
    for row in result:
        if row["rank"] <= DIRECTIONS:
            ends.setdefault(row["rank"], {})[row["end"]] = row
    items = []
    for both in ends.values():
        ways = [
            (
                _scored(result, both["input"], end, OF_DIRECTION),
                _scored(result, both["output"], end, OF_DIRECTION),
            )
            for end in ("top", "bottom")
        ]
        items.append(show_direction(both["input"]["share"], ways, place))
    return el("ol", *items, class_="directions")


def _snippets(result: Rows, place: Viewpoint) -> Markup:
    """Places in the text that the atlas was made with; of heads in two lists."""
    parts: dict[str, list[Snippet]] = {}
    for row in result:
        taken = _tokens(result, [row["looked_at"]]) if row["looked_at"] is not None else [None]
        snippet = Snippet(
            (Token(-1, row["before"], row["before"]),),
            Token(row["token"], row["text"], row["text"]),
            (Token(-1, row["after"], row["after"]),),
            row["activation"],
            taken[0],
            tuple(_tokens(result, row["wrote"] or [])),
        )
        parts.setdefault(row["part"], []).append(snippet)
    titles = {"VO": "Where it took most", "QK": "Where it looked most"}
    return join(
        join(el("h3", titles[part]) if part in titles else None, show_snippets(some, place))
        for part, some in parts.items()
    )


def _roles(result: Rows, place: Viewpoint) -> Markup:
    return el("ul", *map(show_role, result), class_="roles")


def _relations(result: Rows, place: Viewpoint) -> Markup:
    return el("ol", *(show_relation(row, row["right"] or ()) for row in result), class_="found")


def _agreement(result: Rows, place: Viewpoint) -> Markup:
    items = [
        el(
            "li",
            el("b", row["reading"], class_="who"),
            el("div"),
            figure("–", 0.0)
            if row["area"] is None
            else figure(f"{row['area']:.2f}", max(0.0, 2 * (row["area"] - 0.5)), "area"),
        )
        for row in result
    ]
    return el("ol", *items, class_="found")


WAYS = (
    ({"row", "col", "circuit"}, _pairs),
    ({"singular", "end"}, _directions),
    ({"activation", "before"}, _snippets),
    ({"role", "chance"}, _roles),
    ({"relation", "right"}, _relations),
    ({"reading", "area"}, _agreement),
    ({"top_ids", "bottom_ids", "side", "norm"}, _readings),
)
"""By the columns that they have."""
