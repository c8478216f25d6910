"""A layer: its heads, and its neurons with the most legible first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lexray.address import Address
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import FeedForward
from lexray.web.expression import name
from lexray.web.library import Library
from lexray.web.markup import Markup, el, join
from lexray.web.pages.vector import layer_link, layer_vectors
from lexray.web.query import Query
from lexray.web.sheet import Section, Sheet, Viewpoint, When

EACH = 8
STORED = 100


def read_layer(library: Library, place: Viewpoint, query: Query, at: Address) -> Sheet:
    """The page of a layer, or of one of its experts."""
    model = place.model
    model[at]
    address, layer = str(at), name("model").get("layers").item(at.layer)
    here = layer if at == Address(at.layer) else name("model").item(address)
    says = "What each neuron writes; the lists that read best come first."
    call = here.get("values").call("top", EACH).call("by_legibility")
    when: When = "soon"
    if at == Address(at.layer) and place.stores("vectors", kind="value", layer=at.layer):
        call, when = name("atlas").call("neurons", at.layer, STORED), "now"
        says = "What each neuron writes; those that read best come first."
    command = place.command("layer", address, "-k", EACH)
    sections = [Section("neurons", "Its neurons", call, command, says, when)]
    return Sheet(
        "layer",
        address if at.expert is not None or at.shared else layer_link(place, at)[0].capitalize(),
        place,
        (address,),
        tuple(sections),
        _parts(place, model, at),
        Markup(""),
        [layer_link(place, at)] if at.expert is not None or at.shared else [],
        *_neighbours(place, model, at),
        facts=(("address", address),),
    )


def _neighbours(place: Viewpoint, model: Anatomy, at: Address) -> tuple[str, str]:
    """The layer, or the expert, before and after."""
    field = "layer" if at.expert is None else "expert"
    n = len(model.stack_at(at).layers)
    if at.expert is not None:
        n = sum(ff.address.expert is not None for ff in _feed_forwards(model, at))
    now = getattr(at, field)
    before, after = (
        place.link(str(replace(at, **{field: i}))) if 0 <= i < n else "" for i in (now - 1, now + 1)
    )
    return before, after


def _feed_forwards(model: Anatomy, at: Address) -> list[FeedForward]:
    return list(model.stack_at(at).layers[at.layer].feed_forwards)


def _parts(place: Viewpoint, model: Anatomy, at: Address) -> Markup:
    """Everything else in it that has a page."""
    layer = model.stack_at(at).layers[at.layer]
    whole = Address(at.layer, encoder=at.encoder)
    experts = [ff.address for ff in layer.feed_forwards if ff.address != layer.address]
    parts = (
        ("heads", [head.address for head in layer.heads]),
        ("heads of cross-attention", [head.address for head in layer.cross_heads]),
        ("experts", experts),
    )
    lists = [_links(place, f"{len(each)} {said}:", each) for said, each in parts if each]
    vectors = [replace(whole, part=part) for part in layer_vectors(layer)]
    return join(*lists, _links(place, "norms and biases:", vectors) if vectors else None)


def _links(place: Viewpoint, said: str, addresses: Sequence[Address]) -> Markup:
    texts = [(str(at), at.part or str(at)) for at in addresses]
    links = [join(" ", el("a", text, href=place.link(at), class_="addr")) for at, text in texts]
    return el("span", said, *links, class_="note")
