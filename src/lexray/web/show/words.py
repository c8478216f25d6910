"""Tokens and addresses as links, and lists of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.result.format import show_number
from lexray.result.readings import Reading, Scored, Token
from lexray.web.markup import Child, Markup, el, join
from lexray.web.sheet import Viewpoint

SAID = {
    "value": ("value writes", "and pushes down"),
    "O": ("writes", "and pushes down"),
    "bias": ("writes", "and pushes down"),
    "writes": ("attending to it writes", "and pushes down"),
    "written_by": ("it is written by attending to", "and pushed down by"),
    "attends_to": ("as a query it looks for", "and looks away from"),
    "attended_by": ("as a key it is looked for by", "and avoided by"),
}
"""What a reading's two ends are called, where its name alone would not tell."""
NAMED = {
    "b_O": "attention's bias",
    "b_out": "the feed-forward's bias",
    "attn_norm": "the gain of attention's norm",
    "mlp_norm": "the gain of the feed-forward's norm",
    "attn_norm_bias": "the bias of attention's norm",
    "mlp_norm_bias": "the bias of the feed-forward's norm",
}
"""A layer's own vectors."""


def level(share: float) -> str:
    """The class that carries a share from 0 to 1 to the style sheet."""
    return f"w{round(100 * min(1.0, max(0.0, share)))}"


def token_chip(
    token: Token,
    place: Viewpoint,
    share: float | None = None,
    more: str = "",
    *,
    sought: bool = False,
) -> Markup:
    """A token, which leads to its page; `share` says how deep its ground is."""
    title = f"{more} · token {token.id}" if more else f"token {token.id}"
    depth = "" if share is None else f" {level(share)}"
    return el(
        "a",
        token.shown,
        class_=f"tok{depth}{' hit' * sought}",
        href=place.link("token", token.id),
        title=title,
    )


def scored_chips(
    listed: Sequence[Scored], place: Viewpoint, n: int | None = None, marked: Sequence[str] = ()
) -> Markup:
    """Tokens in their order, the strongest the deepest; those that were sought are marked."""
    top = max((abs(s.score) for s in listed), default=0.0) or 1.0
    least = min((abs(s.score) for s in listed), default=0.0)
    spread = (top - least) or 1.0
    items = [
        el(
            "li",
            token_chip(
                s.token,
                place,
                (abs(s.score) - least) / spread,
                show_number(s.score),
                sought=s.token.shown in marked,
            ),
        )
        for s in listed[:n]
    ]
    return el("ol", items, class_="words")


def address_link(address: str, place: Viewpoint, text: str = "") -> Markup:
    """An address, which leads to its page; what is none stays text."""
    if not is_address(address):
        return join(text or address)
    return el("a", text or address, class_="addr", href=place.link(address))


def is_address(text: str) -> bool:
    try:
        return str(Address.parse(text)) == text
    except LexrayError:
        return False


def link_to(address: str) -> str:
    """The page of a part's side: `L5H2.K` is a side of L5H2, `L7N12.gate` has a page itself."""
    return address if is_address(address) else owner_of(address)


def owner_of(address: str) -> str:
    """The head or neuron that a side or a vector belongs to.

    >>> owner_of("L5H2.K"), owner_of("enc.L7N12.gate")
    ('L5H2', 'enc.L7N12')
    """
    stack = "enc." * address.startswith("enc.")
    return stack + address.removeprefix("enc.").partition(".")[0]


def meter(value: float, said: str, most: float = 1.0) -> Markup:
    """A small bar with its number."""
    return el(
        "span",
        el("i", class_=f"fill {level(value / most if most else 0)}"),
        class_="meter",
        role="img",
        aria_label=f"{said} {value:.2f}",
    )


def legibility(value: float) -> Markup:
    """How well a list reads, as a small bar and a number."""
    return el(
        "span",
        "legibility ",
        meter(value, "legibility"),
        f" {value:.2f}",
        class_="legible",
        title="how much more alike its words are than random ones",
    )


def name_ends(reading: Reading) -> tuple[str, str]:
    """What its top and its bottom are to the reader."""
    if reading.name in SAID:
        return SAID[reading.name]
    said = reading.said
    name = reading.name.removesuffix(" expects") or "it"
    if said == "as tokens":
        return NAMED.get(name, name), "at the other end"
    return f"{name} {said}", "at the other end"


def show_reading(reading: Reading, place: Viewpoint, heading: Child = None) -> Markup:
    """Both ends of a reading."""
    top, bottom = name_ends(reading)
    return el(
        "div",
        el("h3", heading or top),
        scored_chips(reading.top, place),
        el("h4", bottom),
        el("div", scored_chips(reading.bottom, place), class_="other-end"),
        el("p", legibility(reading.legibility), class_="note"),
        _scores(reading, place),
        class_="reading",
    )


def show_readings(readings: Iterable[Reading], place: Viewpoint) -> Markup:
    """Side by side; what one vector sees and what it expects stand in one column."""
    columns: dict[str, list[Markup]] = {}
    for each in readings:
        shown = show_reading(each, place)
        columns.setdefault(each.name.removesuffix(" expects"), []).append(shown)
    return el("div", *(el("div", *column) for column in columns.values()), class_="readings")


def _scores(reading: Reading, place: Viewpoint) -> Markup:
    rows = [
        el(
            "tr",
            el("td", token_chip(a.token, place)),
            el("td", show_number(a.score), class_="num"),
            el("td", token_chip(b.token, place)),
            el("td", show_number(b.score), class_="num"),
        )
        for a, b in zip(reading.top, reading.bottom, strict=False)
    ]
    head = el("tr", *(el("th", name) for name in ("top", "score", "bottom", "score")))
    table = el("table", el("thead", head), el("tbody", rows), class_="scores")
    return el("details", el("summary", "with numbers"), el("div", table, class_="scroll"))
