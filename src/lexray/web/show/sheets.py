"""A sheet as a page: its title, its neighbours, its sections."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.compare.align.partnership import Partners
from lexray.result.links import Links
from lexray.result.pairs import Pairs
from lexray.web.frame import copies, views
from lexray.web.markup import Markup, el, join
from lexray.web.sheet import Content, Section, Sheet, Viewpoint, other_name
from lexray.web.show.compare import show, show_partners
from lexray.web.show.prompt import show_of_prompt
from lexray.web.show.results import show_links, show_matrix


def _knows_atlases(content: Content) -> bool:
    """Rows of an atlas are shown by a module that needs DuckDB's extra."""
    return type(content).__module__ == "lexray.atlas.rows"


def show_sheet(sheet: Sheet, read: Sequence[Content | None], query: dict[str, str]) -> Markup:
    """Everything between the bar and the end of the page."""
    shown = [
        show_section(sheet, section, content, query)
        for section, content in zip(sheet.sections, read, strict=True)
    ]
    return join(show_head(sheet, query), el("div", *shown, class_="sections"))


def show_head(sheet: Sheet, query: dict[str, str]) -> Markup:
    place = sheet.place
    slash = el("span", "/", aria_hidden="true")
    crumbs = [
        el("a", place.served.title, href=place.link("map")),
        *(join(slash, el("a", text, href=href)) for text, href in sheet.trail),
    ]
    kept = {key: value for key, value in query.items() if key != "view"}
    return el(
        "div",
        el(
            "nav",
            *crumbs,
            class_="trail",
            aria_label="where",
        ),
        el(
            "div",
            el("h1", el("span", sheet.title, class_=_face(sheet))),
            _neighbours(sheet),
            class_="title",
        ),
        sheet.form or None,
        el(
            "div",
            sheet.lead,
            views(place, *sheet.path, **kept),
            copies(sheet.python, sheet.command, sheet.twin_link(query)),
            class_="handles",
        ),
        class_="head",
    )


def _face(sheet: Sheet) -> str | None:
    return {"token": "word", "head": "name", "neuron": "name", "vector": "name"}.get(sheet.kind)


def _neighbours(sheet: Sheet) -> Markup:
    ways = (
        ("before", "←", "[", sheet.before),
        ("after", "→", "]", sheet.after),
        ("up", "↑", "{", sheet.up),
        ("down", "↓", "}", sheet.down),
    )
    links = [
        el(
            "a",
            sign,
            href=href,
            rel=_rel(name),
            data_key=key,
            title=f"{_say(name)} ({key})",
            aria_label=_say(name),
        )
        for name, sign, key, href in ways
        if href
    ]
    return el("span", *links, class_="steps")


def _rel(name: str) -> str | None:
    return {"before": "prev", "after": "next"}.get(name)


def _say(name: str) -> str:
    return {
        "before": "the one before",
        "after": "the one after",
        "up": "the same, one layer earlier",
        "down": "the same, one layer later",
    }[name]


def show_section(
    sheet: Sheet, section: Section, content: Content | None, query: dict[str, str]
) -> Markup:
    """A section with its content, or with what is said while there is none."""
    place: Viewpoint = sheet.place
    kept = {key: value for key, value in query.items() if key != "view"}
    here = place.link(*sheet.path, section.name, **kept)
    twin = sheet.twin_link(query, section.name)
    body = _wait(section, twin) if content is None else _show(sheet, section, content, place, kept)
    python = sheet.script(section)
    return el(
        "section",
        el(
            "header",
            el("h2", section.title),
            copies(python, section.command),
        ),
        el("p", section.says, class_="note") if section.says else None,
        section.controls or None,
        el("div", body, class_="body"),
        id=section.name,
        class_=section.width,
        data_part=here,
        data_when=None if content is not None else section.when,
        aria_busy="true" if content is None and section.when != "asked" else None,
    )


def _show(
    sheet: Sheet, section: Section, content: Content, place: Viewpoint, kept: dict[str, str]
) -> Markup:
    if sheet.kind == "prompt":
        return show_of_prompt(section.name, content, place, kept)
    if _knows_atlases(content):
        from lexray.web.show.rows import show as show_rows

        return show_rows(content, place)
    if section.among and isinstance(content, Pairs):
        return show_matrix(content, section.among, place)
    if isinstance(content, Partners):
        (other,) = (each for each in sheet.others if other_name(each) in section.call.names)
        return show_partners(content, place, Viewpoint(other, place.view))
    if isinstance(content, Links):
        return show_links(content, place, reads=section.name == "writers")
    return show(content, place)


def _wait(section: Section, twin: str) -> Markup:
    """What stands in for content: a button, or lines that fill by themselves."""
    still = el(
        "noscript",
        el("p", "It is worked out on demand; without scripts ", el("a", "as JSON", href=twin), "."),
    )
    if section.when == "asked":
        return join(
            el("button", section.waits or "read it", type="button", class_="button", data_run=True),
            still,
        )
    bones = [el("i", class_=f"bone {level}") for level in ("w92", "w74", "w83", "w60")]
    return join(el("div", *bones, class_="bones", aria_hidden="true"), still)
