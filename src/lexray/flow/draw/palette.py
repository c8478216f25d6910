"""Colours and widths: the paper's palette and a colour-blind one, each for light and dark.

The page draws with the same numbers: it receives the palettes as data and repeats `mix`,
`standing` and `wire_style` in JavaScript, which a browser test compares with these.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from lexray.errors import LexrayError
from lexray.flow.graph import Edge, EdgeKind, FlowGraph, Node, NodeKind
from lexray.result.theme import DARK, LIGHT, standing


@dataclass(frozen=True)
class Palette:
    """The picture's colours; paper, line, ink, faint, accent and neutral are the theme's."""

    paper: str
    panel: str
    panel_ff: str
    """Behind feed-forwards; `panel` is behind attention."""
    line: str
    ink: str
    faint: str
    accent: str
    good: str
    neutral: str
    bad: str
    """A node's fill: the target is near the top, nowhere, near the bottom of its reading."""
    bias: str
    stream: str
    sum_low: str
    sum_high: str
    """Summation edges from high to low entropy."""
    norm: str
    attention_low: str
    attention_high: str
    positive: str
    negative: str
    query: str
    residual_attn: str
    residual_ff: str
    others: str


PAPER_LIGHT = Palette(
    paper=LIGHT.paper,
    panel="#f4f6f1",
    panel_ff="#f1f4f9",
    line=LIGHT.line,
    ink=LIGHT.ink,
    faint=LIGHT.faint,
    accent=LIGHT.accent,
    good="#63c48f",
    neutral=LIGHT.chip,
    bad="#f08d80",
    bias="#f6bcd4",
    stream="#edf0f4",
    sum_low="#c9d0d8",
    sum_high="#4b5763",
    norm="#9a7fdb",
    attention_low="#d9cd8c",
    attention_high="#3c9a52",
    positive="#4389d8",
    negative="#de5a52",
    query="#b9b089",
    residual_attn="#f2c48d",
    residual_ff="#97cbd3",
    others="#a7b0ba",
)
PAPER_DARK = Palette(
    paper=DARK.paper,
    panel="#191f20",
    panel_ff="#181e27",
    line=DARK.line,
    ink=DARK.ink,
    faint=DARK.faint,
    accent=DARK.accent,
    good="#1b774b",
    neutral=DARK.chip,
    bad="#a6423a",
    bias="#8d4567",
    stream="#1d242d",
    sum_low="#3c4753",
    sum_high="#b6c1cd",
    norm="#8d74cf",
    attention_low="#7d7443",
    attention_high="#4cb565",
    positive="#4f95e4",
    negative="#e5665e",
    query="#6f6a4e",
    residual_attn="#9c7547",
    residual_ff="#417883",
    others="#5d6875",
)
BLIND_LIGHT = replace(
    PAPER_LIGHT,
    panel="#f6f5f0",
    good="#6fb4e3",
    bad="#f0b04c",
    bias="#e3bfd3",
    norm="#cc79a7",
    attention_low="#e3d98a",
    attention_high="#00866a",
    positive="#0072b2",
    negative="#d55e00",
    residual_attn="#e9c9a4",
    residual_ff="#a9d3ee",
)
BLIND_DARK = replace(
    PAPER_DARK,
    good="#1d6ea6",
    bad="#925d0c",
    bias="#7b4a66",
    norm="#cc79a7",
    attention_low="#857c3a",
    attention_high="#12a884",
    positive="#4aa5dd",
    negative="#ea8031",
    residual_attn="#8a6a45",
    residual_ff="#3d7596",
)
PALETTES = {
    "paper": {"light": PAPER_LIGHT, "dark": PAPER_DARK},
    "colour-blind": {"light": BLIND_LIGHT, "dark": BLIND_DARK},
}

WIDEST = {
    EdgeKind.SUM: 7.0,
    EdgeKind.NORM: 4.0,
    EdgeKind.ATTENTION: 7.0,
    EdgeKind.ACTIVATION: 6.0,
    EdgeKind.QUERY: 3.0,
    EdgeKind.RESIDUAL_ATTN: 14.0,
    EdgeKind.RESIDUAL_FF: 14.0,
    EdgeKind.BIAS: 5.0,
    EdgeKind.OTHERS: 5.0,
}
"""The width of the strongest edge of a kind."""
THINNEST = 0.9
CONTRAST = 1.5
"""Larger: only the very top and the very bottom of readings are coloured."""
OPACITY = {
    EdgeKind.SUM: 0.62,
    EdgeKind.NORM: 0.7,
    EdgeKind.ATTENTION: 0.78,
    EdgeKind.ACTIVATION: 0.7,
    EdgeKind.QUERY: 0.55,
    EdgeKind.RESIDUAL_ATTN: 0.9,
    EdgeKind.RESIDUAL_FF: 0.9,
    EdgeKind.BIAS: 0.8,
    EdgeKind.OTHERS: 0.6,
}


