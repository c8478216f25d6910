"""One way to show each kind of result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from lexray.find.hits import Hits
from lexray.find.token import TokenList, TokenRows
from lexray.result.format import show_number, show_percent
from lexray.result.links import Links
from lexray.result.pairs import SIDES, Directions, Pair, Pairs
from lexray.result.readings import NamedReadings, Reading, Readings, Scored
from lexray.result.table import Result
from lexray.roles.card import Card
from lexray.trace.evidence.result import Evidence, Snippet
from lexray.web.markup import Markup, el, join
from lexray.web.sheet import Failed, Viewpoint
from lexray.web.show.tables import show_table
from lexray.web.show.words import (
    address_link,
    legibility,
    level,
    link_to,
    name_ends,
    owner_of,
    scored_chips,
    show_reading,
    show_readings,
    token_chip,
)

ROWS = 60
"""Of many vectors so many are shown."""
RIGHT = 5
"""Of a relation's pairs."""


@singledispatch
def show(result: Any, place: Viewpoint) -> Markup:
    """Whatever has tables; whatever has not, as a list of facts."""
    if isinstance(result, Result):
        return join(show_table(table, place) for table in result.tables())
    return show_facts(result.to_dict())


def show_facts(facts: dict[str, Any]) -> Markup:
    return el("dl", *(join(el("dt", key), el("dd", str(value))) for key, value in facts.items()))


@show.register
def _(result: Failed, place: Viewpoint) -> Markup:
    return el("p", result.words, class_="failed", role="alert")


@show.register
def _(result: Reading, place: Viewpoint) -> Markup:
    return show_reading(result, place)


@show.register
def _(result: NamedReadings, place: Viewpoint) -> Markup:
    return show_readings(result, place)


@show.register
def _(result: Readings, place: Viewpoint) -> Markup:
    rows = [
        el(
            "li",
            el("span", address_link(each.source.address, place), class_="who"),
            el("div", scored_chips(each.top, place)),
            el("span", legibility(each.legibility), class_="figure"),
        )
        for each in result[:ROWS]
    ]
    more = len(result) - ROWS
    return join(
        el("ol", rows, class_="found"),
        el("p", f"and {more:,} more: in the JSON twin", class_="note") if more > 0 else None,
    )


@show.register
def _(result: Pairs, place: Viewpoint) -> Markup:
    if not result.pairs:
        return el("p", "no pair is left by these filters", class_="note")
    said = "" if result.exact else f" · ended early: the first {result.sure} are sure"
    return join(
        show_pairs(result.matrix, result.pairs, place),
        el("p", legibility(result.legibility), f" {result.note}{said}", class_="note"),
    )


def show_pairs(matrix: str, pairs: Sequence[Pair], place: Viewpoint) -> Markup:
    """What the sides of a matrix are, and pairs of them with their scores."""
    largest = max(abs(pair.score) for pair in pairs) or 1.0
    items = [
        el(
            "li",
            token_chip(pair.row, place),
            el("span", "→", class_="arrow"),
            token_chip(pair.col, place),
            figure(show_number(pair.score), pair.score / largest),
        )
        for pair in pairs
    ]
    row, col = SIDES[matrix]
    return join(
        el("p", el("b", row), " → ", el("b", col), class_="sides"),
        el("ol", items, class_="pairs"),
    )


def show_direction(
    share: float, ways: Sequence[tuple[Sequence[Scored], Sequence[Scored]]], place: Viewpoint
) -> Markup:
    """A singular direction: of either sign what is read and what is written."""
    return el(
        "li",
        el("b", show_percent(share, 1), class_="share", title="of all squared values"),
        *(
            el(
                "div",
                scored_chips(read, place),
                el("span", "→", class_="arrow"),
                scored_chips(written, place),
                class_="way",
            )
            for read, written in ways
        ),
    )


@show.register
def _(result: Directions, place: Viewpoint) -> Markup:
    items = [
        show_direction(
            each.share,
            [(each.input.top, each.output.top), (each.input.bottom, each.output.bottom)],
            place,
        )
        for each in result.directions
    ]
    note = el("p", result.note, class_="note") if result.note else None
    return join(el("ol", items, class_="directions"), note)


