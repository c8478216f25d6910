"""Every sentence that explains the picture: what colours, lines and boxes mean, and how to use it.

A short line stands under pictures, a longer one in the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lexray.flow.graph import EdgeKind, FlowGraph, NodeKind


@dataclass(frozen=True)
class LegendLine:
    short: str
    long: str
    colours: tuple[str, ...]
    """Names of the palette's colours."""
    is_node: bool = False


@dataclass(frozen=True)
class Meaning:
    """What a kind of node is called, and what it is."""

    name: str
    explained: str


MEANINGS = {
    NodeKind.EMBED: Meaning("embedding", "What enters the first block: the token's embedding."),
    NodeKind.RESIDUAL: Meaning(
        "residual stream", "The residual stream between blocks: the sum of everything so far."
    ),
    NodeKind.NORM: Meaning("after a norm", "The same vector after a layer norm."),
    NodeKind.QKV: Meaning("queries, keys, values", "This position's own values, sent through W_O."),
    NodeKind.QUERY: Meaning(
        "query", "What this head looks for, read as the tokens its keys respond to."
    ),
    NodeKind.KEY: Meaning("key", "What an earlier token offers this head to be found by."),
    NodeKind.VALUE: Meaning("value", "What this head would copy from an earlier token."),
    NodeKind.HEAD: Meaning(
        "head", "What this head writes: its values, weighed by attention, through W_O."
    ),
    NodeKind.CONCAT: Meaning(
        "heads together",
        "All heads together, through W_O: the attention output without its bias.",
    ),
    NodeKind.O_NEURON: Meaning("W_O neuron", "One row of W_O with the coefficient it had here."),
    NodeKind.ATTN_BIAS: Meaning("attention bias", "Added by attention whatever the input."),
    NodeKind.ATTN_OUT: Meaning("attention output", "What attention adds to the residual stream."),
    NodeKind.CROSS_OUT: Meaning(
        "cross-attention output", "What attention to the source adds to the residual stream."
    ),
    NodeKind.MIXER: Meaning(
        "mixer", "What a state space, linear attention or a convolution adds, as one part."
    ),
    NodeKind.SUM: Meaning("sum before its norm", "A residual sum before its norm."),
    NodeKind.MID: Meaning(
        "residual inside a block",
        "The residual stream inside a block: after attention has been added, after the "
        "feed-forward where one more part follows it, or of several streams the active one, on "
        "which the block works.",
    ),
    NodeKind.FF_KEY: Meaning(
        "feed-forward key", "One feed-forward neuron's key: the input that makes it fire."
    ),
    NodeKind.FF_GATE: Meaning(
        "feed-forward gate",
        "One feed-forward neuron's gate: it decides how far its key counts.",
    ),
    NodeKind.FF_VALUE: Meaning(
        "feed-forward value", "One feed-forward neuron's value: what it writes when it fires."
    ),
    NodeKind.FF_BIAS: Meaning("feed-forward bias", "Added by the feed-forward whatever the input."),
    NodeKind.FF_OUT: Meaning(
        "feed-forward output", "What the feed-forward adds to the residual stream."
    ),
    NodeKind.OTHERS: Meaning("all others", "Everything that was left out of this sum, added up."),
}
EDGE_NAMES = {
    EdgeKind.SUM: "sum",
    EdgeKind.NORM: "norm",
    EdgeKind.ATTENTION: "attention",
    EdgeKind.ACTIVATION: "activation",
    EdgeKind.QUERY: "query",
    EdgeKind.RESIDUAL_ATTN: "skip past attention",
    EdgeKind.RESIDUAL_FF: "skip past feed-forward",
    EdgeKind.BIAS: "bias",
    EdgeKind.OTHERS: "all others",
}
KEYS = "picture: arrows move, plus and minus zoom, 0 shows everything"
HINTS = (
    "Read from left to right. The band along the top is the residual stream; below it hangs what "
    "each block adds.",
    "Wider lines carry more: of what is added up, more of the target's logit (or, if you choose so "
    "above, longer vectors). Widths compare only within one kind of line.",
    "Point at a box for its words and paths, click to keep them. Click a layer's number to open "
    "or close it.",
    "Keys: arrows move, + − zoom, 0 shows everything, / finds a word, Tab goes from box to box, "
    "Enter opens, Esc closes.",
)


