"""The strongest links of a whole model: writers × readers, by the exact pair engine.

Writers of one layer stand against all readers that come later, each pair of layers measured by its
own chance, so that what every part of a layer shares makes no link. No matrix of all links exists.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch

from lexray.errors import LexrayError
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.result.links import Links
from lexray.roles.ends import NEURON_VIAS, End, chance, end, later_ends
from lexray.roles.wiring import Found, with_words
from lexray.space.topk.pairs import top_pairs


def wires(weights: Weights, n: int = 100, *, via: Sequence[str] = NEURON_VIAS) -> Links:
    """The n strongest links from neurons' values to later neurons' keys and gates.

    >>> wires(model, 20, via=["key"])
    """
    if n < 1:
        raise LexrayError(f"asked for {n} links; at least 1 has to be wanted")
    if unknown := [each for each in via if each not in NEURON_VIAS]:
        raise LexrayError(f"neurons read by key or gate, not by {', '.join(unknown)}")
    vias = tuple(each for each in NEURON_VIAS if each in via)
    best: list[Found] = []
    for layer in track(range(weights.n_layers), weights.n_layers, "links"):
        written = end(weights, layer, "value")
        read = [make() for make in later_ends(weights, "value", layer, vias)]
        later = [found for found in read if found is not None]
        if written is not None and later:
            best = heapq.nlargest(n, (*best, *_links(weights, written, later, n)), key=_key)
    return with_words(weights, best, f"The strongest links of {weights.name}")


def _key(link: Found) -> tuple[float, str, str]:
    return link.key


def _links(weights: Weights, written: End, later: Sequence[End], n: int) -> list[Found]:
    """The best of one layer's writers with all later readers."""
    by_chance = [chance(weights, (written.kind, written.layer), each) for each in later]
    B = torch.cat([each.units / c for each, c in zip(later, by_chance, strict=True)])
    A = written.units
    found = top_pairs(A, B, n, sign="absolute")
    owners = [(e, i) for e, each in enumerate(later) for i in range(len(each))]
    links = []
    for value, i, j in zip(
        found.values.tolist(), found.rows.tolist(), found.cols.tolist(), strict=True
    ):
        e, inside = owners[j]
        links.append(
            Found(
                written.names[i],
                later[e].names[inside],
                value * by_chance[e],
                value,
                written.core(i),
                later[e].core(inside),
                (written.kind, later[e].kind),
                (written.layer, later[e].layer),
            )
        )
    return links
