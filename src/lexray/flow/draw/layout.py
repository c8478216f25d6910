"""Where everything stands: stations of the residual stream, and between them blocks.

The stream runs from left to right along y = 0; what a block computes hangs below it. A block has
two forms, closed and open, each in coordinates of its own that begin where the station before it
ends: opening one only shifts what is right of it, so the page needs no layout of its own. What is
too wide for a row goes on in the next one, which begins with the station where the last one ended.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lexray.errors import LexrayError
from lexray.flow.draw.block import TITLE_HEIGHT, open_form
from lexray.flow.draw.shapes import (
    CARD_HEIGHT,
    CARD_WIDTH,
    Form,
    Label,
    NodeBox,
    Wire,
    card,
    summary,
)
from lexray.flow.draw.wires import n
from lexray.flow.graph import STREAM, EdgeKind, FlowGraph, NodeKind
from lexray.result.theme import standing

TOP = -84.0
"""The upper edge of every picture."""
CLOSED = 14.0
"""The width that a closed block adds between two stations."""
GAP = 48.0
"""The width between stations with no block between them."""
FIRST_CARD = 54.0
CARD_STEP = 174.0
"""Where a closed block's first card begins, and how far below it the next one does."""
MOST_OPEN = 2
"""Up to so many blocks are open at first."""
FOLD_FROM, LOUD = 12, 8
"""In graphs of more blocks, only so many are shown with their words: where most happens."""
FOLD = 64.0
"""The width of a run of quiet blocks."""
WIDE = 1700.0
"""How wide a row of a still picture may be, if it holds more than one block."""
BETWEEN = 30.0
"""The height between rows."""
SUMMARIES = {
    NodeKind.ATTN_OUT: "attention",
    NodeKind.CROSS_OUT: "cross-att.",
    NodeKind.MIXER: "mixer",
    NodeKind.FF_OUT: "feed-fwd",
}
STATIONS = (NodeKind.EMBED, NodeKind.RESIDUAL)

Arc = tuple[int, int, int]
"""An edge, its source and its target, by their places in the graph."""


@dataclass(frozen=True)
class Segment:
    """A station, a block, or a gap where blocks are left out."""

    kind: str
    layer: int
    closed: Form
    open: Form | None = None
    """Only blocks with something to show inside have it."""

    def form(self, layers: Collection[int]) -> Form:
        return self.open if self.open is not None and self.layer in layers else self.closed


@dataclass(frozen=True)
class PlacedForm:
    """A form at its place in the picture."""

    x: float
    form: Form
    segment: Segment
    y: float = 0.0
    again: bool = False
    """A station that ended the row above, drawn once more where the next one begins."""


@dataclass(frozen=True)
class Layout:
    segments: tuple[Segment, ...]
    free: tuple[int, ...]
    """Edges that belong to no block: they run from node to node, wherever these are."""
    quiet: tuple[int, ...] = ()
    """Blocks in which little happens to the target: runs of them are folded into a count."""

    @property
    def openable(self) -> tuple[int, ...]:
        return tuple(s.layer for s in self.segments if s.open is not None)

    @property
    def at_first(self) -> tuple[int, ...]:
        """The blocks that are open if nobody says which."""
        return self.openable if len(self.openable) <= MOST_OPEN else ()

    def place(self, layers: Collection[int], wide: float = math.inf) -> list[PlacedForm]:
        """The pieces from left to right with these blocks open, in rows at most so wide, or as wide
        as a block is."""
        out: list[PlacedForm] = []
        x = y = bottom = 0.0
        filled = False
        forms = self._forms(layers)
        for i, (segment, form) in enumerate(forms):
            following = forms[i + 1][0] if i + 1 < len(forms) else None
            end = x + form.width + (CARD_WIDTH if _is_station(following) else 0.0)
            station = out[-1] if out and _is_station(out[-1].segment) else None
            if segment.kind == "block" and end > wide and filled and station is not None:
                y += bottom - TOP + BETWEEN
                out.append(replace(station, x=0.0, y=y, again=True))
                x, bottom = station.form.width, station.form.bottom
            filled = filled or segment.kind == "block"
            out.append(PlacedForm(x, form, segment, y))
            x += form.width
            bottom = max(bottom, form.bottom)
        return out

    def _forms(self, layers: Collection[int]) -> list[tuple[Segment, Form]]:
        """What stands in the picture, runs of quiet blocks as one."""
        folds = self.folds(layers)
        inside = {i for first, last in folds for i in range(first + 1, last + 1)}
        starts, out = dict(folds), []
        for i, segment in enumerate(self.segments):
            if i in starts:
                folded = fold_form(segment.layer, self.segments[starts[i]].layer)
                out.append((segment, folded))
            elif i not in inside:
                out.append((segment, segment.form(layers)))
        return out

    def folds(self, layers: Collection[int]) -> list[tuple[int, int]]:
        """Runs of at least two quiet blocks, none of them open, with the stations between them: the
        first and the last segment of each."""
        quiet = set(self.quiet) - set(layers)
        folds: list[tuple[int, int]] = []
        run: list[int] = []
        for i, segment in enumerate(self.segments):
            if segment.kind != "block":
                continue
            if segment.layer in quiet:
                run.append(i)
                continue
            folds += [(run[0], run[-1])] if len(run) > 1 else []
            run = []
        return folds + ([(run[0], run[-1])] if len(run) > 1 else [])

    def choose_open(self, layers: Collection[int] | None) -> tuple[int, ...]:
        """Which blocks to open: those asked for, if they can be."""
        if layers is None:
            return self.at_first
        unknown = sorted(set(layers) - set(self.openable))
        if unknown:
            there = ", ".join(map(str, self.openable)) or "none"
            raise LexrayError(f"block {unknown[0]} cannot be opened; those that can: {there}")
        return tuple(sorted(set(layers)))


