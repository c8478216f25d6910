"""What surrounds every page: the bar on top, where one is, and the way to copy it."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.result.page import linked_page
from lexray.web.library import Library
from lexray.web.markup import Child, Markup, el, join
from lexray.web.sheet import VIEWS, Viewpoint

SHEETS = ("/static/theme.css", "/static/app.css")
MODULES = ("/static/app.js",)
TABS = (("map", "Map"), ("search", "Search"), ("prompt", "Prompt"))
KEYS = (
    ("/", "search"),
    ("j k", "next, previous in a list"),
    ("[ ]", "previous, next head, neuron or layer"),
    ("{ }", "the same one layer up, down"),
    ("m", "the map"),
    ("p", "a prompt"),
    ("c", "copy as Python"),
    ("?", "these keys"),
)


def whole_page(
    title: str,
    main: Child,
    *,
    library: Library,
    place: Viewpoint | None = None,
    tab: str = "",
    modules: Sequence[str] = (),
    sheets: Sequence[str] = (),
    wide: bool = False,
) -> str:
    """A page of the app."""
    body = join(
        el("a", "to the content", href="#main", class_="skip"),
        _bar(library, place, tab),
        el("main", main, id="main", class_="wide" if wide else None),
        _keys(),
        el("div", id="tip", class_="tip", role="tooltip", hidden=True),
        el("div", id="said", class_="said", role="status", aria_live="polite"),
    )
    return linked_page(
        f"{title} · lexray", body, sheets=(*SHEETS, *sheets), modules=(*MODULES, *modules)
    )


def _bar(library: Library, place: Viewpoint | None, tab: str) -> Markup:
    if place is None:
        return el("header", el("a", _mark(), "lexray", href="/", class_="brand"), class_="bar")
    served = place.served
    tabs = [
        el("a", text, href=place.link(name), aria_current="page" if name == tab else None)
        for name, text in TABS
    ]
    if len(library) > 1:
        other = next(each for each in library if each is not served)
        pair = place.link("compare", other.slug)
        tabs.append(
            el("a", "Compare", href=pair, aria_current="page" if tab == "compare" else None)
        )
    return el(
        "header",
        el("a", _mark(), el("span", "lexray"), href="/", class_="brand"),
        _models(library, place),
        el("nav", *tabs, aria_label="pages"),
        el(
            "form",
            el(
                "input",
                type="search",
                name="q",
                id="find",
                placeholder="words, L3H7, L12N345 …",
                aria_label="search",
                autocomplete="off",
                maxlength=400,
            ),
            el("kbd", "/", aria_hidden="true"),
            place.hidden,
            action=place.link("search").partition("?")[0],
            method="get",
            role="search",
        ),
        class_="bar",
    )


def _models(library: Library, place: Viewpoint) -> Markup:
    if len(library) == 1:
        return el("a", place.served.title, href=place.link("map"), class_="model")
    options = [
        el("option", each.title, value=f"/{each.slug}/map", selected=each is place.served)
        for each in library
    ]
    return el("select", *options, class_="model", id="model", aria_label="model")


def _mark() -> Markup:
    """The sign of the house: words seen through a lens."""
    return el(
        "svg",
        el("rect", x="1.5", y="4", width="13", height="3", rx="1.5", class_="a"),
        el("rect", x="1.5", y="10.5", width="21", height="3", rx="1.5", class_="b"),
        el("rect", x="1.5", y="17", width="9", height="3", rx="1.5", class_="a"),
        viewBox="0 0 24 24",
        aria_hidden="true",
    )


def views(place: Viewpoint, *path: str | int, **query: object) -> Markup:
    """Standard or raw: the same page, read the other way."""
    ways = []
    for view in VIEWS:
        there = Viewpoint(place.served, view, place.offset)
        here = "true" if view == place.view else None
        ways.append(el("a", view, href=there.link(*path, **query), aria_current=here))
    return el("span", *ways, class_="switch", title="how parameters are read")


def copies(python: str, command: str, twin: str = "") -> Markup:
    """The two buttons that give the exact call; of a page also its JSON twin. Those of a section
    are short, and say the rest under the pointer and to readers of screens."""
    ways = [("Python", python)] + ([("command", command)] if command else [])
    return el(
        "span",
        *(
            el(
                "button",
                f"copy as {way}" if twin else way,
                type="button",
                data_copy=text,
                data_key="c" if twin and way == "Python" else None,
                title=f"copy as {way}",
                aria_label=f"copy as {way}",
            )
            for way, text in ways
        ),
        el("a", "JSON", href=twin, title="the same content for programs") if twin else None,
        class_="copies",
    )


def _keys() -> Markup:
    rows = [
        el("div", el("dt", *(el("kbd", key) for key in keys.split())), el("dd", says))
        for keys, says in KEYS
    ]
    return el(
        "dialog",
        el("h2", "Keys"),
        el("dl", *rows),
        el("form", el("button", "close"), method="dialog"),
        id="keys",
        aria_label="keys",
    )


def plain_page(title: str, *children: Child) -> str:
    """A page without a model: errors, and the locked door."""
    main = el("main", el("h1", title), *children, id="main", class_="plain")
    bar = el(
        "header", el("a", _mark(), el("span", "lexray"), href="/", class_="brand"), class_="bar"
    )
    return linked_page(f"{title} · lexray", join(bar, main), sheets=SHEETS, modules=())


def locked_page(here: str) -> str:
    """What is shown without the token. Who followed a link from elsewhere has it and goes on."""
    return plain_page(
        "This is somebody's model",
        el(
            "p",
            "Its pages open with the address that ",
            el("code", "lexray serve"),
            " printed: it ends in a token.",
            class_="lead",
        ),
        el(
            "p",
            el("a", "Go on", href=here, class_="button"),
            " if you came here by a link and have opened the app in this browser before.",
        ),
        el(
            "form",
            el(
                "label",
                "Or the token: ",
                el("input", name="token", autocomplete="off", required=True),
            ),
            el("button", "open"),
            method="get",
            action="/",
            class_="tools",
        ),
    )
