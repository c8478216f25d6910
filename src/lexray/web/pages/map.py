"""The map: every head and every neuron of a model at a glance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.info import Info, info
from lexray.model.layer import Layer
from lexray.result.format import show_bytes
from lexray.web.expression import Expression, name
from lexray.web.frame import copies
from lexray.web.library import Library
from lexray.web.markup import Markup, el, join
from lexray.web.pages.prompt import (
    AIM,
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
    which layer's neurons a section reads (L3, enc.L3). By effect: on what follows `text`, or on
    `target`."""
    model = place.model
    colour = query.choice("colour", _colours(place))
    by = query.choice("neurons", tuple(NEURONS))
    layers = every_layer(model)
    layer = _read_layer(model, query.text("layer", 20))
    prompt = read_typed(place, model, query) if colour == "effect" else None
    strip = _strip(place, by, layer)
    sections = (
        *_heads_section(place, colour, prompt),
        Section(
            "neurons",
            f"Neurons of {layer}",
            strip,
            "" if layer.encoder else _overview(place, by, "neurons", "--layers", layer.layer),
            when=_when(strip),
        ),
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
            ("layers", [layout(layer).to_dict() for layer in layers]),
        ),
    )


def _colours(place: Viewpoint) -> tuple[str, ...]:
    """What heads can be coloured by, the default first: their roles, or where these would have to
    be worked out for many heads, their sizes."""
    model = place.model
    many = len(model.every_head) > MANY
    first = "norm" if many and not place.stores("roles") else "role"
    return (first, *(colour for colour in COLOURS if colour != first))


def every_layer(model: Anatomy) -> list[Layer]:
    """All layers; of an encoder–decoder the encoder's first."""
    return [layer for stack in model.stacks for layer in stack.layers]


def _read_layer(model: Anatomy, text: str) -> Address:
    """A layer as it is typed: 3, L3 or enc.L3; the first, if it is not."""
    if not text:
        return every_layer(model)[0].address
    at = Address.parse(f"L{text}" if text.isdecimal() else text)
    if at != Address(at.layer, encoder=at.encoder):
        raise LexrayError(f"layer={text!r} is no layer, as 3, L3 or enc.L3")
    model[at]
    return at


def _strip(place: Viewpoint, by: str, at: Address) -> Expression:
    """A layer's neurons: from the atlas where there is one."""
    if not place.stores("vectors", kind="value", layer=at.layer):
        stack = name("model").get("encoder") if at.encoder else name("model")
        return name("lx").call("overview", stack, by, "neurons", [at.layer])
    query = (
        f"SELECT {by} AS figure FROM vectors WHERE view = ? AND kind = 'value' AND layer = ? "
        "AND starts_with(owner, ?) ORDER BY owner, number"
    )
    stem = "enc." if at.encoder else "L"
    return name("atlas").call("sql", query, [place.view, at.layer, stem])


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
    call = name("lx").call("overview", name("model"), colour, "heads")
    return call, _overview(place, colour, "heads")


def _overview(place: Viewpoint, by: str, of: str, *more: str | int) -> str:
    return place.command("overview", "--by", by, "--of", of, *more)


