"""A neuron, a subhead, a bias, a norm: the vectors it is made of, as words."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import get_args

from lexray.address import Address, LayerVector, Subhead, Vector
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.layer import Layer
from lexray.web.expression import name
from lexray.web.library import Library
from lexray.web.markup import Markup, el, join
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint, other_name

SHOWN, NEAR, LINKS, SNIPPETS, PARTNERS = 24, 12, 8, 8, 5
LARGE = 50_000
"""Vectors that are searched without asking."""


def read_vector(library: Library, place: Viewpoint, query: Query, at: Address) -> Sheet:
    """The page of a neuron or of a single vector."""
    model = place.model
    model[at]  # raises with the model's own ranges
    k = query.number("k", SHOWN, 1, 100)
    address = str(at)
    part = name("model").item(address)
    if at.neuron is not None and at.vector is None:
        command = place.command("neuron", address, "-k", k)
        call, says = part.call("top", k), _say(model, at)
        vector = f"{address}.value"
    else:
        command = place.command("subhead" if at.subhead else "vector", address, "-k", k)
        call, says = part.call("every", k), ""
        vector = address
    if _is_stored(place, at, k):
        call = name("atlas").call("vector", address, k)
    by = "By the words of key, gate and value" if vector != address else "By its words"
    sections = [
        Section(
            "readings", "As words", call, command, says, width="half" if at.subhead else "whole"
        ),
        *_term(place, at, k),
        *_where(place, at),
        *_alike(place, at, vector),
        *(() if at.part or at.cross else elsewhere(library, place, address, by)),
    ]
    return Sheet(
        "neuron" if at.neuron is not None else "vector",
        address,
        place,
        (address,),
        tuple(sections),
        _lead(place, model, at),
        Markup(""),
        _trail(place, at),
        *_neighbours(model, place, at),
        others=tuple(library),
        facts=(("address", address),),
    )


def _term(place: Viewpoint, at: Address, k: int) -> list[Section]:
    """Of a subhead the other half of its rank-1 term: what is read by V12 is written by O12, what
    Q12 has in common with K12 is looked at."""
    if at.subhead is None:
        return []
    other: Subhead = OTHER_HALF[at.subhead]
    half = replace(at, subhead=other)
    address = str(half)
    call = name("model").item(address).call("every", k)
    if _is_stored(place, half, k):
        call = name("atlas").call("vector", address, k)
    says = f"{at.subhead}{at.index} and {other}{at.index} are one term of the head: {TERMS[other]}"
    command = place.command("subhead", address, "-k", k)
    return [Section("term", f"Its other half: {address}", call, command, says, width="half")]


OTHER_HALF: dict[Subhead, Subhead] = {"Q": "K", "K": "Q", "V": "O", "O": "V"}
TERMS: dict[Subhead, str] = {
    "O": "where V sees its words, O writes these.",
    "V": "where V sees these, O writes its words.",
    "K": "a query with Q's words looks at keys with these.",
    "Q": "a query with these looks at keys with K's words.",
}


def _say(model: Anatomy, at: Address) -> str:
    gated = model.neuron(at).ff.spec.w_gate is not None
    match = "key and its gate match" if gated else "key matches"
    return f"Where its {match} what the model has in mind, it adds its value."


def _is_stored(place: Viewpoint, at: Address, k: int) -> bool:
    """Whether an atlas has all lists of it that the page shows."""
    if not place.stores_lists(k):
        return False
    if at.part is not None:
        return place.stores("others")
    kinds = [at.subhead] if at.subhead else [at.vector] if at.vector else ["key", "value"]
    return all(place.stores("vectors", kind=kind, layer=at.layer) for kind in kinds)


def _where(place: Viewpoint, at: Address) -> list[Section]:
    """Where it is strongest in running text, and who is linked with it."""
    address = str(at)
    rows = []
    if at.neuron is not None and place.stores("evidence", kind="neurons", layer=at.layer):
        rows += stored_evidence(place, str(replace(at, vector=None)))
    elif at.part is None:
        call = name("model").call("evidence", address, n=SNIPPETS)
        rows.append(
            Section(
                "evidence",
                "In running text",
                call,
                place.command("evidence", address, "-n", SNIPPETS),
                "Where it is strongest, what followed, and whether its reading tells where.",
                "asked",
                waits="Look for it in a text",
            )
        )
    if at.neuron is not None:
        whole = str(replace(at, vector=None))
        part = name("model").item(whole)
        for method, title, flag, says in (
            ("writers", "Who writes for it", "--to", "Earlier parts whose words it reads."),
            ("readers", "Who reads it", "--from", "Later parts that read its words."),
        ):
            command = place.command("wires", flag, whole, "-n", LINKS)
            call = part.call(method, LINKS)
            rows.append(Section(method, title, call, command, says, "soon", "half"))
    return rows


def stored_evidence(place: Viewpoint, address: str) -> list[Section]:
    """Where a neuron or head was strongest in the text that the atlas was made with."""
    ask, says = name("atlas"), "Where it is strongest in the text that the atlas was made with."
    told = "How well each reading tells where it is strong: 0.5 says nothing, 1 all."
    command = place.command("evidence", address, "-n", SNIPPETS)
    return [
        Section("evidence", "In running text", ask.call("evidence", address), command, says),
        Section(
            "agreement", "Does its reading tell where?", ask.call("agreement", address), "", told
        ),
    ]


def _alike(place: Viewpoint, at: Address, vector: str) -> list[Section]:
    if at.part is not None:
        return []
    says = f"Parameters whose lists of words go with that of {vector}."
    stored = _is_stored(place, at, 1)
    live = Section(
        "nearest",
        "Most like it in this model" if not stored else "By the whole of their lists",
        name("model").call("nearest", vector, NEAR),
        place.command("nearest", vector, "-n", NEAR),
        says,
        "asked" if stored or _is_large(place) else "soon",
        waits="Look through all parameters",
    )
    if not stored:
        return [live]
    call = name("atlas").call("like", vector, NEAR)
    return [Section("like", "Most like it in this model", call, "", says), live]


def _is_large(place: Viewpoint) -> bool:
    """Whether looking through all parameters is worth a question first."""
    model = place.model
    return model.n_layers * (3 * model.d_mlp + 4 * model.n_heads * model.d_head) > LARGE


def elsewhere(library: Library, place: Viewpoint, address: str, by: str) -> list[Section]:
    """The most similar in each other model that is served; `by` what they are compared."""
    return [
        Section(
            f"in-{other.slug}",
            f"Most like it in {other.title}",
            name("lx").call("partners", name("model"), address, name(other_name(other)), PARTNERS),
            place.command("align", other.origin.source, "--of", address, "-n", PARTNERS),
            f"{by}, over the tokens that both models have.",
            "asked",
            waits=f"Look for it in {other.title}",
        )
        for other in library
        if other is not place.served
    ]


def _lead(place: Viewpoint, model: Anatomy, at: Address) -> Markup:
    """Its kind, and its parts as links."""
    if at.neuron is not None:
        whole = replace(at, vector=None)
        gated = model.neuron(whole).ff.spec.w_gate is not None
        vectors: list[Vector | None] = (
            [None, "key", "gate", "value"] if gated else [None, "key", "value"]
        )
        return _tabs(
            place, [(str(replace(whole, vector=v)), v or "neuron") for v in vectors], str(at)
        )
    if at.subhead is not None:
        n = model.head(Address(at.layer, head=at.head, cross=at.cross, encoder=at.encoder)).d_head
        sides: tuple[Subhead, ...] = ("Q", "K", "V", "O")
        names = [(str(replace(at, subhead=side)), f"{side}{at.index}") for side in sides]
        said = el("span", f"one of {n} rank-1 terms of the head", class_="note")
        return join(_tabs(place, names, str(at)), said)
    parts = layer_vectors(model.stack_at(at).layers[at.layer])
    return _tabs(place, [(str(replace(at, part=part)), part) for part in parts], str(at))


def _tabs(place: Viewpoint, names: list[tuple[str, str]], here: str) -> Markup:
    links = [
        el("a", text, href=place.link(to), aria_current="true" if to == here else None)
        for to, text in names
    ]
    return el("span", *links, class_="switch")


def layer_vectors(layer: Layer) -> list[LayerVector]:
    """The biases and norms that a layer has."""
    there: list[LayerVector] = []
    for part in get_args(LayerVector):
        with suppress(LexrayError):
            layer.vector(part)
            there.append(part)
    return there


def layer_link(place: Viewpoint, at: Address) -> tuple[str, str]:
    """The layer that something is in: its name and its page."""
    layer = Address(at.layer, encoder=at.encoder)
    return f"{'encoder ' * at.encoder}layer {at.layer}", place.link(str(layer))


def _trail(place: Viewpoint, at: Address) -> list[tuple[str, str]]:
    trail = [layer_link(place, at)]
    if at.head is not None and at.subhead is not None:
        head = str(Address(at.layer, head=at.head, cross=at.cross, encoder=at.encoder))
        trail.append((head, place.link(head)))
    return trail


def _neighbours(model: Anatomy, place: Viewpoint, at: Address) -> tuple[str, str, str, str]:
    """Before, after, and the same one layer up and down; empty where there is none."""

    def there(other: Address | None) -> str:
        if other is None:
            return ""
        try:
            model[other]
        except LexrayError:
            return ""
        return place.link(str(other))

    def step(field: str, by: int) -> Address | None:
        now = getattr(at, field)
        return None if now is None or now + by < 0 else replace(at, **{field: now + by})

    up, down = there(step("layer", -1)), there(step("layer", 1))
    if at.part is not None:
        return up, down, "", ""
    across = "neuron" if at.neuron is not None else "index"
    return there(step(across, -1)), there(step(across, 1)), up, down
