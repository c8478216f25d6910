"""Comparisons: what moved, which layer is like which, partners."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.compare.align.alignment import NAMES, Alignment
from lexray.compare.align.partnership import PartnerPart, Partners
from lexray.compare.diff.changes import Change
from lexray.compare.diff.result import Diff
from lexray.result.format import show_percent
from lexray.result.pairs import Pair, Pairs
from lexray.result.readings import Scored
from lexray.web.markup import Markup, el, join
from lexray.web.sheet import Viewpoint
from lexray.web.show.results import figure, show
from lexray.web.show.words import address_link, is_address, level, token_chip

__all__ = ["show", "show_partners"]
CHANGES = 40


@show.register
def _(result: Diff, place: Viewpoint) -> Markup:
    items = [_change(each, result.changes, place) for each in result.changes[:CHANGES]]
    notes = [el("p", note, class_="note") for note in result.notes]
    return join(
        el("p", result.summary, class_="lead"),
        _sizes(result),
        el("h3", "What moved most, and towards which words"),
        el("ol", *items, class_="found"),
        *notes,
    )


def _sizes(result: Diff) -> Markup:
    """Groups by layers, as deep as the share that moved."""
    most = max((size.relative or 0.0 for size in result.sizes), default=0.0) or 1.0
    head = [el("th", "model" if layer is None else f"L{layer}") for layer in result.layers]
    rows = []
    for group in result.groups:
        cells = []
        for layer in result.layers:
            size = result.size(group, layer)
            share = None if size is None else size.relative
            text = "" if share is None else show_percent(share)
            cells.append(el("td", text, class_=level((share or 0.0) / most)))
        rows.append(el("tr", el("th", group, scope="row"), *cells))
    return _matrix(el("tr", el("th"), *head), rows, "how far groups moved, by layers")


def _matrix(head: Markup, rows: Sequence[Markup], said: str) -> Markup:
    table = el("table", el("thead", head), el("tbody", *rows), class_="matrix")
    return el("div", table, class_="scroll", tabindex="0", role="region", aria_label=said)


def _change(change: Change, every: Sequence[Change], place: Viewpoint) -> Markup:
    largest = max((abs(each.telling) for each in every), default=0.0) or 1.0
    name = (
        address_link(change.address, place) if is_address(change.address) else el("b", change.name)
    )
    said = "–" if change.relative is None else show_percent(change.relative)
    return el(
        "li",
        el("span", name, class_="who"),
        el("div", _words(change.top[:10], place) if change.top else _pairs(change, place)),
        figure(said, abs(change.telling) / largest, "how far it moved, of its own length"),
    )


def _words(listed: Sequence[Scored], place: Viewpoint) -> Markup:
    return el("ol", *(el("li", token_chip(s.token, place)) for s in listed), class_="words")


def _pairs(change: Change, place: Viewpoint) -> Markup:
    return el("ol", *(_pair(pair, place) for pair in change.pairs[:5]), class_="words")


def _pair(pair: Pair, place: Viewpoint) -> Markup:
    arrow = el("span", "→", class_="arrow")
    return el("li", token_chip(pair.row, place), arrow, token_chip(pair.col, place))


@show.register
def _(result: Alignment, place: Viewpoint) -> Markup:
    return el("div", *(_alignment(group, place) for group in result), class_="readings")


def _alignment(group: object, place: Viewpoint) -> Markup:
    similar = group.embedding  # type: ignore[attr-defined]
    kind = group.kind  # type: ignore[attr-defined]
    most = float(similar.S.max()) or 1.0
    chosen = set(similar.assignment)
    head = el("tr", el("th"), *(el("th", f"L{j}") for j in range(similar.S.shape[1])))
    rows = []
    for i, line in enumerate(similar.S.tolist()):
        cells = [
            el("td", f"{x:.2f}", class_=f"{level(x / most)}{' assigned' * ((i, j) in chosen)}")
            for j, x in enumerate(line)
        ]
        rows.append(el("tr", el("th", f"L{i}", scope="row"), *cells))
    title = NAMES.get(kind, f"W_{kind}")
    return el("div", el("h3", title), _matrix(head, rows, f"{title}: layers by layers"))


def show_partners(result: Partners, place: Viewpoint, there: Viewpoint) -> Markup:
    """A part's own words, and below it those of the other model that are most like it."""
    own = el("div", *(_part(part, place, None) for part in result.target), class_="readings")
    items = [
        el(
            "li",
            el("span", address_link(partner.address, there), class_="who"),
            el("div", *(_part(part, there, part.name) for part in partner.parts), class_="parts"),
            figure(f"{partner.score:.2f}", partner.score, result.measure),
        )
        for partner in result.partners
    ]
    title = el("h3", "In ", el("a", there.served.title, href=there.link("map")))
    return join(own, title, el("ol", *items, class_="found"))


def _part(part: PartnerPart, place: Viewpoint, said: str | None) -> Markup:
    """A part of a head or neuron as words of its own model."""
    if isinstance(part.reading, Pairs):
        words = el("ol", *(_pair(pair, place) for pair in list(part.reading)[:6]), class_="words")
    else:
        end = part.reading.top if part.similarity >= 0 else part.reading.bottom
        words = _words(end[:8], place)
    head = el("h4", part.name if said is None else f"{said} {part.similarity:+.2f}")
    return el("div", head, words, class_="reading")
