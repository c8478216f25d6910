"""A graph told short: the few parts that carry most, and all else as one honest rest.

Parts are what writes into the stream: heads, neurons, biases. They are ranked by what they bring
to the target's logit, or, where a graph does not know that, by the length of what they add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lexray.errors import LexrayError
from lexray.flow.graph import STREAM, Edge, EdgeKind, FlowGraph, Node, NodeKind

FEWEST, MOST = 3, 5
ENOUGH = 0.8
"""So many parts are told: the fewest that carry this share of all that was written."""
LOOKS = 0.12
"""A head looks at a token if it gives it at least this much of its attention."""
WRITERS = (NodeKind.HEAD, NodeKind.MIXER, NodeKind.FF_VALUE, NodeKind.ATTN_BIAS, NodeKind.FF_BIAS)
SUMS = (NodeKind.CONCAT, NodeKind.FF_OUT, NodeKind.ATTN_OUT, NodeKind.CROSS_OUT)


@dataclass(frozen=True)
class Seen:
    """A token that a head looked at."""

    position: int
    token: str
    weight: float


@dataclass(frozen=True)
class StoryPart:
    """A head, a neuron, a bias, or several under one name."""

    name: str
    words: tuple[str, ...]
    weight: float
    """What it brings to the target's logit; without that, the length of what it adds."""
    sources: tuple[Seen, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Story:
    """What a picture of one column shows."""

    graph: FlowGraph
    parts: tuple[StoryPart, ...]
    """The largest first."""
    rest: float
    """What all other parts bring together."""
    n_rest: int
    """How many they are."""
    by_logit: bool
    """Whether weights are parts of the logit (else lengths)."""
    start: float | None
    """What the stream brought along before the first block that is drawn."""

    @cached_property
    def sources(self) -> tuple[Seen, ...]:
        """The tokens that any part looked at, in the prompt's order, with all their weight."""
        weight: dict[int, float] = {}
        for part in self.parts:
            for source in part.sources:
                weight[source.position] = weight.get(source.position, 0.0) + source.weight
        tokens = self.graph.run.tokens
        return tuple(Seen(at, tokens[at], weight[at]) for at in sorted(weight))

    @property
    def rest_name(self) -> str:
        layers = self.graph.layers
        where = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}–{layers[-1]}"
        return f"{self.n_rest:,} others in {where}"


def tell(graph: FlowGraph, n: int | None = None) -> Story:
    """The story of a graph: its pinned parts, or the `n` (by default three to five) that carry
    most."""
    by_logit = any(edge.added is not None for edge in graph.edges)
    writers = [node for node in graph.nodes if node.kind in WRITERS and node.projection]
    parts = [part for node in writers if (part := _part(graph, node, by_logit)) is not None]
    parts.sort(key=lambda part: -abs(part.weight))
    chosen = _pin(graph, parts) or parts[: _how_many(parts) if n is None else n]
    whole = _whole(graph, by_logit)
    every = sum(part.weight for part in parts) if whole is None else whole
    rest = every - sum(part.weight for part in chosen)
    shown = {id for part in chosen for id in part.nodes}
    left_out = len([part for part in parts if not shown & set(part.nodes)])
    hidden = sum(node.count or 0 for node in graph.nodes if _is_rest(graph, node))
    return Story(graph, tuple(chosen), rest, left_out + hidden, by_logit, _start(graph))


def _how_many(parts: Sequence[StoryPart]) -> int:
    total, so_far = sum(abs(part.weight) for part in parts), 0.0
    for i, part in enumerate(parts[:MOST], 1):
        so_far += abs(part.weight)
        if i >= FEWEST and so_far >= ENOUGH * total:
            return i
    return MOST


def _part(graph: FlowGraph, node: Node, by_logit: bool) -> StoryPart | None:
    weight = graph.contribution(node) if by_logit else _length(graph, node)
    if weight is None or node.projection is None:
        return None
    words = tuple(word.shown for word in node.projection.top)
    return StoryPart(describe(node), words, weight, _sources(graph, node), (node.id,))


def describe(node: Node) -> str:
    """A part as people call it.

    >>> describe(Node("L23.H4", NodeKind.HEAD, 23, "4", head=4))
    'layer 23, head 4'
    """
    match node.kind:
        case NodeKind.HEAD:
            return f"layer {node.layer}, {'cross-' * node.crosses}head {node.head}"
        case NodeKind.MIXER:
            return f"layer {node.layer}, mixer"
        case NodeKind.FF_VALUE:
            return f"layer {node.layer}, neuron {node.label}"
        case NodeKind.ATTN_BIAS:
            return f"layer {node.layer}, {'cross-' * node.crosses}attention bias"
        case NodeKind.FF_BIAS:
            return f"layer {node.layer}, feed-forward bias"
        case _:
            return node.address or node.id