@show.register
def _(result: Hits, place: Viewpoint) -> Markup:
    largest = max((abs(hit.score) for hit in result), default=0.0) or 1.0
    if not len(result):
        return el("p", "nothing was found", class_="note")
    items = []
    for hit in result:
        end = hit.reading.bottom if hit.negative else hit.reading.top
        side = "other-end" if hit.negative else None
        items.append(
            el(
                "li",
                el("span", address_link(hit.address, place), class_="who"),
                el("div", scored_chips(end, place, marked=result.words), class_=side),
                figure(show_number(hit.score), hit.score / largest, _ranks(result, hit.ranks)),
            )
        )
    said = f"by {result.score} · {result.source}"
    return join(el("ol", items, class_="found"), el("p", said, class_="note"))


def _ranks(result: Hits, ranks: tuple[int, ...]) -> str | None:
    said = [f"{word} is number {n:,}" for word, n in zip(result.words, ranks, strict=False)]
    return f"in its own list {', '.join(said)}" if said else None


def show_links(result: Links, place: Viewpoint, *, reads: bool) -> Markup:
    """The other end of each link: one end is the page's own, the reader's or the writer's."""
    if not len(result):
        return el("p", "none: there is no layer on that side", class_="note")
    largest = max(abs(each.times) for each in result) or 1.0
    items = []
    for each in result:
        other, mine = (each.writer, each.reader) if reads else (each.reader, each.writer)
        side = mine.removeprefix(owner_of(mine)).lstrip(".") if reads else ""
        said = (el("span", f" to its {side}", class_="quiet"),) if side else ()
        items.append(
            el(
                "li",
                el("span", address_link(link_to(other), place, other), *said, class_="who"),
                el("div", _plain(each.writes if reads else each.reads)),
                figure(
                    f"{each.times:.1f} ×",
                    each.times / largest,
                    f"times chance; strength {show_number(each.strength)}",
                ),
            )
        )
    return el("ol", items, class_="found links")


def figure(text: str, share: float, title: str | None = None) -> Markup:
    """A number on a bar as long as its share of the largest."""
    sign = "against " if share < 0 else ""
    bar = el("i", class_=f"under {sign}{level(abs(share))}")
    return el("span", bar, el("span", text), class_="figure", title=title)


def show_matrix(result: Pairs, among: Sequence[int], place: Viewpoint) -> Markup:
    """All pairs among some tokens as a heat map, in their order."""
    rows = {pair.row.id: pair.row for pair in result}
    cols = {pair.col.id: pair.col for pair in result}
    score = {(pair.row.id, pair.col.id): pair.score for pair in result}
    order = [i for i in among if i in rows and i in cols]
    largest = max(map(abs, score.values()), default=0.0) or 1.0
    head = el("tr", el("th"), *(el("th", token_chip(cols[i], place), scope="col") for i in order))
    body = []
    for row in order:
        cells = []
        for col in order:
            value = score.get((row, col), 0.0)
            sign = "against " if value < 0 else ""
            depth = f"{sign}{level(abs(value) / largest)}"
            cells.append(el("td", show_number(value), class_=depth))
        body.append(el("tr", el("th", token_chip(rows[row], place), scope="row"), *cells))
    table = el("table", el("thead", head), el("tbody", *body), class_="matrix")
    return el("div", table, class_="scroll", tabindex="0", role="region", aria_label="heat map")


@show.register
def _(result: TokenList, place: Viewpoint) -> Markup:
    if not len(result):
        return el("p", "there is none", class_="note")
    chips = (el("li", token_chip(token, place)) for token in result)
    return el("ol", *chips, class_="words")


@show.register
def _(result: TokenRows, place: Viewpoint) -> Markup:
    parts = []
    for row in result.rows:
        said = [
            (f"{row.times:.2f} ×", "the median length", row.times / 2),
            (show_percent(row.shorter, 0), "of tokens are shorter", row.shorter),
        ]
        facts = [
            el("div", el("b", figure), el("span", words), class_="fact")
            for figure, words, _ in said
        ]
        parts.append(
            el(
                "div",
                el("h3", f"{row.embedding} embedding: near it lie"),
                scored_chips(row.near, place),
                el("div", *facts, class_="facts"),
                class_="reading",
            )
        )
    state = el(
        "span",
        result.trained,
        class_="badge holds" if result.aside is None else "badge does-not-hold",
    )
    return join(el("p", state), el("div", *parts, class_="readings"))


