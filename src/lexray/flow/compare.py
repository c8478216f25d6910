"""Two runs as one graph: two prompts, or two models on one prompt.

Nodes are the same if they have the same role: the same id, and for keys and values the same head
and the same distance from the position that is drawn (the prompts are aligned at that position, so
that by default they are aligned at their ends, however long they are). Whatever either run would
show by itself is shown of both, so that a node is missing only where a run has no such vector: no
such position, head or layer, an expert that was not chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lexray.errors import LexrayError
from lexray.flow.build.build import absolute, choose_all, graph_of, kept_layers
from lexray.flow.build.prune import Chosen
from lexray.flow.build.step import Step, live
from lexray.flow.build.words import Words, find_words
from lexray.flow.graph import Edge, EdgeKind, FlowGraph, Node, NodeKind
from lexray.flow.options import Options
from lexray.result.readings import Token
from lexray.trace.record.plan import Some
from lexray.trace.trace import Trace

MEMORY = (NodeKind.KEY, NodeKind.VALUE)


def compare(
    trace: Trace,
    other: Trace,
    *,
    layers: Some = None,
    position: int = -1,
    other_position: int | None = None,
    target: str | int | Token | None = None,
    candidates: Sequence[str | int | Token] = (),
    **options: Any,
) -> FlowGraph:
    """The difference graph of two runs: nodes carry both readings, edges both scores.

    `position` is drawn of both runs unless `other_position` says otherwise; the rest is as in
    `lexray.flow.build.build.flow`. The target is by default what the first run predicts.

    >>> compare(model.trace("The capital of Japan is"), model.trace("The capital of France is"))
    """
    refuse_strangers(trace, other)
    how = Options.checked(**options)
    runs = (trace, other)
    at = (
        absolute(trace, position),
        absolute(other, position if other_position is None else other_position),
    )
    words = _words(runs, at, target, candidates)
    chosen = [
        choose_all(run, _layers(run, layers), place, words.target.id, how)
        for run, place in zip(runs, at, strict=True)
    ]
    shift = at[1] - at[0]
    both = (joined(chosen[0], chosen[1], -shift), joined(chosen[1], chosen[0], shift))
    one, two = (
        graph_of(run, place, words, restricted(run, place, shown), how)
        for run, place, shown in zip(runs, at, both, strict=True)
    )
    return difference(one, two)


def refuse_strangers(trace: Trace, other: Trace) -> None:
    """Raises unless both runs speak of the same tokens."""
    a, b = trace.model, other.model
    same = a.vocabulary is b.vocabulary or a.vocabulary.fingerprint == b.vocabulary.fingerprint
    if not same or a.space.n_rows != b.space.n_rows:
        raise LexrayError(
            f"{a.name} and {b.name} have different vocabularies ({a.space.n_rows} and "
            f"{b.space.n_rows} tokens), so their readings cannot be compared; compare models that "
            "share a tokenizer, or two prompts of one model"
        )


def _layers(trace: Trace, layers: Some) -> tuple[int, ...]:
    """The layers that are asked for, as far as this model has them."""
    if layers is None or isinstance(layers, (int, slice)):
        return kept_layers(trace, layers)
    return kept_layers(trace, [layer for layer in layers if layer < trace.model.n_layers])


def _words(
    runs: tuple[Trace, Trace],
    at: tuple[int, int],
    target: str | int | Token | None,
    candidates: Sequence[str | int | Token],
) -> Words:
    """The words of interest of both runs; the target is the first run's."""
    one = find_words(runs[0], at[0], target, candidates)
    two = find_words(runs[1], at[1], one.target.id, ())
    return Words(one.target, tuple(dict.fromkeys((*one.candidates, *two.candidates))))