@dataclass(frozen=True)
class WireStyle:
    colour: str
    width: float
    opacity: float


def palette(name: str, dark: bool) -> Palette:
    if name not in PALETTES:
        raise LexrayError(f"there is no palette {name!r}; there are {', '.join(PALETTES)}")
    return PALETTES[name]["dark" if dark else "light"]


def for_page() -> dict[str, Any]:
    """What the page needs to paint as this module does."""
    return {
        "palettes": {
            name: {mode: asdict(colours) for mode, colours in modes.items()}
            for name, modes in PALETTES.items()
        },
        "widest": {kind.value: width for kind, width in WIDEST.items()},
        "opacity": {kind.value: share for kind, share in OPACITY.items()},
        "thinnest": THINNEST,
        "contrast": CONTRAST,
    }


def mix(a: str, b: str, share: float) -> str:
    """The colour that lies `share` of the way from a to b."""
    share = min(1.0, max(0.0, share)) if share == share else 0.0
    parts = (
        math.floor(x + (y - x) * share + 0.5)
        for x, y in zip(_channels(a), _channels(b), strict=True)
    )
    return "#" + "".join(f"{part:02x}" for part in parts)


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def node_fill(graph: FlowGraph, node: Node, colours: Palette) -> str:
    """By the target's rank; in a difference graph by how far the target has risen or fallen."""
    if node.kind in (NodeKind.ATTN_BIAS, NodeKind.FF_BIAS):
        return colours.bias
    share = _standing(graph, node)
    if graph.is_difference:
        share = share - _standing(graph, node, other=True)
    pole = colours.good if share >= 0 else colours.bad
    return mix(colours.neutral, pole, min(1.0, abs(share)) ** CONTRAST)


def _standing(graph: FlowGraph, node: Node, other: bool = False) -> float:
    place = graph.place(node, other)
    return standing(place.rank, graph.d_vocab) if place else 0.0


Strongest = dict[tuple[EdgeKind, bool], float]
"""By kind, and by whether an edge's share of the logit is known."""


def strength(graph: FlowGraph, edge: Edge) -> float:
    """What an edge's width shows: what it brings to the target's logit, else its score, or in a
    difference graph how much this changed."""
    return abs(_sign(graph, edge)) if _changes(graph, edge) else edge.score


def _changes(graph: FlowGraph, edge: Edge) -> bool:
    """Whether an edge is drawn by a number with a sign: a share of the logit, or a difference."""
    return edge.added is not None or (graph.is_difference and edge.other_score is not None)


def _sign(graph: FlowGraph, edge: Edge) -> float:
    share = edge.brings(graph.target_index)
    return edge.sign * edge.score - (edge.other_score or 0.0) if share is None else share


def strongest(graph: FlowGraph) -> Strongest:
    """The largest strength of each kind of edge."""
    sizes: Strongest = {}
    for edge in graph.edges:
        size, group = strength(graph, edge), _group(graph, edge)
        if math.isfinite(size):
            sizes[group] = max(sizes.get(group, 0.0), size)
    return sizes


def _group(graph: FlowGraph, edge: Edge) -> tuple[EdgeKind, bool]:
    return edge.kind, edge.added is not None


def wire_style(graph: FlowGraph, edge: Edge, most: Strongest, colours: Palette) -> WireStyle:
    """Width by strength within the edge's kind; colour by kind, and by what its kind shows."""
    size, largest = strength(graph, edge), most.get(_group(graph, edge))
    share = size / largest if largest and math.isfinite(size) else 0.0
    width = max(THINNEST, WIDEST[edge.kind] * share)
    return WireStyle(_wire_colour(graph, edge, colours), width, OPACITY[edge.kind])


def _wire_colour(graph: FlowGraph, edge: Edge, colours: Palette) -> str:
    if graph.is_difference and edge.other_score is not None:
        return colours.positive if _sign(graph, edge) >= 0 else colours.negative
    match edge.kind:
        case EdgeKind.SUM if edge.added is not None:
            return colours.positive if _sign(graph, edge) >= 0 else colours.negative
        case EdgeKind.SUM:
            flat = math.log(max(2, graph.d_vocab))
            share = 0.35 if edge.entropy is None else 1 - edge.entropy / flat
            return mix(colours.sum_low, colours.sum_high, share)
        case EdgeKind.ATTENTION:
            return mix(colours.attention_low, colours.attention_high, edge.score)
        case EdgeKind.ACTIVATION:
            return colours.positive if edge.sign >= 0 else colours.negative
        case EdgeKind.BIAS:
            return colours.bias
        case kind:
            return str(getattr(colours, kind.value))
