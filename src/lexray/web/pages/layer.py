"""A layer: its heads, and its neurons with the most legible first."""

from __future__ import annotations

from lexray.address import Address
from lexray.model.anatomy import Anatomy
from lexray.web.expression import name
from lexray.web.library import Library
from lexray.web.markup import Markup, el, join
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
    sections = [Section("neurons", "Its neurons", call, "", says, when)]
    last = model.n_layers - 1
    return Sheet(
        "layer",
        f"Layer {at.layer}" if at == Address(at.layer) else address,
        place,
        (address,),
        tuple(sections),
        _parts(place, model, at),
        Markup(""),
        [],
        place.link(f"L{at.layer - 1}") if at.layer else "",
        place.link(f"L{at.layer + 1}") if at.layer < last else "",
        facts=(("address", address),),
    )


def _parts(place: Viewpoint, model: Anatomy, at: Address) -> Markup:
    layer = model.layers[at.layer]
    heads = [
        join(" ", el("a", str(head.address), href=place.link(str(head.address)), class_="addr"))
        for head in layer.heads
    ]
    experts = [str(ff.address) for ff in layer.feed_forwards if ff.address != layer.address]
    links = [join(" ", el("a", each, href=place.link(each), class_="addr")) for each in experts]
    return join(
        el("span", f"{len(layer.heads)} heads:", *heads, class_="note"),
        el("span", f"{len(experts)} experts:", *links, class_="note") if experts else None,
    )
