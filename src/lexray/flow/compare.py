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
from typing import Unpack

from lexray.choice import Some
from lexray.errors import LexrayError
from lexray.flow.build.build import BlockDrawing, choose_layers, find_pulls, make_graph
from lexray.flow.build.prune import Shown, ShownHeads, choose
from lexray.flow.build.words import ChosenWords, find_words
from lexray.flow.flow import Flow
from lexray.flow.graph import Edge, EdgeKind, FlowGraph, Node, NodeKind
from lexray.flow.options import BlockOptions, FlowOptions
from lexray.trace.attribute.heads import HeadsStep
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step
from lexray.trace.read.targets import Wanted
from lexray.trace.recording import Recording

MEMORY = (NodeKind.KEY, NodeKind.VALUE)


def compare(
    trace: Recording,
    other: Recording,
    *,
    layers: Some = None,
    position: int = -1,
    other_position: int | None = None,
    target: Wanted | None = None,
    candidates: Sequence[Wanted] = (),
    **options: Unpack[FlowOptions],
) -> Flow:
    """The difference graph of two runs: nodes carry both readings, edges both scores.

    `position` is drawn of both runs unless `other_position` says otherwise; the rest is as in
    `lexray.trace.trace.Trace.flow`. The target is by default what the first run predicts.

    >>> compare(model.trace("The capital of Japan is"), model.trace("The capital of France is"))
    """
    refuse_strangers(trace, other)
    how = BlockOptions.check(**options)
    moments = (
        Moment.of(trace, position),
        Moment.of(other, position if other_position is None else other_position),
    )
    words = _words(moments, target, candidates)
    drawings = _draw_both(moments, layers, words.target.id, how)
    one, two = (
        make_graph(moment, words, drawing.draft.finish(), how)
        for moment, drawing in zip(moments, drawings, strict=True)
    )
    return Flow.of(subtract(one, two))


def _draw_both(
    moments: tuple[Moment, Moment], layers: Some, target: int, options: BlockOptions
) -> list[BlockDrawing]:
    """Both runs, block by block: of each what either shows."""
    asked = [_layers(moment.recording, layers) for moment in moments]
    drawings = [BlockDrawing(*pair, options) for pair in zip(moments, asked, strict=True)]
    pull = [find_pulls(*pair, target, options) for pair in zip(moments, asked, strict=True)]
    shift = moments[1].position - moments[0].position
    for layer in sorted({*asked[0], *asked[1]}):
        steps = [
            Step.of(m, layer) if layer in a else None for m, a in zip(moments, asked, strict=True)
        ]
        one, two = (
            None if step is None else choose(step, options, pull[i].get(layer))
            for i, step in enumerate(steps)
        )
        both = join(one, two, -shift), join(two, one, shift)
        for drawing, step, shown in zip(drawings, steps, both, strict=True):
            if step is not None and shown is not None:
                drawing.draw(step, restrict(step, shown))
    return drawings


def refuse_strangers(trace: Recording, other: Recording) -> None:
    """Raises unless both runs speak of the same tokens."""
    a, b = trace.model, other.model
    same = a.vocabulary is b.vocabulary or a.vocabulary.fingerprint == b.vocabulary.fingerprint
    if not same or a.space.n_rows != b.space.n_rows:
        raise LexrayError(
            f"{a.name} and {b.name} have different vocabularies ({a.space.n_rows} and "
            f"{b.space.n_rows} tokens), so their readings cannot be compared; compare models that "
            "share a tokenizer, or two prompts of one model"
        )


def _layers(trace: Recording, layers: Some) -> tuple[int, ...]:
    """The layers that are asked for, as far as this model has them."""
    if layers is None or isinstance(layers, (int, slice)):
        return choose_layers(trace, layers)
    return choose_layers(trace, [layer for layer in layers if layer < trace.model.n_layers])


def _words(
    moments: tuple[Moment, Moment], target: Wanted | None, candidates: Sequence[Wanted]
) -> ChosenWords:
    """The words of interest of both runs; the target is the first run's."""
    one, two = moments
    mine = find_words(one.recording, one.position, target, candidates)
    theirs = find_words(two.recording, two.position, mine.target.id, ())
    return ChosenWords(mine.target, tuple(dict.fromkeys((*mine.candidates, *theirs.candidates))))


