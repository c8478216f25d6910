"""A graph in a sentence, from its numbers: who looks where, what they write, how the target fares.

"Heads 4, 5 and 1 of layer 23 look at ·Japan and write ·Japanese, ·Tokyo; ·Tokyo climbs from rank
15,307 to 1,164."
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lexray.flow.graph import STREAM, EdgeKind, FlowGraph, Node, NodeKind
from lexray.result.format import show_place
from lexray.result.theme import standing

HEADS = 3
"""At most so many heads are named."""
SHARE = 0.2
"""A head that speaks for the target adds at least this share of what the best one does."""
SPEAKS = 0.5
"""How high (see `standing`) the target stands in the reading of a head that speaks for it."""


def caption(graph: FlowGraph) -> str:
    """One sentence, or nothing where nothing was read."""
    told = heads_clause(graph), stream_clause(graph), other_clause(graph)
    clauses = [clause for clause in told if clause]
    return "; ".join(clauses) + "." if clauses else ""


def stream_clause(graph: FlowGraph) -> str:
    """How the target's rank changes from the first to the last station of the stream."""
    seen = [n for n in graph.nodes if n.kind in STREAM and n.projection is not None]
    if not seen:
        return ""
    first, last = (_rank(graph, n) for n in (min(seen, key=_along), max(seen, key=_along)))
    word = graph.target.shown
    if first == last:
        return f"{word} stays at rank {last:,}"
    return f"{word} {'climbs' if last < first else 'falls'} from rank {first:,} to {last:,}"


def other_clause(graph: FlowGraph) -> str:
    """Where the target ends in the other run of a difference graph."""
    seen = [n for n in graph.nodes if n.kind in STREAM and n.other is not None]
    if graph.other is None or not seen:
        return ""
    place = graph.place(max(seen, key=_along), other=True)
    assert place is not None  # only nodes with another reading are asked
    return f"in the other run it ends at rank {place.rank:,}"


def heads_clause(graph: FlowGraph) -> str:
    """The heads of one layer that speak most for the target, where they look at the same token."""
    heads = speakers(graph)
    if not heads:
        return ""
    layer, looked = heads[0].layer, find_looked_at(graph, heads[0])
    crosses = heads[0].crosses
    near = [n for n in heads if n.layer == layer and n.crosses == crosses]
    alike = [n for n in near if find_looked_at(graph, n) == looked][:HEADS]
    words = common_words(alike)
    many = len(alike) > 1
    named = f"{'Cross-head' if crosses else 'Head'}{'s' * many}"
    named += f" {_list([str(n.head) for n in alike])} of layer {layer}"
    where = ""
    if looked is not None:
        where = f" look{'s' * (not many)} at {show_place(graph.run.tokens, looked)} and"
    return f"{named}{where} write{'s' * (not many)} {', '.join(words)}"


def speakers(graph: FlowGraph) -> list[Node]:
    """The heads that speak for the target, the best first: by what they add to its logit, or where
    a graph does not know that, by where it stands in their readings."""
    heads = [n for n in graph.nodes if n.kind == NodeKind.HEAD and n.projection is not None]
    added = {n.id: graph.contribution(n) or 0.0 for n in heads}
    most = max(added.values(), default=0.0)
    if most > 0:
        speak = [n for n in heads if added[n.id] >= SHARE * most]
        return sorted(speak, key=lambda n: -added[n.id])
    speak = [n for n in heads if standing(_rank(graph, n), graph.d_vocab) >= SPEAKS]
    return sorted(speak, key=lambda n: _rank(graph, n))


def common_words(heads: Sequence[Node]) -> list[str]:
    """What heads write: the words that most of them list, and of these the ones that stand highest;
    as many as there are heads, and at least two."""
    score: dict[str, tuple[int, float]] = {}
    for node in heads:
        for i, word in enumerate(node.projection.top if node.projection else ()):
            lists, height = score.get(word.shown, (0, 0.0))
            score[word.shown] = lists + 1, height + 1 / (i + 1)
    best = sorted(score, key=lambda word: score[word], reverse=True)
    return drop_repeats(best)[: max(2, len(heads))]


def drop_repeats(words: Iterable[str]) -> list[str]:
    """Each word once, where it first stands.

    >>> drop_repeats(["·Japanese", "·Japan", "Japanese", "·Tokyo", "japan"])
    ['·Japanese', '·Japan', '·Tokyo']
    """
    once: dict[str, str] = {}
    for word in words:
        once.setdefault(fold(word), word)
    return list(once.values())


def fold(word: str) -> str:
    """A word without its leading space and capitals: ·Japan, Japan and japan are one."""
    return word.lstrip("·").lower() or word


def find_looked_at(graph: FlowGraph, head: Node) -> int | None:
    """The position from which most of what a head wrote came, among those that are drawn."""
    edges = [e for e in graph.into(head.id) if e.kind == EdgeKind.ATTENTION]
    if not edges:
        return None
    most = max(edges, key=lambda e: e.score if e.value is None else e.value)
    return graph[most.source].position


def _rank(graph: FlowGraph, node: Node) -> int:
    place = graph.place(node)
    assert place is not None  # only nodes with a reading are asked
    return place.rank


def _along(node: Node) -> tuple[int, int]:
    """Where a node stands along the stream."""
    order = (NodeKind.EMBED, NodeKind.RESIDUAL, NodeKind.SUM, NodeKind.MID)
    return node.layer, order.index(node.kind)


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
