"""Tables of any result, without a style of their own: numbers to the right, addresses as links."""

from __future__ import annotations

from lexray.result.format import show_number
from lexray.result.table import Cell, Table
from lexray.web.markup import Markup, el
from lexray.web.sheet import Viewpoint
from lexray.web.show.words import address_link, level, link_to

ROWS = 200


def show_table(table: Table, place: Viewpoint, *, title: bool = True) -> Markup:
    numeric = [is_numeric(table, i) for i in range(len(table.columns))]
    head = el(
        "tr",
        *(
            el("th", name, class_="num" if right else None, scope="col")
            for name, right in zip(table.columns, numeric, strict=True)
        ),
    )
    rows = [
        el("tr", *(_cell(table, i, cell, numeric[i], place) for i, cell in enumerate(row)))
        for row in table.rows[:ROWS]
    ]
    caption = el("caption", table.title) if title and table.title else None
    more = len(table.rows) - ROWS
    return el(
        "div",
        el(
            "div",
            el("table", caption, el("thead", head), el("tbody", rows), class_="lexray"),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label=table.title or "table",
        ),
        el("p", f"and {more:,} rows more: in the JSON twin", class_="note") if more > 0 else None,
        el("p", table.note, class_="note") if table.note else None,
    )


def is_numeric(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(
        isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells
    )


def _cell(table: Table, column: int, cell: Cell, numeric: bool, place: Viewpoint) -> Markup:
    bar = None
    if table.columns[column] in table.bars and isinstance(cell, int | float):
        sizes = [abs(float(row[column] or 0)) for row in table.rows]
        share = abs(float(cell)) / (max(sizes) or 1.0)
        sign = "against " if cell < 0 else ""
        bar = el("i", class_=f"under {sign}{level(share)}")
    return el("td", bar, _text(cell, place), class_="num" if numeric else None)


def _text(cell: Cell, place: Viewpoint) -> Markup:
    if isinstance(cell, str):
        page = link_to(cell)
        return (
            address_link(page, place, cell) if page != cell or page[:1] == "L" else el("span", cell)
        )
    if cell is None:
        return el("span", "–")
    if isinstance(cell, bool):
        return el("span", "yes" if cell else "no")
    return el("span", show_number(cell) if isinstance(cell, float) else f"{cell:,}")