def join(own: Shown | None, more: Shown | None, shift: int) -> Shown | None:
    """What is shown of a block of one run, and what of the other's, whose positions are so far off;
    None where the run has no such block."""
    if own is None or more is None:
        return own
    cross = None
    if own.cross is not None and more.cross is not None:  # sources are aligned at their beginnings
        cross = _join_heads(own.cross, more.cross, 0)
    neurons = tuple(dict.fromkeys((*own.neurons, *more.neurons)))
    joined = _join_heads(own, more, shift)
    return Shown(joined.memories, joined.rows, neurons, cross)


def _join_heads(own: ShownHeads, more: ShownHeads, shift: int) -> ShownHeads:
    memories = {
        head: tuple(
            dict.fromkeys(
                (
                    *own.memories.get(head, ()),
                    *(position + shift for position in more.memories.get(head, ())),
                )
            )
        )
        for head in sorted({*own.memories, *more.memories})
    }
    return ShownHeads(memories, tuple(dict.fromkeys((*own.rows, *more.rows))))


def restrict(step: Step, shown: Shown) -> Shown:
    """What a run has of what is shown."""
    cross = None if shown.cross is None else _restrict_heads(step.cross, shown.cross)
    own = _restrict_heads(step, shown)
    neurons = tuple(name for name in shown.neurons if step.index_of(name) is not None)
    return Shown(own.memories, own.rows, neurons, cross)


def _restrict_heads(step: HeadsStep, shown: ShownHeads) -> ShownHeads:
    n_heads, n = step.pattern.shape
    memories = {
        head: tuple(i for i in positions if 0 <= i < n and step.pattern[head, i] > 0)
        for head, positions in shown.memories.items()
        if head < n_heads
    }
    return ShownHeads(memories, tuple(row for row in shown.rows if row < step.z.numel()))


def subtract(one: FlowGraph, two: FlowGraph) -> FlowGraph:
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
        edges=tuple(_edges(one.edges, [_rename(edge, names) for edge in two.edges])),
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
    aligned = 0 if node.crosses else graph.run.position  # a source at its beginning
    return node.kind, node.layer, node.head, node.crosses, node.position - aligned


def _both(node: Node, other: Node | None) -> Node:
    if other is None:
        return node
    label = node.label if node.label == other.label else f"{node.label} / {other.label}"
    return replace(node, label=label, other=other.projection, other_norm=other.norm)


def _other_only(node: Node, id: str) -> Node:
    return replace(
        node, id=id, projection=None, norm=None, other=node.projection, other_norm=node.norm
    )


def _rename(edge: Edge, names: Mapping[str, str]) -> Edge:
    return replace(edge, source=names[edge.source], target=names[edge.target])


def _edges(mine: Sequence[Edge], theirs: Sequence[Edge]) -> Iterable[Edge]:
    """The edges of both runs; shares of the logit only where both runs know theirs, so that the
    differences of a sum's addends add up to the difference of the sums."""
    others = {_ends(edge): edge for edge in theirs}
    weighed = all(any(edge.added is not None for edge in run) for run in (mine, theirs))
    for edge in mine:
        other = others.pop(_ends(edge), None)
        score = 0.0 if other is None else other.sign * other.score
        added = edge.added if weighed else None
        yield replace(edge, other_score=score, added=added, other_added=_against(added, other))
    for edge in others.values():
        yield replace(
            edge,
            score=0.0,
            value=None,
            entropy=None,
            other_score=edge.sign * edge.score,
            added=None if edge.added is None or not weighed else (0.0,) * len(edge.added),
            other_added=edge.added if weighed else None,
        )


def _against(added: tuple[float, ...] | None, other: Edge | None) -> tuple[float, ...] | None:
    """What the other run's edge brings, nothing where there is none."""
    if added is None:
        return None
    return (0.0,) * len(added) if other is None or other.added is None else other.added


def _ends(edge: Edge) -> tuple[str, str, EdgeKind]:
    return edge.source, edge.target, edge.kind
