"""The map: every head and every neuron of a model at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.info import Info, info
from lexray.result.format import show_bytes
from lexray.web.expression import Expression, name
from lexray.web.library import Library
from lexray.web.markup import Markup, el, join
from lexray.web.pages.prompt import (
    EXAMPLE,
    LONGEST,
    PromptRun,
    read_typed,
    target_field,
)
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint, When

COLOURS = {
    "role": "what they do",
    "relation": "relations",
    "legibility": "legibility",
    "norm": "size",
    "copying": "copying",
    "previous": "look back",
    "induction": "induction",
    "effect": "effect on a prompt",
}
"""What heads are coloured by, and how that is called."""
NEURONS = {"legibility": "legibility", "norm": "size"}
MANY = 100
"""Heads whose roles take more than a moment."""
JOBS = {"relation": "relations", "norm": "heads", "legibility": "heads"}
"""What an atlas has to hold for a colour, if it is not the roles."""
FROM_CATALOGUE = ("role", "copying", "previous", "induction")


def read_map(library: Library, place: Viewpoint, query: Query) -> Sheet:
    """The map; `colour` is what heads are coloured by, `neurons` the same for neurons, `layer` says
    which layer's neurons a section reads. By effect: on what follows `text`, or on `target`."""
    model = place.model
    colour = query.choice("colour", _colours(place))
    by = query.choice("neurons", tuple(NEURONS))
    layer = query.number("layer", 0, 0, model.n_layers - 1)
    prompt = read_typed(place, model, query) if colour == "effect" else None
    strip = _strip(place, by, layer)
    sections = (
        *_heads_section(place, colour, prompt),
        Section("neurons", "Neurons", strip, when=_when(strip)),
    )
    facts = info(model)
    return Sheet(
        "map",
        place.served.title,
        place,
        ("map",),
        sections,
        facts=(
            ("info", facts.to_dict()),
            ("colour", colour),
            ("neurons", by),
            ("text", prompt.text if prompt else ""),
            ("target", query.text("target", 100) if prompt else ""),
            ("layers", [layout(model, i).to_dict() for i in range(model.n_layers)]),
        ),
    )


def _colours(place: Viewpoint) -> tuple[str, ...]:
    """What heads can be coloured by, the default first: their roles, or where these would have to
    be worked out for many heads, their sizes."""
    model = place.model
    many = sum(len(layer.heads) for layer in model.layers) > MANY
    first = "norm" if many and not place.stores("roles") else "role"
    return (first, *(colour for colour in COLOURS if colour != first))


def _strip(place: Viewpoint, by: str, layer: int) -> Expression:
    """A layer's neurons: from the atlas where there is one."""
    if not place.stores("vectors", kind="value", layer=layer):
        return name("lx").call("overview", name("model"), by, "neurons", [layer])
    query = f"SELECT {by} AS figure FROM vectors WHERE view = ? AND kind = 'value' AND layer = ? "
    return name("atlas").call("sql", query + "ORDER BY owner, number", [place.view, layer])


def _heads_section(place: Viewpoint, colour: str, prompt: PromptRun | None) -> tuple[Section, ...]:
    """What heads are coloured by; nothing, where a prompt has to be typed first."""
    if colour == "effect":
        return () if prompt is None else (prompt.effects(),)
    call, command = _heads(place, colour)
    return (Section("heads", "Heads", call, command, when=_when(call)),)


def _when(call: Expression) -> When:
    return "now" if call.root == "atlas" else "soon"


def _heads(place: Viewpoint, colour: str) -> tuple[Expression, str]:
    if place.stores(JOBS.get(colour, "roles")):
        stored = {"role": "roles", "relation": "relations"}.get(colour, "heads")
        return name("atlas").call(stored), ""
    if colour in FROM_CATALOGUE:
        call = name("model").call("catalogue", measure=False)
        return call, place.command("catalogue", "--static")
    if colour == "relation":
        return name("model").call("relations"), place.command("relations")
    return name("lx").call("overview", name("model"), colour, "heads"), ""


@dataclass(frozen=True)
class LayerShape:
    """How many heads and neurons a layer has, and what its neurons are called."""

    heads: int
    neurons: tuple[tuple[str, int], ...]
    """Of each feed-forward: what stands before a neuron's number, and how many there are."""

    def to_dict(self) -> dict[str, Any]:
        return {"heads": self.heads, "neurons": [list(each) for each in self.neurons]}


def layout(model: Anatomy, index: int) -> LayerShape:
    layer = model.layers[index]
    groups = tuple((f"{ff.address}N", ff.d_mlp) for ff in layer.feed_forwards)
    return LayerShape(len(layer.heads), groups)