def joined(
    mine: Mapping[int, Chosen], theirs: Mapping[int, Chosen], shift: int
) -> dict[int, Chosen]:
    """What is shown of one run, and what of the other, whose positions are so far off."""
    found = {}
    for layer, own in mine.items():
        if layer not in theirs:
            found[layer] = own
            continue
        more = theirs[layer]
        heads = sorted({*own.memories, *more.memories})
        memories = {
            head: tuple(
                dict.fromkeys(
                    (
                        *own.memories.get(head, ()),
                        *(position + shift for position in more.memories.get(head, ())),
                    )
                )
            )
            for head in heads
        }
        rows = tuple(dict.fromkeys((*own.rows, *more.rows)))
        found[layer] = Chosen(memories, rows, tuple(dict.fromkeys((*own.neurons, *more.neurons))))
    return found


def restricted(trace: Trace, position: int, shown: Mapping[int, Chosen]) -> dict[int, Chosen]:
    """What a run has of what is shown."""
    weights, found = live(trace.model), {}
    for layer, chosen in shown.items():
        step = Step(trace, weights.layers[layer], position)
        n_heads, n = step.pattern.shape
        memories = {
            head: tuple(i for i in positions if 0 <= i < n and step.pattern[head, i] > 0)
            for head, positions in chosen.memories.items()
            if head < n_heads
        }
        rows = tuple(row for row in chosen.rows if row < step.z.numel())
        neurons = tuple(at for at in chosen.neurons if step.place_of(at) is not None)
        found[layer] = Chosen(memories, rows, neurons)
    return found


def difference(one: FlowGraph, two: FlowGraph) -> FlowGraph:
    """Two graphs with the same target and candidates as one, the first one's view of it."""
    if one.candidates != two.candidates or one.target != two.target:
        raise LexrayError(
            "the two flow graphs have different targets or candidates; build both "
            "with the same, or use lexray.flow.compare.compare"
        )
    names = _names(one, two)
    theirs = {names[node.id]: node for node in two.nodes}
    mine = {node.id for node in one.nodes}
    nodes = [_both(node, theirs.get(node.id)) for node in one.nodes]
    nodes += [_other_only(node, id) for id, node in theirs.items() if id not in mine]
    return replace(
        one,
        nodes=tuple(nodes),
        edges=tuple(_edges(one.edges, [_renamed(edge, names) for edge in two.edges])),
        layers=tuple(sorted({*one.layers, *two.layers})),
        other=two.run,
    )


def _names(one: FlowGraph, two: FlowGraph) -> dict[str, str]:
    """What the second graph's nodes are called in the joint one."""
    roles = {_role(node, one): node.id for node in one.nodes}
    taken, names = {node.id for node in one.nodes}, {}
    for node in two.nodes:
        name = roles.get(_role(node, two))
        if name is None:
            name = node.id
            while name in taken:
                name += "′"
            taken.add(name)
        names[node.id] = name
    return names


def _role(node: Node, graph: FlowGraph) -> tuple[object, ...]:
    if node.kind not in MEMORY or node.position is None:
        return (node.id,)
    return node.kind, node.layer, node.head, node.position - graph.run.position


def _both(node: Node, other: Node | None) -> Node:
    if other is None:
        return node
    label = node.label if node.label == other.label else f"{node.label} / {other.label}"
    return replace(node, label=label, other=other.projection, other_norm=other.norm)


def _other_only(node: Node, id: str) -> Node:
    return replace(
        node, id=id, projection=None, norm=None, other=node.projection, other_norm=node.norm
    )


def _renamed(edge: Edge, names: Mapping[str, str]) -> Edge:
    return replace(edge, source=names[edge.source], target=names[edge.target])


def _edges(mine: Sequence[Edge], theirs: Sequence[Edge]) -> Iterable[Edge]:
    others = {_ends(edge): edge for edge in theirs}
    for edge in mine:
        other = others.pop(_ends(edge), None)
        yield replace(edge, other_score=0.0 if other is None else other.sign * other.score)
    for edge in others.values():
        score = edge.sign * edge.score
        yield replace(edge, score=0.0, value=None, entropy=None, other_score=score)


def _ends(edge: Edge) -> tuple[str, str, EdgeKind]:
    return edge.source, edge.target, edge.kind