@dataclass(frozen=True)
class LayerShape:
    """Which heads and how many neurons a layer has, and what its neurons are called."""

    address: str
    heads: tuple[str, ...]
    cross: tuple[str, ...]
    """The heads of cross-attention."""
    neurons: tuple[tuple[str, int], ...]
    """Of each feed-forward: what stands before a neuron's number, and how many there are."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "heads": len(self.heads),
            **({"cross": len(self.cross)} if self.cross else {}),
            "neurons": [list(each) for each in self.neurons],
        }


def layout(layer: Layer) -> LayerShape:
    return LayerShape(
        str(layer.address),
        tuple(str(head.address) for head in layer.heads),
        tuple(str(head.address) for head in layer.cross_heads),
        tuple((f"{ff.address}N", ff.d_mlp) for ff in layer.feed_forwards),
    )


def show_map(sheet: Sheet, query: dict[str, str]) -> Markup:
    """The whole of it: facts, what to colour by, and a row for each layer."""
    place, facts = sheet.place, dict(sheet.facts)
    model = place.model
    shapes = [layout(layer) for layer in every_layer(model)]
    most = max((len(shape.heads) for shape in shapes), default=0)
    cross = max((len(shape.cross) for shape in shapes), default=0)
    rows = [_row(place, shape, most, cross) for shape in shapes]
    head = el(
        "tr",
        el("th", el("span", "layer", class_="quiet"), scope="col"),
        *(el("th", i, scope="col") for i in range(most)),
        *(el("th", f"X{i}", scope="col", title="cross-attention") for i in range(cross)),
        el("th", "neurons", el("span", id="strip-legend"), scope="col", class_="strip"),
    )
    table = el(
        "table",
        el("thead", head),
        el("tbody", *rows),
        class_=f"map {_density(most + cross, len(shapes))}",
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
        el(
            "div",
            el("p", id="map-legend", class_="map-legend"),
            copies(sheet.python, sheet.command, sheet.twin_link(query)),
            class_="legend-line",
        ),
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
        el(
            "label",
            el("span", AIM),
            target_field(facts["target"]),
        ),
        el("input", type="hidden", name="colour", value="effect"),
        el("input", type="hidden", name="neurons", value=facts["neurons"]),
        place.hidden,
        el("button", "remove each head", class_="primary"),
        action=place.link("map").partition("?")[0],
        method="get",
        class_="ask effect",
    )


def list_shelf(library: Library) -> dict[str, Any]:
    """The twin of the shelf."""
    models: list[dict[str, Any]] = []
    for each in library:
        said: dict[str, Any] = {"title": each.title, "map": f"/{each.slug}/map.json"}
        try:
            models.append({**said, "info": info(each.model).to_dict()})
        except LexrayError as error:
            models.append({**said, "error": str(error)})
    return {"page": "models", "models": models}


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
    twin = el("a", "JSON", href="/index.json", title="the same content for programs")
    return el(
        "div",
        el("h1", "Models"),
        el("ul", *cards, class_="shelf"),
        el("span", twin, class_="copies"),
        class_="hero",
    )


def _density(heads: int, layers: int) -> str:
    """How large cells can be."""
    return "many" if heads > 16 else "few" if layers <= 12 else ""


def _describe(facts: Info) -> Markup:
    sizes = facts.sizes
    said = [
        facts.family,
        f"{_stacks(facts)} of {sizes['heads']} heads and {sizes['d_mlp']:,} neurons",
        f"{sizes['tokens']:,} tokens",
        f"{_large(facts.n_parameters)} parameters",
        show_bytes(facts.bytes),
    ]
    return el("p", " · ".join(said), class_="lead")


def _stacks(facts: Info) -> str:
    layers, encoder = facts.sizes["layers"], facts.sizes.get("encoder layers")
    return f"{encoder} + {layers} layers (encoder + decoder)" if encoder else f"{layers} layers"


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


def _row(place: Viewpoint, shape: LayerShape, most: int, cross: int) -> Markup:
    """A layer: its heads, as many cells as the widest has, and its neurons."""
    blank = el("td")
    cells = [
        *(_cell(place, head) for head in shape.heads),
        *(blank for _ in range(most - len(shape.heads))),
        *(_cell(place, head) for head in shape.cross),
        *(blank for _ in range(cross - len(shape.cross))),
    ]
    total = sum(n for _, n in shape.neurons)
    at = shape.address
    strip = el(
        "a",
        el("canvas", width=max(1, total), height=1, aria_hidden="true"),
        href=place.link(at),
        aria_label=f"{total:,} neurons of {at}",
        class_="strip",
        data_layer=at,
        data_groups=";".join(f"{prefix}:{n}" for prefix, n in shape.neurons[:2048]),
    )
    name_of = el("th", el("a", at, href=place.link(at)), scope="row")
    return el("tr", name_of, *cells, el("td", strip if total else None, class_="strip"))


def _cell(place: Viewpoint, head: str) -> Markup:
    return el(
        "td",
        el("a", href=place.link(head), aria_label=head, class_="cell", data_head=head),
    )
