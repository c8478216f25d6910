"""What each addend of a graph brings to the logits of the words of interest.

The logit is linear in what is added to the stream once every norm on the way is held at its
recorded scale (see `lexray.trace.attribute.walk`), so an addend's share is what its vector has in
the direction that leads from where it is added to the word. The shares of a sum's addends add up
to the share of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.flow.build.draft import Draft, DraftEdge, Sketch
from lexray.flow.graph import Edge, NodeKind, Word, is_crossing
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.walk import Logit, walk_back

INSIDE = {
    NodeKind.HEAD: "attention",
    NodeKind.CONCAT: "attention",
    NodeKind.ATTN_OUT: "attention",
    NodeKind.CROSS_OUT: "cross",
    NodeKind.FF_OUT: "ff",
}
"""Sums inside a sub-block, before the norm of what it writes."""

Direction = Float[Tensor, "d_model words"]
Place = tuple[int, str, bool]
"""A layer, a sub-block, and whether it is the stream (else inside the sub-block)."""


def weigh_edges(
    moment: Moment, draft: Draft, edges: Sequence[Edge], words: Sequence[Word]
) -> tuple[Edge, ...]:
    """The draft's edges with what each adds to every word's logit, where that can be told."""
    directions = find_directions(moment, draft.layers, [word.id for word in words])
    if directions is None:
        return tuple(edges)
    return tuple(
        replace(edge, added=_add_up(draft, link, directions))
        for edge, link in zip(edges, draft.links, strict=True)
    )


def _add_up(
    draft: Draft, link: DraftEdge, directions: dict[Place, Direction]
) -> tuple[float, ...] | None:
    towards = directions.get(_place(draft, link))
    if link.factor is None or towards is None:
        return None
    vector = draft.sketches[link.source].vector
    shares = link.factor * (vector.to(towards) @ towards)
    return tuple(float(f"{share:.5g}") for share in shares.tolist())


def _place(draft: Draft, link: DraftEdge) -> Place:
    """Where what a link carries is added."""
    source, target = draft.sketches[link.source], draft.sketches[link.target]
    if target.kind in INSIDE:
        part = "cross" if is_crossing(target.id) else INSIDE[target.kind]
        return target.layer, part, False
    if source.kind == NodeKind.EMBED:
        return 0, "attention", True
    if target.kind == NodeKind.RESIDUAL:
        return target.layer - 1, "ff", True
    if target.kind == NodeKind.SUM and target.id.endswith("ff_sum"):
        return target.layer, "ff", True
    return target.layer, "cross" if _joins_cross(draft, target) else "attention", True


def _joins_cross(draft: Draft, target: Sketch) -> bool:
    """Whether it is the sum of the stream with what cross-attention wrote."""
    written = f"L{target.layer}.cross_out"
    return any(source == written for _, source in draft.addends.get(target.id, ()))


def find_directions(
    moment: Moment, layers: Sequence[int], words: Sequence[int]
) -> dict[Place, Direction] | None:
    """The directions towards the words' logits at every place where something is added; None where
    the logits are not linear in the stream, or the recording lacks what the way back needs."""
    if moment.weights.architecture.head is not None or not layers:
        return None
    columns: dict[Place, list[Float[Tensor, "d_model"]]] = {}
    try:
        for word in words:
            for stop in walk_back(moment, Logit(moment.weights, word).direction):
                if stop.layer in layers:
                    assert stop.layer is not None
                    columns.setdefault((stop.layer, stop.part, True), []).append(stop.stream)
                    columns.setdefault((stop.layer, stop.part, False), []).append(stop.direction)
                if stop.layer == min(layers) and stop.part == "attention":
                    break
    except LexrayError:
        return None
    return {place: torch.stack(parts, 1) for place, parts in columns.items()}