def _is_station(segment: Segment | None) -> bool:
    return segment is not None and segment.kind == "station"


def layout(graph: FlowGraph) -> Layout:
    """The picture of a graph; the same graph always gives the same picture."""
    stations, blocks = _sort_out(graph)
    segments: list[Segment] = []
    drawn: set[int] = set()
    links = _links(graph)
    keys = sorted({*stations, *((layer, len(STATIONS)) for layer in blocks)})
    for here, following in zip(keys, [*keys[1:], None], strict=True):
        layer = here[0]
        if here in stations:
            if segments and segments[-1].kind == "station":
                segments.append(_gap(segments[-1].layer, layer))
            segments.append(Segment("station", layer, _station(graph, stations[here])))
            continue
        left = segments[-1].closed.boxes if segments and segments[-1].kind == "station" else ()
        right = _station(graph, stations[following]).boxes if following in stations else ()
        block = _Between(graph, layer, blocks[layer], left, right)
        own = block.links(links)
        segments.append(block.segment(own))
        drawn |= {edge for edge, _, _ in own}
    free = tuple(i for i in range(len(graph.edges)) if i not in drawn)
    return Layout(tuple(segments), free, find_quiet(graph, sorted(blocks)))


def fold_form(first: int, last: int) -> Form:
    """A run of quiet blocks: how many, and which."""
    labels = (
        Label(FOLD / 2, TITLE_HEIGHT, "heading", f"{first}–{last}", "middle"),
        Label(FOLD / 2, TITLE_HEIGHT + 16, "heading", f"{last - first + 1} quiet", "middle"),
    )
    return Form(FOLD, 0.0, labels=labels)


def find_quiet(graph: FlowGraph, layers: Sequence[int]) -> tuple[int, ...]:
    """Of many blocks all but those that do most for or against the target: by what attention and
    feed-forward bring to its logit, or by how far its rank moves."""
    if len(layers) <= FOLD_FROM:
        return ()
    done = {layer: _done(graph, layer) for layer in layers}
    loud = sorted(layers, key=lambda layer: -done[layer])[:LOUD]
    return tuple(layer for layer in layers if layer not in loud)


def _done(graph: FlowGraph, layer: int) -> float:
    outputs = [n for n in graph.nodes if n.layer == layer and n.kind in SUMMARIES]
    shares = [share for n in outputs if (share := graph.contribution(n)) is not None]
    if shares:
        return sum(map(abs, shares))
    stations = [n for n in graph.nodes if n.kind == NodeKind.RESIDUAL]
    places = [graph.place(n) for n in stations if n.layer in (layer, layer + 1)]
    ranks = [standing(place.rank, graph.d_vocab) for place in places if place is not None]
    return max(ranks, default=0.0) - min(ranks, default=0.0)