def _plain(words: tuple[str, ...]) -> Markup:
    """Words whose ids are not known."""
    return el("ol", *(el("li", el("span", word, class_="tok")) for word in words), class_="words")


@show.register
def _(result: Evidence, place: Viewpoint) -> Markup:
    items = [
        el(
            "li",
            el("b", each.reading, class_="who"),
            el(
                "div",
                el("ol", *(el("li", token_chip(w, place)) for w in each.words), class_="words"),
            ),
            el(
                "span",
                el(
                    "i",
                    class_=f"under {level(2 * (each.area - 0.5) if each.area == each.area else 0)}",
                ),
                el("span", "–" if each.area != each.area else f"{each.area:.2f}"),
                class_="figure",
                title=f"area under the curve; its layer {each.layer:.2f}, better than "
                f"{show_percent(each.below) if each.below == each.below else '–'} of it",
            ),
        )
        for each in result.agreements
    ]
    return join(
        show_snippets(result.snippets, place),
        el("h3", "Does its reading tell where?"),
        el("ol", items, class_="found"),
        el(
            "p", f"{result.text}, {result.tokens:,} tokens · 0.5 says nothing, 1 all", class_="note"
        ),
    )


def show_snippets(snippets: Sequence[Snippet], place: Viewpoint) -> Markup:
    """Places in a text, the token marked."""
    largest = max((abs(each.activation) for each in snippets), default=0.0) or 1.0
    return el("ol", *(_snippet(each, largest, place) for each in snippets), class_="snippets")


def _snippet(snippet: Snippet, largest: float, place: Viewpoint) -> Markup:
    share = abs(snippet.activation) / largest
    took = None
    if snippet.looked_at is not None:
        wrote = [join(" ", token_chip(token, place)) for token in snippet.wrote]
        arrow = (el("span", "→", class_="arrow"), wrote) if wrote else None
        took = el("p", "took from ", token_chip(snippet.looked_at, place), arrow, class_="note")
    return el(
        "li",
        el("span", show_number(snippet.activation), class_="figure"),
        el(
            "p",
            "".join(token.text for token in snippet.before),
            el("mark", snippet.token.text, class_=level(share)),
            "".join(token.text for token in snippet.after),
        ),
        took,
    )


@show.register
def _(result: Card, place: Viewpoint) -> Markup:
    """A head's roles, relations and the tokens that move it; pairs and links have sections."""
    facts = result.facts
    roles = facts.get("roles", [])
    parts = [show_role(role) for role in roles] or [
        el("p", "no role that its weights show", class_="note")
    ]
    relations = [
        show_relation(each, [" → ".join(pair) for pair in each["right"]])
        for each in facts.get("relations", [])[:6]
    ]
    salient = [
        el(
            "li",
            el("span", each["token"], class_="tok"),
            el("div", el("span", "→", class_="arrow"), _plain(tuple(each["writes"]))),
            el("span", f"{each['size']:.1f} ×", class_="figure"),
        )
        for each in facts.get("salient", [])
    ]
    return join(
        el("ul", parts, class_="roles") if roles else parts,
        join(el("h3", "Relations it holds"), el("ol", relations, class_="found"))
        if relations
        else None,
        join(el("h3", "The tokens that move it most"), el("ol", salient, class_="found salient"))
        if salient
        else None,
    )


def show_relation(each: dict[str, Any], right: Sequence[str]) -> Markup:
    """A relation that a head holds, with some of the pairs it gets right."""
    return el(
        "li",
        el("b", f"{each['sign']} {each['relation']}", class_="who"),
        el("div", _plain(tuple(right[:RIGHT]))),
        el("span", show_percent(each["share"], 0), class_="figure", title="of its pairs"),
    )


def show_role(role: dict[str, Any]) -> Markup:
    figures = f"{show_number(role['score'])} (by chance {show_number(role['chance'])})"
    measured = role.get("measured")
    more = "" if measured is None else f", measured {show_number(measured)}"
    return el(
        "li",
        el("b", role["role"] + role["detail"]),
        el("span", figures + more, class_="note"),
    )


def sum_up(reading: Reading, place: Viewpoint, n: int = 6) -> Markup:
    """A reading in a line."""
    top: tuple[Scored, ...] = reading.top
    return join(el("span", name_ends(reading)[0], class_="note"), scored_chips(top, place, n))
