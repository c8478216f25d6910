"""Two models, or two checkpoints of one: what moved, which layer does what, and partners."""

from __future__ import annotations

from lexray.address import Address
from lexray.web.expression import name
from lexray.web.library import Library, Served
from lexray.web.markup import Markup, el
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint, other_name

PARTNERS = 8


def read_compare(library: Library, place: Viewpoint, query: Query, slug: str) -> Sheet:
    """The page; `of` is a head or neuron whose partners are wanted."""
    other = library[slug]
    model, theirs = name("model"), name(other_name(other))
    address = query.text("of", 40).strip()
    sections = []
    if address:
        at = str(Address.parse(address))
        place.model[at]
        sections.append(
            Section(
                "partners",
                f"Partners of {at} in {other.title}",
                name("lx").call("partners", model, at, theirs, PARTNERS),
                place.command("align", other.origin.source, "--of", at, "-n", PARTNERS),
                "By what they read as, over the tokens that both models have.",
                "soon",
                urgent=True,
            )
        )
    sections += [
        Section(
            "diff",
            f"What moved from {place.served.title} to {other.title}",
            name("lx").call("diff", model, theirs),
            place.command("diff", other.origin.source),
            "Two checkpoints of one model, parameter by parameter, and what each moved towards.",
            "asked",
            waits="Compare parameter by parameter",
        ),
        Section(
            "align",
            "Which layer does what",
            name("lx").call("align", model, theirs),
            place.command("align", other.origin.source),
            "How alike the vectors of two layers read: rows are this model's, columns the other's.",
            "asked",
            waits="Compare layer by layer",
        ),
    ]
    return Sheet(
        "compare",
        f"{place.served.title} and {other.title}",
        place,
        ("compare", slug),
        tuple(sections),
        _others(library, place, other),
        _form(place, slug, address),
        others=(other,),
        facts=(("other", other.title),),
    )


def _others(library: Library, place: Viewpoint, other: Served) -> Markup:
    links = [
        el(
            "a",
            each.title,
            href=place.link("compare", each.slug),
            aria_current="true" if each is other else None,
        )
        for each in library
        if each is not place.served
    ]
    return el("span", *links, class_="switch")


def _form(place: Viewpoint, slug: str, address: str) -> Markup:
    return el(
        "form",
        el(
            "label",
            el("span", "Whose partner is"),
            el("input", name="of", value=address, placeholder="L2H1, L3N17.value", maxlength=40),
        ),
        el("button", "look", class_="primary"),
        action=place.link("compare", slug).partition("?")[0],
        method="get",
        class_="ask one",
    )