def show_map(sheet: Sheet) -> Markup:
    """The whole of it: facts, what to colour by, and a row for each layer."""
    place, facts = sheet.place, dict(sheet.facts)
    model = place.model
    shapes = [layout(model, i) for i in range(model.n_layers)]
    rows = [_row(place, i, shape) for i, shape in enumerate(shapes)]
    most = max((shape.heads for shape in shapes), default=0)
    head = el(
        "tr",
        el("th", el("span", "layer", class_="quiet"), scope="col"),
        *(el("th", i, scope="col") for i in range(most)),
        el("th", "neurons", scope="col", class_="strip"),
    )
    table = el(
        "table",
        el("thead", head),
        el("tbody", *rows),
        class_=f"map {_density(most, len(shapes))}",
        id="map",
        data_heads=place.link("map", "heads", **_asked(facts)) if len(sheet.sections) > 1 else None,
        data_neurons=place.link("map", "neurons", neurons=facts["neurons"]),
        data_colour=facts["colour"],
    )
    return join(
        el("div", el("h1", sheet.title), _describe(info(model)), class_="hero"),
        el(
            "div",
            _switch("heads by", place, facts, "colour", COLOURS),
            _switch("neurons by", place, facts, "neurons", NEURONS),
            class_="legend-bar",
        ),
        _form(place, facts) if facts["colour"] == "effect" else None,
        el("div", el("p", id="map-legend", class_="map-legend"), class_="legend-line"),
        el("div", table, class_="scroll map-scroll"),
        el("div", id="map-found", class_="map-found"),
    )


def _asked(facts: dict[str, Any]) -> dict[str, Any]:
    """What the colours of heads depend on."""
    return {key: facts[key] for key in ("colour", "text", "target")}


def _form(place: Viewpoint, facts: dict[str, Any]) -> Markup:
    """The prompt on which heads are removed one by one."""
    return el(
        "form",
        el(
            "label",
            el("span", "Text"),
            el(
                "input",
                name="text",
                value=facts["text"],
                placeholder=EXAMPLE,
                maxlength=LONGEST,
                required=True,
            ),
        ),
        el("label", el("span", "Target (else the most probable)"), target_field(facts["target"])),
        el("input", type="hidden", name="colour", value="effect"),
        el("input", type="hidden", name="neurons", value=facts["neurons"]),
        place.hidden,
        el("button", "remove each head", class_="primary"),
        action=place.link("map").partition("?")[0],
        method="get",
        class_="ask effect",
    )


def show_shelf(library: Library) -> Markup:
    """All that is served, each with what it is, or why it cannot be opened."""
    cards = []
    for each in library:
        try:
            said = _describe(info(each.model))
        except LexrayError as error:
            said = el("p", str(error), class_="note")
        name_of = el("a", each.title, href=f"/{each.slug}/map")
        cards.append(el("li", el("h2", name_of), said))
    return el("div", el("h1", "Models"), el("ul", *cards, class_="shelf"), class_="hero")


def _density(heads: int, layers: int) -> str:
    """How large cells can be."""
    return "many" if heads > 16 else "few" if layers <= 12 else ""


def _describe(facts: Info) -> Markup:
    sizes = facts.sizes
    said = [
        facts.family,
        f"{sizes['layers']} layers of {sizes['heads']} heads and {sizes['d_mlp']:,} neurons",
        f"{sizes['tokens']:,} tokens",
        f"{_large(facts.n_parameters)} parameters",
        show_bytes(facts.bytes),
    ]
    return el("p", " · ".join(said), class_="lead")


def _large(n: int) -> str:
    for unit, size in (("billion", 10**9), ("million", 10**6)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:,}"


def _switch(
    said: str, place: Viewpoint, facts: dict[str, Any], key: str, ways: dict[str, str]
) -> Markup:
    """Links to the same map by something else; the address says what is not the default."""
    usual = {"colour": _colours(place)[0], "neurons": next(iter(NEURONS))}
    links = []
    for way, text in ways.items():
        wanted = {"colour": facts["colour"], "neurons": facts["neurons"], key: way}
        query = {name: value for name, value in wanted.items() if value != usual[name]}
        if wanted["colour"] == "effect":
            query |= {"text": facts["text"], "target": facts["target"]}
        here = "true" if facts[key] == way else None
        links.append(el("a", text, href=place.link("map", **query), aria_current=here))
    chosen = el("span", *links, class_="switch")
    return el("span", el("span", said, class_="quiet"), chosen, class_="choice")


def _row(place: Viewpoint, index: int, shape: LayerShape) -> Markup:
    heads = [
        el(
            "td",
            el(
                "a",
                href=place.link(f"L{index}H{i}"),
                aria_label=f"L{index}H{i}",
                class_="cell",
                data_head=f"L{index}H{i}",
            ),
        )
        for i in range(shape.heads)
    ]
    total = sum(n for _, n in shape.neurons)
    strip = el(
        "td",
        el(
            "a",
            el("canvas", width=max(1, total), height=1, aria_hidden="true"),
            href=place.link(f"L{index}"),
            aria_label=f"{total:,} neurons of layer {index}",
            class_="strip",
            data_layer=index,
            data_groups=";".join(f"{prefix}:{n}" for prefix, n in shape.neurons[:2048]),
        ),
        class_="strip",
    )
    name_of = el("th", el("a", f"L{index}", href=place.link(f"L{index}")), scope="row")
    return el("tr", name_of, *heads, strip)
