"""Search: by words, by several at once, by address; among kinds, layers and legible lists."""

from __future__ import annotations

import re

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.space.kinds import kind_of
from lexray.web.expression import Expression, name
from lexray.web.library import Library
from lexray.web.markup import Markup, el
from lexray.web.pages.head import spell_token
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint, When

KINDS = {
    "writes": ("values", "O"),
    "reads": ("keys", "gates", "Q", "K", "V"),
    "values": ("values",),
    "keys": ("keys",),
    "gates": ("gates",),
    "Q": ("Q",),
    "K": ("K",),
    "V": ("V",),
    "O": ("O",),
}
"""Among what one searches, and how that is called."""
SAID = {"writes": "what writes them", "reads": "what reads them"}
FOUND, WORDS, MOST, TOKENS = 24, 10, 12, 60
LEGIBLE = ("", "0.1", "0.2", "0.3", "0.4")
QUOTED = re.compile(r'"([^"]*)"|([^\s,]+)')


def split_words(text: str) -> list[str]:
    """Words by spaces and commas; quotes hold them together, `·` is a space.

    >>> split_words('film, "·New York" ·actor')
    ['film', ' New York', ' actor']
    """
    words = [quoted or plain for quoted, plain in QUOTED.findall(text)]
    return [word.replace("·", " ") for word in words if word.strip()]


def address_in(query: Query) -> str | None:
    """The address that was typed, if it is one."""
    try:
        return str(Address.parse(query.text("q").strip()))
    except LexrayError:
        return None


def read_search(library: Library, place: Viewpoint, query: Query) -> Sheet:
    """The page; `q` words, `among` a kind, `layers` a range, `legible` the least legibility."""
    model, text = place.model, query.text("q")
    among = query.choice("among", tuple(KINDS))
    words = split_words(text)
    if len(words) > MOST:
        raise LexrayError(f"{len(words)} words at once; at most {MOST} are looked up together")
    sections = tuple(_sections(place, model, query, among, words)) if words else ()
    return Sheet(
        "search",
        f"Search: {text}" if text else "Search",
        place,
        ("search",),
        sections,
        el("span", HINT, class_="note") if not words else Markup(""),
        _form(place, query, among, text),
        facts=(("q", text), ("words", words), ("among", among)),
    )


HINT = (
    "Words that are tokens, several with spaces between them (·film begins a word), or an address."
)


def _sections(
    place: Viewpoint, model: Anatomy, query: Query, among: str, words: list[str]
) -> list[Section]:
    parts = list(dict.fromkeys(word.strip() for word in words))
    sections = [
        Section(
            f"tokens-{i}" if i else "tokens",
            f"Tokens with “{part}” in them",
            name("lx").call("find_tokens", name("model"), part, TOKENS),
            says="Each has a page.",
            width="whole" if len(parts) == 1 else "half",
        )
        for i, part in enumerate(parts)
    ]
    known, unknown = [], []
    for word in words:
        try:
            known.append(spell_token(model, word))
        except LexrayError:
            unknown.append(word)
    if known:
        sections.insert(0, _lookup(place, query, among, known, unknown))
    if known and place.stores("vectors", kind=kind_of(KINDS[among][0])):
        sections.insert(0, _read_stored(place, query, among, known))
    return sections


def _read_stored(place: Viewpoint, query: Query, among: str, known: list[str | int]) -> Section:
    """The lists of the atlas that have most of the words."""
    layers, least = read_layers(query.text("layers", 60)), query.choice("legible", LEGIBLE)
    options: dict[str, object] = {"end": "top", "kind": kind_of(KINDS[among][0])}
    if layers is not None and len(layers) == 1:
        options["layer"] = layers[0]
    if least:
        options["legibility"] = float(least)
    call = name("atlas").call("search", known, FOUND, **options)
    says = f"Stored lists of {KINDS[among][0]} that have most of these words, high up."
    return Section("stored", "Lists with these words", call, "", says)


def _lookup(
    place: Viewpoint, query: Query, among: str, known: list[str | int], unknown: list[str]
) -> Section:
    layers, least = read_layers(query.text("layers", 60)), query.choice("legible", LEGIBLE)
    groups = list(KINDS[among])
    options: dict[str, object] = {"tokens": WORDS}
    if layers is not None:
        options["layers"] = layers
    if least:
        options["legible"] = float(least)
    call: Expression = name("model").call("lookup", known, groups).call("top", FOUND, **options)
    only = [] if layers is None else ["--layers", ",".join(map(str, layers))]
    only += ["--legible", least] if least else []
    words: list[str | int] = [
        *map(str, known),
        "--among",
        ",".join(groups),
        "-n",
        FOUND,
        "-k",
        WORDS,
    ]
    command = place.command("lookup", *words, *only)
    left = f" No single token: {', '.join(unknown)}." if unknown else ""
    title = "What writes them" if set(groups) <= {"values", "O"} else "What reads them"
    says = f"Parameters in whose own lists these words stand out most.{left}"
    stored = place.stores("vectors", kind=kind_of(groups[0]))
    when: When = "asked" if stored else "soon"
    return Section("found", title, call, command, says, when, waits="Look through all parameters")


def read_layers(text: str) -> list[int] | None:
    """Layers such as 3, 20-29 or 0,5; None for all."""
    if not text.strip():
        return None
    layers: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 11:
            raise LexrayError(f"layers={text!r} is no list such as 3, 20-29 or 0,5")
        layers += range(int(first), min(int(last or first), int(first) + 4096) + 1)
    return layers[:4096]


def _form(place: Viewpoint, query: Query, among: str, text: str) -> Markup:
    kinds = [
        el("option", SAID.get(kind, f"only {kind}"), value=kind, selected=kind == among)
        for kind in KINDS
    ]
    legible = [
        el(
            "option",
            f"at least {least}" if least else "any",
            value=least,
            selected=least == query.text("legible"),
        )
        for least in LEGIBLE
    ]
    fields = [
        (
            "Words",
            el(
                "input",
                name="q",
                value=text,
                maxlength=400,
                autofocus=not text,
                placeholder="actor actress ·film",
            ),
        ),
        ("Among", el("select", *kinds, name="among")),
        (
            "Layers",
            el(
                "input",
                name="layers",
                value=query.text("layers", 60),
                placeholder="all, or 0-3",
                maxlength=60,
            ),
        ),
        ("Legibility", el("select", *legible, name="legible")),
    ]
    return el(
        "form",
        *(el("label", el("span", said), field) for said, field in fields),
        place.hidden,
        el("button", "search", class_="primary"),
        action=place.link("search").partition("?")[0],
        method="get",
        class_="ask search",
    )
