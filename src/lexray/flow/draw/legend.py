"""What colours and lines mean, in words: a short line under pictures, a longer one in the page."""

from __future__ import annotations

from dataclasses import dataclass

from lexray.flow.graph import EdgeKind, FlowGraph, NodeKind


@dataclass(frozen=True)
class Entry:
    short: str
    long: str
    colours: tuple[str, ...]
    """Names of the palette's colours."""
    is_node: bool = False


NODES = Entry(
    "target at the top / nowhere / at the bottom",
    "A box is a vector, read as the words it stands for. Green: the target word is near the top of "
    "its list, so the vector speaks for the target. Red: it is near the bottom. Grey: neither.",
    ("good", "neutral", "bad"),
    is_node=True,
)
CHANGED = Entry(
    "target rose / stayed / fell",
    "A box is a vector in both runs. Green: the target word stands higher in this run than in the "
    "other. Red: it stands lower. Grey: no change.",
    ("good", "neutral", "bad"),
    is_node=True,
)
BIAS = Entry("bias", "A bias: added whatever the input is.", ("bias",), is_node=True)
CHANGED_EDGES = Entry(
    "grew / shrank",
    "An edge's colour says whether it carries more or less than in the other run; its width says "
    "how much changed.",
    ("positive", "negative"),
)
EDGES = {
    EdgeKind.SUM: Entry(
        "summed (dark: sure)",
        "Vectors that are added up: wide ones are long vectors, dark ones are sure of few words.",
        ("sum_low", "sum_high"),
    ),
    EdgeKind.ATTENTION: Entry(
        "attention, low to high",
        "How much a head looks at an earlier token: from the query to its keys, and from the "
        "values to the head.",
        ("attention_low", "attention_high"),
    ),
    EdgeKind.ACTIVATION: Entry(
        "activation + / −",
        "How strongly a neuron fires. A negative coefficient adds the opposite of the neuron's "
        "vector, and it is this opposite that its box shows.",
        ("positive", "negative"),
    ),
    EdgeKind.NORM: Entry("norm", "A layer norm: the same vector, rescaled.", ("norm",)),
    EdgeKind.QUERY: Entry("query", "What a head asks for.", ("query",)),
    EdgeKind.RESIDUAL_ATTN: Entry(
        "skip past attention",
        "The residual stream past attention: what was there stays there.",
        ("residual_attn",),
    ),
    EdgeKind.RESIDUAL_FF: Entry(
        "skip past feed-forward",
        "The residual stream past the feed-forward.",
        ("residual_ff",),
    ),
    EdgeKind.OTHERS: Entry(
        "all others",
        "Everything that is not drawn, added up, so that sums stay whole.",
        ("others",),
    ),
}


def entries(graph: FlowGraph) -> list[Entry]:
    """Only what occurs in this graph."""
    nodes = {node.kind for node in graph.nodes}
    edges = {edge.kind for edge in graph.edges}
    biased = bool(nodes & {NodeKind.ATTN_BIAS, NodeKind.FF_BIAS})
    listed = [CHANGED if graph.is_difference else NODES] + [BIAS] * biased
    if graph.is_difference:
        return [*listed, CHANGED_EDGES]
    return listed + [entry for kind, entry in EDGES.items() if kind in edges]
