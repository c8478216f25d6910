"""What an atlas answers: parameters with the words of their stored lists."""

from __future__ import annotations

from typing import Any

from lexray.atlas.rows import Rows
from lexray.result.readings import Token
from lexray.web.markup import Markup, el, join
from lexray.web.sheet import Viewpoint
from lexray.web.show.results import figure, show
from lexray.web.show.words import address_link, link_to, token_chip

__all__ = ["show"]
LISTS = ("found_ids", "shared_ids", "top_ids", "value_ids")
FIGURES = ("alike", "weight", "score", "value_legibility", "legibility")
WORDS = 10


@show.register
def _(result: Rows, place: Viewpoint) -> Markup:
    if not len(result):
        return el("p", "nothing in the atlas", class_="note")
    if "address" not in result.columns:
        return join(el("p", result.title, class_="note"))
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
    said = f"stored · {result.note}"
    return join(el("ol", *items, class_="found"), el("p", said, class_="note"))


def _words(row: dict[str, Any], result: Rows, place: Viewpoint) -> Markup:
    ids: list[int] = next((row[name] for name in LISTS if row.get(name)), [])
    chips = [
        el("li", token_chip(Token(i, word, word), place))
        for i, word in zip(ids[:WORDS], result.words(ids, WORDS), strict=True)
    ]
    end = row.get("end")
    said = []
    if end:
        rank = row.get("rank")
        place_in = f"number {rank + 1} " if isinstance(rank, int) else ""
        side = row.get("side") or ""
        said.append(
            el("span", f"{place_in}at the {end} of what it {side}".rstrip(), class_="quiet")
        )
    return join(el("ol", *chips, class_="words") if chips else None, *said)