def _length(graph: FlowGraph, node: Node) -> float | None:
    values = [edge.value for edge in graph.out_of(node.id) if edge.value is not None]
    return max(values, default=None)


def _sources(graph: FlowGraph, node: Node) -> tuple[Seen, ...]:
    if node.kind != NodeKind.HEAD:
        return ()
    sources = []
    for edge in graph.into(node.id):
        at = graph[edge.source].position
        if edge.kind == EdgeKind.ATTENTION and at is not None and edge.score >= LOOKS:
            sources.append(Seen(at, graph.run.tokens[at], edge.score))
    return tuple(sources)


def _whole(graph: FlowGraph, by_logit: bool) -> float | None:
    """What all parts bring together: the stream at the end, without what it was at the start."""
    start = _start(graph)
    if not by_logit or start is None:
        return None
    last = max((node.layer for node in graph.nodes if node.kind == NodeKind.RESIDUAL), default=0)
    end = sum(_share(graph, edge) for edge in graph.edges if _ends_at(graph, edge, last))
    return end - start


def _ends_at(graph: FlowGraph, edge: Edge, layer: int) -> bool:
    """Whether an edge adds to the last station, or to the sum that a norm makes into it."""
    target = graph[edge.target]
    before = target.kind == NodeKind.SUM and target.layer == layer - 1 and "ff" in target.id
    return edge.added is not None and (
        before or (target.kind == NodeKind.RESIDUAL and target.layer == layer)
    )


def _start(graph: FlowGraph) -> float | None:
    """What the first station brings to the target's logit by going on."""
    first = min((n for n in graph.nodes if n.kind == NodeKind.RESIDUAL), key=_layer, default=None)
    skips = (EdgeKind.RESIDUAL_ATTN, EdgeKind.RESIDUAL_FF)
    if first is None:
        return None
    shares = [_share(graph, e) for e in graph.edges if e.source == first.id and e.kind in skips]
    return sum(shares) if shares else None


def _share(graph: FlowGraph, edge: Edge) -> float:
    return edge.brings(graph.target_index) or 0.0


def _layer(node: Node) -> int:
    return node.layer


def _is_rest(graph: FlowGraph, node: Node) -> bool:
    """Whether a node stands for heads or neurons that are not drawn."""
    if node.kind != NodeKind.OTHERS:
        return False
    into = {graph[edge.target].kind for edge in graph.out_of(node.id)}
    rows = node.id.endswith("W_O.others")
    return bool(into & set(SUMS)) and not rows


def _pin(graph: FlowGraph, parts: Sequence[StoryPart]) -> list[StoryPart]:
    """The pinned parts, those of one name together."""
    by_node = {part.nodes[0]: part for part in parts}
    shown = []
    for pin in graph.pins:
        own = [by_node[id] for id in pin.nodes if id in by_node]
        if not own:
            raise LexrayError(
                f"of the pinned {', '.join(pin.nodes)} none is a head, a neuron or a bias that "
                "writes into the stream; pin those"
            )
        shown.append(own[0] if len(own) == 1 and not pin.name else _join(pin.name, own))
    return shown


def _join(name: str, parts: Sequence[StoryPart]) -> StoryPart:
    heaviest = sorted(parts, key=lambda part: -abs(part.weight))
    words = dict.fromkeys(part.words[0] for part in heaviest if part.words)
    sources: dict[int, Seen] = {}
    for part in parts:
        for source in part.sources:
            old = sources.get(source.position)
            if old is None or source.weight > old.weight:
                sources[source.position] = source
    nodes = tuple(id for part in parts for id in part.nodes)
    label = name or f"{len(parts)} parts"
    weight = sum(part.weight for part in parts)
    return StoryPart(label, tuple(words), weight, tuple(sources.values()), nodes)


def first_and_last(graph: FlowGraph) -> tuple[Node, Node] | None:
    """The stream's first and last station that were read."""
    seen = [n for n in graph.nodes if n.kind in STREAM and n.projection is not None]
    stations = [n for n in seen if n.kind == NodeKind.RESIDUAL] or seen
    if not stations:
        return None
    return min(stations, key=_layer), max(stations, key=_layer)