def _sort_out(
    graph: FlowGraph,
) -> tuple[dict[tuple[int, int], list[int]], dict[int, list[int]]]:
    """Stations by (layer, kind), and the nodes inside each block."""
    stations: dict[tuple[int, int], list[int]] = defaultdict(list)
    blocks: dict[int, list[int]] = defaultdict(list)
    for i, node in enumerate(graph.nodes):
        if node.kind in STATIONS:
            stations[node.layer, STATIONS.index(node.kind)].append(i)
        else:
            blocks[node.layer].append(i)
    return dict(stations), dict(blocks)


def _links(graph: FlowGraph) -> list[Arc]:
    place = {node.id: i for i, node in enumerate(graph.nodes)}
    return [(i, place[e.source], place[e.target]) for i, e in enumerate(graph.edges)]


def _station(graph: FlowGraph, members: Sequence[int]) -> Form:
    step = CARD_HEIGHT + 12
    boxes = [card(i, graph.nodes[i], graph, 0.0, step * row) for row, i in enumerate(members)]
    return Form(CARD_WIDTH, step * (len(members) - 1) + CARD_HEIGHT / 2, tuple(boxes))


def _gap(before: int, after: int) -> Segment:
    left_out = after - before
    labels = (Label(GAP / 2, -8.0, "heading", f"+{left_out}", "middle"),) if left_out > 1 else ()
    return Segment("gap", before, Form(GAP, 0.0, labels=labels))


@dataclass(frozen=True)
class _Between:
    """A block between two stations."""

    graph: FlowGraph
    layer: int
    inside: list[int]
    left: tuple[NodeBox, ...]
    right: tuple[NodeBox, ...]

    def links(self, links: Sequence[Arc]) -> list[Arc]:
        """The edges drawn with this block: inside it, into it, out of it, past it."""
        sources = {*self.inside, *(box.node for box in self.left)}
        targets = {*self.inside, *(box.node for box in self.right)}
        return [link for link in links if link[1] in sources and link[2] in targets]

    def segment(self, own: Sequence[Arc]) -> Segment:
        closed = self._close(own)
        if {self.graph.nodes[i].kind for i in self.inside} <= {*STREAM, *SUMMARIES}:
            return Segment("block", self.layer, closed)
        left = tuple(box.shift(-CARD_WIDTH) for box in self.left)
        right = {box.node: box for box in self.right}
        opened = open_form(self.graph, self.layer, self.inside, own, left, right)
        return Segment("block", self.layer, closed, opened)

    def _close(self, own: Sequence[Arc]) -> Form:
        """Cards below the stream: what attention added, and what the feed-forward did."""
        boxes = self._cards()
        wires = [*self._skips(own), *self._stems(own, boxes)]
        bottom = max((box.y + box.height for box in boxes), default=CARD_HEIGHT / 2)
        title = Label(CLOSED / 2, TITLE_HEIGHT, "title", str(self.layer), "middle")
        return Form(CLOSED, bottom, tuple(boxes), tuple(wires), (), (title,))

    def _cards(self) -> list[NodeBox]:
        boxes: list[NodeBox] = []
        for kind, name in SUMMARIES.items():
            for i in self.inside:
                node = self.graph.nodes[i]
                if node.kind == kind:
                    x, y = (CLOSED - CARD_WIDTH) / 2, FIRST_CARD + CARD_STEP * len(boxes)
                    boxes.append(summary(i, node, self.graph, name, x, y))
        return boxes

    def _skips(self, own: Sequence[Arc]) -> list[Wire]:
        skips = [
            edge
            for kind in (EdgeKind.RESIDUAL_ATTN, EdgeKind.RESIDUAL_FF)
            for edge, _, _ in own
            if self.graph.edges[edge].kind == kind
        ]
        step = CLOSED / max(1, len(skips))
        return [Wire(e, f"M{n(step * i)} 0H{n(step * (i + 1))}") for i, e in enumerate(skips)]

    def _stems(self, own: Sequence[Arc], boxes: Sequence[NodeBox]) -> list[Wire]:
        """From each card straight up to the stream."""
        leaving = {source: edge for edge, source, _ in own}
        step = CLOSED / (len(boxes) + 1)
        return [
            Wire(leaving[box.node], f"M{n(step * (i + 1))} {n(box.y)}V0")
            for i, box in enumerate(boxes)
            if box.node in leaving
        ]