def for_page() -> dict[str, Any]:
    """The sentences that the page shows beside nodes, edges and the picture itself."""
    return {
        "nodes": {
            kind.value: {"name": meaning.name, "explained": meaning.explained}
            for kind, meaning in MEANINGS.items()
        },
        "edges": {kind.value: name for kind, name in EDGE_NAMES.items()},
        "keys": KEYS,
        "hints": list(HINTS),
    }


NODES = LegendLine(
    "target at the top / nowhere / at the bottom",
    "A box is a vector, read as the words it stands for. Green: the target word is near the top of "
    "its list, so the vector speaks for the target. Red: it is near the bottom. Grey: neither.",
    ("good", "neutral", "bad"),
    is_node=True,
)
CHANGED = LegendLine(
    "target rose / stayed / fell",
    "A box is a vector in both runs. Green: the target word stands higher in this run than in the "
    "other. Red: it stands lower. Grey: no change. Words with + are in this run alone, those "
    "with − in the other alone; where first words differ, both stand there, this run | the other.",
    ("good", "neutral", "bad"),
    is_node=True,
)
BIAS = LegendLine("bias", "A bias: added whatever the input is.", ("bias",), is_node=True)
CHANGED_EDGES = LegendLine(
    "grew / shrank",
    "An edge's colour says whether it carries more (blue) or less (red) than in the other run, its "
    "width how much: of what is added up, how much more it brings to the target's logit, so that "
    "the differences of a sum's parts add up to the sum's.",
    ("positive", "negative"),
)
WEIGHED = LegendLine(
    "for / against the target",
    "Vectors that are added up: wide ones count most for the target's logit, blue ones raise it, "
    "red ones lower it.",
    ("positive", "negative"),
)
EDGES = {
    EdgeKind.SUM: LegendLine(
        "summed (dark: sure)",
        "Vectors that are added up: wide ones are long vectors, dark ones are sure of few words.",
        ("sum_low", "sum_high"),
    ),
    EdgeKind.ATTENTION: LegendLine(
        "attention, low to high",
        "How much a head looks at an earlier token: from the query to its keys, and from the "
        "values to the head.",
        ("attention_low", "attention_high"),
    ),
    EdgeKind.ACTIVATION: LegendLine(
        "activation + / −",
        "How strongly a neuron fires. A negative coefficient adds the opposite of the neuron's "
        "vector, and it is this opposite that its box shows.",
        ("positive", "negative"),
    ),
    EdgeKind.NORM: LegendLine("norm", "A layer norm: the same vector, rescaled.", ("norm",)),
    EdgeKind.QUERY: LegendLine("query", "What a head asks for.", ("query",)),
    EdgeKind.RESIDUAL_ATTN: LegendLine(
        "skip past attention",
        "The residual stream past attention: what was there stays there.",
        ("residual_attn",),
    ),
    EdgeKind.RESIDUAL_FF: LegendLine(
        "skip past feed-forward",
        "The residual stream past the feed-forward.",
        ("residual_ff",),
    ),
    EdgeKind.OTHERS: LegendLine(
        "all others",
        "Everything that is not drawn, added up, so that sums stay whole.",
        ("others",),
    ),
}


def entries(graph: FlowGraph) -> list[LegendLine]:
    """Only what occurs in this graph."""
    nodes = {node.kind for node in graph.nodes}
    edges = {edge.kind for edge in graph.edges}
    biased = bool(nodes & {NodeKind.ATTN_BIAS, NodeKind.FF_BIAS})
    listed = [CHANGED if graph.is_difference else NODES] + [BIAS] * biased
    if graph.is_difference:
        return [*listed, CHANGED_EDGES]
    shown = {kind: entry for kind, entry in EDGES.items() if kind in edges}
    if any(edge.added is not None for edge in graph.edges) and EdgeKind.SUM in shown:
        shown[EdgeKind.SUM] = WEIGHED
    return [*listed, *shown.values()]
