"""A block drawn open: attention and feed-forward in columns below the residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from lexray.flow.draw import arrange
from lexray.flow.draw.shapes import (
    CARD_HEIGHT,
    CARD_WIDTH,
    PILL_HEIGHT,
    Backdrop,
    Form,
    Label,
    NodeBox,
    card,
    pill,
    pill_width,
)
from lexray.flow.draw.wires import Ends, draw_wires
from lexray.flow.graph import STREAM, FlowGraph, Node, NodeKind

BODY = 112.0
"""Where the first node below the stream may begin."""
LEAD = 32.0
"""Between a station and the first column, and between the last column and the next station."""
ROW = 5.0
GROUP = 9.0
"""Between pills, and in addition between heads and before what is left over."""
PANEL = 16.0
"""From the outermost nodes to the edge of their panel."""
NARROW, USUAL, WIDE, TOUCHING = 30.0, 36.0, 64.0, 4.0
"""Between columns: one edge per node, a few edges, a fan, a gate beside its key."""
TITLE_HEIGHT = -46.0

CARDS = frozenset(STREAM) | {
    NodeKind.NORM,
    NodeKind.QKV,
    NodeKind.CONCAT,
    NodeKind.ATTN_OUT,
    NodeKind.CROSS_OUT,
    NodeKind.MIXER,
    NodeKind.FF_OUT,
}
FEED_FORWARD = frozenset(kind for kind in NodeKind if kind.startswith("ff_"))
LEFT_OVER = (NodeKind.OTHERS, NodeKind.ATTN_BIAS, NodeKind.FF_BIAS)
LATE = (*LEFT_OVER, NodeKind.ATTN_OUT, NodeKind.CROSS_OUT, NodeKind.FF_OUT)
HEADINGS = {
    NodeKind.QUERY: "queries",
    NodeKind.KEY: "keys",
    NodeKind.VALUE: "values",
    NodeKind.HEAD: "heads",
    NodeKind.O_NEURON: "W_O neurons",
    NodeKind.FF_GATE: "gates",
    NodeKind.FF_KEY: "keys",
    NodeKind.FF_VALUE: "values",
}
PARTS = {"attention": "attention", "cross": "cross-attention", "ff": "feed-forward"}


def open_form(
    graph: FlowGraph,
    layer: int,
    inside: Sequence[int],
    pairs: Sequence[tuple[int, int, int]],
    left: Sequence[NodeBox],
    right_of: Mapping[int, NodeBox],
) -> Form:
    """A block's nodes in columns; `left` and `right_of` are the stations it hangs between.

    `pairs` are its edges as (edge, source, target); `right_of` is placed as if the block had no
    width, and moves to the block's end here.
    """
    block = _Block(graph, tuple(inside), tuple((s, t) for _, s, t in pairs))
    boxes = block.boxes()
    width = max((box.right for box in boxes), default=0.0) + LEAD
    around = {box.node: box for box in left}
    around |= {node: box.shift(width) for node, box in right_of.items()}
    known = around | {box.node: box for box in boxes}
    edges = [Ends(edge, known[source], known[target]) for edge, source, target in pairs]
    panels = block.panels(boxes)
    title = Label(width / 2, TITLE_HEIGHT, "title", f"layer {layer}", "middle")
    bottom = max((panel.y + panel.height for panel in panels), default=CARD_HEIGHT)
    labels = (title, *block.headings(boxes), *_part_labels(panels))
    return Form(width, bottom, tuple(boxes), draw_wires(graph, edges), tuple(panels), labels)


def _part_labels(panels: Sequence[Backdrop]) -> list[Label]:
    return [Label(p.x + 14, p.y + 24, "part", PARTS[p.part]) for p in panels]


@dataclass(frozen=True)
class _Block:
    graph: FlowGraph
    inside: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]

    def node(self, index: int) -> Node:
        return self.graph.nodes[index]

    @cached_property
    def around(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        return arrange.neighbours(self.inside, self.pairs)

    @cached_property
    def column(self) -> dict[int, int]:
        before, after = arrange.neighbours(self.inside, (*self.pairs, *self._gate_before_key()))
        return arrange.columns(before, after, lambda i: self.node(i).kind in LATE)

    def _gate_before_key(self) -> list[tuple[int, int]]:
        """A neuron's gate stands left of its key, on the same level."""
        before, _ = self.around
        pairs = []
        for value in self.inside:
            gates = [i for i in before[value] if self.node(i).kind == NodeKind.FF_GATE]
            keys = [i for i in before[value] if self.node(i).kind == NodeKind.FF_KEY]
            pairs += [(gate, key) for gate in gates for key in keys]
        return pairs

    @cached_property
    def part(self) -> dict[int, str]:
        """Whether a node below the stream belongs to attention, to a decoder's attention to its
        source, or to the feed-forward."""
        before, after = self.around
        out = {}
        for i in self.inside:
            kind = self.node(i).kind
            if kind in STREAM:
                continue
            near = {self.node(j).kind for j in (*before[i], *after[i])} - set(STREAM)
            near.discard(NodeKind.NORM)
            fed = kind in FEED_FORWARD or (bool(near) and near <= FEED_FORWARD)
            own = "cross" if self.node(i).crosses else "attention"
            out[i] = "ff" if fed else own
        return out

    @cached_property
    def stacks(self) -> dict[str, list[list[int]]]:
        """For each part its columns, each from top to bottom."""
        before, after = self.around
        out = {}
        for part in PARTS:
            members = [i for i in self.inside if self.part.get(i) == part]
            used = sorted({self.column[i] for i in members})
            stacks = [[i for i in members if self.column[i] == c] for c in used]
            near = _only(before, members), _only(after, members)
            if stacks:
                out[part] = arrange.order(stacks, *near, self._left_over(members))
        return out

    def _left_over(self, members: Sequence[int]) -> dict[int, list[int]]:
        """What is left of a sum, and its bias, stand below what else flows into it."""
        before, after = self.around
        out = {}
        for i in members:
            if self.node(i).kind in LEFT_OVER:
                beside = [j for total in after[i] for j in before[total]]
                out[i] = [j for j in beside if self.node(j).kind not in LEFT_OVER]
        return out

    @cached_property
    def height(self) -> dict[int, float]:
        """The middle of each node: 0 in the stream, below it attention and feed-forward.

        Side by side they share an axis; in parallel blocks, where both stand in the same columns,
        the feed-forward hangs below attention.
        """
        before, after = self.around
        levels: dict[str, dict[int, float]] = {}
        for part, stacks in self.stacks.items():
            members = [i for stack in stacks for i in stack]
            near = _only(before, members), _only(after, members)
            levels[part] = arrange.heights(stacks, *near, self._pitch)
        out = {i: 0.0 for i in self.inside if self.node(i).kind in STREAM}
        reach = {part: self._reach(level) for part, level in levels.items()}
        if self._is_stacked():
            top = BODY
            for part, level in levels.items():
                above, below = reach[part]
                out |= {i: y + top + above for i, y in level.items()}
                top += above + below + BODY * 0.75
            return out
        axis = BODY + max((above for above, _ in reach.values()), default=0.0)
        return out | {i: y + axis for level in levels.values() for i, y in level.items()}

    def _is_stacked(self) -> bool:
        used = [{self.column[i] for s in stacks for i in s} for stacks in self.stacks.values()]
        return len(used) == 2 and bool(used[0] & used[1])

    def _reach(self, level: Mapping[int, float]) -> tuple[float, float]:
        """How far a part reaches above and below its axis."""
        above = max(self._size(i)[1] / 2 - y for i, y in level.items())
        return above, max(self._size(i)[1] / 2 + y for i, y in level.items())

    def _size(self, index: int) -> tuple[float, float]:
        if self.node(index).kind in CARDS:
            return CARD_WIDTH, CARD_HEIGHT
        return pill_width(self.graph), PILL_HEIGHT

    def _pitch(self, a: int, b: int) -> float:
        one, two = self.node(a), self.node(b)
        memories = (NodeKind.KEY, NodeKind.VALUE, NodeKind.OTHERS)
        apart = one.head != two.head and one.kind in memories
        left_over = two.kind in LEFT_OVER and one.kind not in LEFT_OVER and two.head is None
        return (self._size(a)[1] + self._size(b)[1]) / 2 + ROW + GROUP * (apart or left_over)

    @cached_property
    def left_edges(self) -> list[float]:
        """Where each column begins."""
        members: list[list[int]] = [[] for _ in range(max(self.column.values(), default=-1) + 1)]
        for i, c in self.column.items():
            members[c].append(i)
        x, out = LEAD, []
        for c, here in enumerate(members):
            out.append(x)
            following = members[c + 1] if c + 1 < len(members) else []
            x += max(self._size(i)[0] for i in here) + self._gap(here, following)
        return out

    def _gap(self, here: Sequence[int], following: Sequence[int]) -> float:
        kinds = {self.node(i).kind for i in here}, {self.node(i).kind for i in following}
        if NodeKind.FF_GATE in kinds[0] and NodeKind.FF_KEY in kinds[1]:
            return TOUCHING
        few, many = sorted((len(here), len(following)))
        if many >= 6 and few <= 2:
            return WIDE
        return NARROW if few == many > 2 else USUAL

    def boxes(self) -> list[NodeBox]:
        widest: dict[int, float] = {}
        for i, c in self.column.items():
            widest[c] = max(widest.get(c, 0.0), self._size(i)[0])
        out = []
        for i in self.inside:
            c = self.column[i]
            x = self.left_edges[c] + (widest[c] - self._size(i)[0]) / 2
            node, y = self.node(i), self.height[i]
            out.append(
                card(i, node, self.graph, x, y)
                if node.kind in CARDS
                else pill(i, node, self.graph, x, y)
            )
        return out

    def panels(self, boxes: Sequence[NodeBox]) -> list[Backdrop]:
        out = []
        for part in self.stacks:
            own = [box for box in boxes if self.part.get(box.node) == part]
            x, right = min(box.x for box in own), max(box.right for box in own)
            y, bottom = min(box.y for box in own), max(box.y + box.height for box in own)
            y -= 62
            out.append(Backdrop(x - PANEL, y, right - x + 2 * PANEL, bottom - y + PANEL, part))
        return self._level(out)

    def _level(self, panels: list[Backdrop]) -> list[Backdrop]:
        """Side by side, panels begin and end alike."""
        if self._is_stacked() or not panels:
            return panels
        y, bottom = min(p.y for p in panels), max(p.y + p.height for p in panels)
        return [Backdrop(p.x, y, p.width, bottom - y, p.part) for p in panels]

    def headings(self, boxes: Sequence[NodeBox]) -> list[Label]:
        """What stands in a column of pills, above its first."""
        first: dict[tuple[int, str, NodeKind], NodeBox] = {}
        for box in sorted(boxes, key=lambda box: box.y):
            kind = self.node(box.node).kind
            if kind in HEADINGS:
                first.setdefault((self.column[box.node], self.part[box.node], kind), box)
        return [
            Label(box.x + 2, box.y - 9, "heading", HEADINGS[kind])
            for (_, _, kind), box in first.items()
        ]


def _only(near: Mapping[int, Sequence[int]], members: Sequence[int]) -> dict[int, list[int]]:
    among = set(members)
    return {i: [j for j in near[i] if j in among] for i in members}
