"""What each addend of a graph brings to the logits of the words of interest.

The logit is linear in what is added to the stream once every norm on the way is held at its
recorded scale (see `lexray.trace.attribute.walk`), so an addend's share is what its vector has in
the direction that leads from where it is added to the word. The shares of a sum's addends add up
to the share of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.flow.build.draft import Draft, DraftEdge, Sketch
from lexray.flow.graph import Edge, EdgeKind, NodeKind, Word, is_crossing
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.walk import Logit, Stop, pass_on, walk_back

INSIDE = {
    NodeKind.HEAD: "attention",
    NodeKind.CONCAT: "attention",
    NodeKind.ATTN_OUT: "attention",
    NodeKind.CROSS_OUT: "cross",
    NodeKind.FF_OUT: "ff",
}
"""Sums inside a sub-block, before the norm of what it writes."""

ACTIVE = "L{}.active"
"""Of several streams the one that a layer works on."""

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
    """What a link brings: an addend, or all that a mixer wrote, before the norm of its output."""
    source = draft.sketches[link.source]
    whole = source.kind == NodeKind.MIXER and link.kind == EdgeKind.NORM
    if link.factor is None and link.carries is None and not whole:
        return None
    place = (source.layer, source.id.rpartition(".")[2], False) if whole else _place(draft, link)
    if (towards := directions.get(place)) is None:
        return None
    vector = source.vector if link.carries is None else link.carries.vector
    shares = (1.0 if link.factor is None else link.factor) * (vector.to(towards) @ towards)
    return tuple(float(f"{share:.5g}") for share in shares.tolist())


def _place(draft: Draft, link: DraftEdge) -> Place:
    """Where what a link carries is added."""
    source, target = draft.sketches[link.source], draft.sketches[link.target]
    if link.carries is not None:
        return source.layer, link.carries.to, True
    if target.kind in INSIDE:
        part = "cross" if is_crossing(target.id) else INSIDE[target.kind]
        return target.layer, part, False
    if source.kind == NodeKind.EMBED:
        return 0, "attention", True
    if target.kind == NodeKind.RESIDUAL:
        return target.layer - 1, "ff", True
    if target.kind == NodeKind.SUM and target.id.endswith("ff_sum"):
        return target.layer, "ff", True
    if ACTIVE.format(target.layer) in draft.sketches:  # sums there are shrunk behind attention
        return target.layer, "ff", True
    return target.layer, "cross" if _joins_cross(draft, target) else "attention", True


def _joins_cross(draft: Draft, target: Sketch) -> bool:
    """Whether it is the sum of the stream with what cross-attention wrote."""
    written = f"L{target.layer}.cross_out"
    return any(source == written for _, source in draft.addends.get(target.id, ()))


def _directions(
    stop: Stop, layers: Sequence[int]
) -> Iterator[tuple[Place, Float[Tensor, "width"]]]:
    """Those that are known at one place on the way back. Of several streams (Gemma 3n) also that of
    the one a layer works on, as it is passed on, and of all that leave the layer."""
    if stop.part == "embedding":
        yield (0, "embedding", True), stop.stream
    if stop.layer is None or stop.layer not in layers or stop.step is None:
        return
    yield (stop.layer, stop.part, True), stop.stream
    yield (stop.layer, stop.part, False), stop.direction
    if stop.step.spec.altup is not None:
        if stop.part == stop.step.parts[-1]:
            yield (stop.layer, "leaving", True), stop.behind
        if stop.part == "attention":
            yield (stop.layer, "active", True), pass_on(stop.step, stop.stream)


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
                for place, direction in _directions(stop, layers):
                    columns.setdefault(place, []).append(direction)
                if stop.layer == min(layers) > 0 and stop.part == "attention":
                    break
    except LexrayError:
        return None
    return {place: torch.stack(parts, 1) for place, parts in columns.items()}
