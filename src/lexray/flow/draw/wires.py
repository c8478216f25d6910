"""Edges as curves: where they leave and reach their nodes, and the path between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lexray.flow.draw.shapes import NodeBox, Wire
from lexray.flow.graph import STREAM, EdgeKind, FlowGraph

SKIPS = (EdgeKind.RESIDUAL_ATTN, EdgeKind.RESIDUAL_FF)
CLOSEST, MARGIN = 5.0, 5.0
"""Edges of a node stay at most this far apart, and this far from its corners."""
BEND = 64.0
"""Long edges bend over this width and run level for the rest."""


@dataclass(frozen=True)
class Ends:
    """An edge between drawn boxes."""

    edge: int
    source: NodeBox
    target: NodeBox


def draw_wires(graph: FlowGraph, edges: Sequence[Ends]) -> tuple[Wire, ...]:
    """The edges' curves, the residual skips first so that they lie beneath."""
    leaving = _ports(graph, edges, outward=True)
    reaching = _ports(graph, edges, outward=False)
    fans = _fan_sizes(edges)
    wires = []
    for ends in sorted(edges, key=lambda e: graph.edges[e.edge].kind not in SKIPS):
        start = ends.source.right, leaving[ends.edge]
        stop = ends.target.x, reaching[ends.edge]
        late = fans[1][ends.target.node] > fans[0][ends.source.node]
        wires.append(Wire(ends.edge, path(*start, *stop, late)))
    return tuple(wires)


def path(x1: float, y1: float, x2: float, y2: float, late: bool = False) -> str:
    """From left to right, level at both ends; a long one bends at its start or (`late`) its end."""
    if abs(y1 - y2) < 0.05:
        return f"M{n(x1)} {n(y1)}H{n(x2)}"
    if x2 - x1 <= 2 * BEND:
        return f"M{n(x1)} {n(y1)}{_bend(x1, y1, x2, y2)}"
    if late:
        return f"M{n(x1)} {n(y1)}H{n(x2 - BEND)}{_bend(x2 - BEND, y1, x2, y2)}"
    return f"M{n(x1)} {n(y1)}{_bend(x1, y1, x1 + BEND, y2)}H{n(x2)}"


def free_path(x1: float, y1: float, x2: float, y2: float) -> str:
    """Between any two points; the page draws the same when blocks open and close."""
    return f"M{n(x1)} {n(y1)}{_bend(x1, y1, x2, y2)}"


def _bend(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (x1 + x2) / 2
    return f"C{n(middle)} {n(y1)} {n(middle)} {n(y2)} {n(x2)} {n(y2)}"


def n(value: float) -> str:
    """A coordinate in few characters."""
    short = f"{value:.1f}".removesuffix(".0")
    return "0" if short == "-0" else short


def _ports(graph: FlowGraph, edges: Sequence[Ends], outward: bool) -> dict[int, float]:
    """The height at which each edge leaves (or reaches) its node: ordered as its other ends are."""
    by_box: dict[int, list[Ends]] = defaultdict(list)
    for ends in edges:
        by_box[(ends.source if outward else ends.target).node].append(ends)
    heights: dict[int, float] = {}
    for listed in by_box.values():
        box = listed[0].source if outward else listed[0].target
        skips = [e for e in listed if graph.edges[e.edge].kind in SKIPS]
        rest = [e for e in listed if graph.edges[e.edge].kind not in SKIPS]
        heights |= {e.edge: box.middle for e in skips}
        rest.sort(key=lambda e: (e.target if outward else e.source).middle)
        in_stream = graph.nodes[box.node].kind in STREAM
        heights |= _spread([e.edge for e in rest], box, bool(in_stream and skips))
    return heights


def _spread(edges: Sequence[int], box: NodeBox, below_skip: bool) -> Mapping[int, float]:
    low, high = box.y + MARGIN, box.y + box.height - MARGIN
    low = box.middle + 12 if below_skip else low
    step = min(CLOSEST, (high - low) / max(1, len(edges) - 1))
    first = (low + high) / 2 - step * (len(edges) - 1) / 2
    return {edge: first + step * i for i, edge in enumerate(edges)}


def _fan_sizes(edges: Sequence[Ends]) -> tuple[dict[int, int], dict[int, int]]:
    """How many edges leave and reach each node."""
    leaving: dict[int, int] = defaultdict(int)
    reaching: dict[int, int] = defaultdict(int)
    for ends in edges:
        leaving[ends.source.node] += 1
        reaching[ends.target.node] += 1
    return leaving, reaching
