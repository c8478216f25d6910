"""The flow graph of one forward pass as data: what flows at one position, read as words.

After "VISIT: Visualizing and Interpreting the Semantic Information Flow of Transformers" (App. A).
A node is a vector that was recorded (or a parameter that was at work), an edge is what one vector
gives to another. Nodes and edges only say what is; where they are drawn is `layout`'s business.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, TypeVar

from lexray.errors import LexrayError
from lexray.result.readings import Source

Same = TypeVar("Same", bound="FlowGraph")
CROSSING = re.compile(r"L\d+\.(?:X\d|cross_)", re.ASCII)


class NodeKind(StrEnum):
    """What a node is. A closed block shows only its `MID` and what its parts wrote."""

    EMBED = "embed"
    """What enters the first block: token (and position) embedding."""
    RESIDUAL = "residual"
    """The input of block `layer`; after the last block, `layer` is the next number."""
    NORM = "norm"
    """What a norm gives: attention input, feed-forward input, a normed output (Gemma)."""
    QKV = "qkv"
    """This position's own values through W_O: Σ_j v_j W_O^j."""
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    HEAD = "head"
    CONCAT = "concat"
    O_NEURON = "o_neuron"
    """A row of W_O."""
    ATTN_BIAS = "attn_bias"
    ATTN_OUT = "attn_out"
    CROSS_OUT = "cross_out"
    """What a decoder's attention to its source adds, in encoder–decoders."""
    MIXER = "mixer"
    """What a state space, linear attention or a convolution wrote, as one part (hybrids)."""
    SUM = "sum"
    """Post-norm models: a residual sum before its norm, which gives `MID` or `RESIDUAL`."""
    MID = "mid"
    """The residual after attention; parallel blocks have none. Of a decoder beside an encoder
    there are two: after its own attention, and after that to the source. Where one more part stands
    last there is one after the feed-forward, and of several streams the one that a block works on
    stands first."""
    FF_KEY = "ff_key"
    FF_GATE = "ff_gate"
    FF_VALUE = "ff_value"
    FF_BIAS = "ff_bias"
    FF_OUT = "ff_out"
    OTHERS = "others"
    """All that was left out of one sum, together: `count` vectors."""


class EdgeKind(StrEnum):
    """What an edge does; scores are comparable, and drawn, within one kind."""

    SUM = "sum"
    """Adds a vector; scored by its norm."""
    NORM = "norm"
    ATTENTION = "attention"
    """Multiplies by an attention weight, its score: query → key → value → head."""
    ACTIVATION = "activation"
    """Multiplies by a neuron's coefficient, its score: (norm →) key → value, concatenation → row of
    W_O; the value's and the row's own edge into the output is a `SUM`."""
    QUERY = "query"
    """From the joint q/k/v node to a head's query; scored by the query's norm."""
    RESIDUAL_ATTN = "residual_attn"
    """The skip around attention."""
    RESIDUAL_FF = "residual_ff"
    """The skip around the feed-forward; in parallel blocks the only skip."""
    BIAS = "bias"
    OTHERS = "others"


@dataclass(frozen=True)
class Word:
    """A vocabulary item as people read it."""

    id: int
    shown: str


@dataclass(frozen=True)
class Weighed:
    """A word with its probability, or with its score where a parameter is read statically."""

    id: int
    shown: str
    weight: float


@dataclass(frozen=True)
class Standing:
    """Where a word of interest stands in a projection: 1 is the top."""

    rank: int
    probability: float


@dataclass(frozen=True)
class Projection:
    """A vector seen through the logit lens.

    A negative coefficient adds the negated vector, and it is that one which is projected.
    """

    top: tuple[Weighed, ...]
    bottom: tuple[Weighed, ...]
    places: tuple[Standing, ...]
    """For each of the graph's `candidates`, in their order."""
    entropy: float
    """In nats."""
    how: str = "as it is"
    """How its words were found: by probability, or "standardised": by how the vector differs from
    what its place usually carries. Probabilities and ranks are the model's own."""


@dataclass(frozen=True)
class Static:
    """A parameter read without any input; its own sign, whatever the coefficient was."""

    top: tuple[Weighed, ...]
    bottom: tuple[Weighed, ...]


@dataclass(frozen=True)
class Node:
    id: str
    """Stable, readable, unique: `L14.H3.value@"Japan"`."""
    kind: NodeKind
    layer: int
    label: str
    """Short: what it is beside its reading, such as `head 3`, `·Japan`, `1215`."""
    address: str | None = None
    """Of the parameter: `L14H3`, `L14N12.value`, `L5E2N17.value`."""
    head: int | None = None
    position: int | None = None
    """Of the token in the prompt to which a key or a value belongs."""
    projection: Projection | None = None
    norm: float | None = None
    static: Static | None = None
    count: int | None = None
    """How many vectors an `OTHERS` node stands for."""
    other: Projection | None = None
    """In a difference graph: the same node in the other run."""
    other_norm: float | None = None

    @property
    def crosses(self) -> bool:
        """Whether it belongs to a decoder's attention to its source."""
        return is_crossing(self.id)


def is_crossing(id: str) -> bool:
    """Whether an id is one of a node in cross-attention: `L3.X2`, `L3.cross_out`."""
    return CROSSING.match(id) is not None


@dataclass(frozen=True)
class Edge:
    source: str
    target: str
    kind: EdgeKind
    score: float
    """Never negative: |coefficient|, attention weight, or norm of what is summed."""
    sign: int = 1
    entropy: float | None = None
    """Of what a summation edge carries."""
    value: float | None = None
    """The norm of what the edge carries."""
    other_score: float | None = None
    """In a difference graph: sign times score in the other run, 0.0 if it is not there."""
    added: tuple[float, ...] | None = None
    """Of an addend: what it brings to the logit of each of the graph's `candidates`, the norms on
    the way as they were."""
    other_added: tuple[float, ...] | None = None
    """In a difference graph: the same in the other run, zeros if the edge is not there."""

    def brings(self, word: int) -> float | None:
        """What it brings to a candidate's logit; in a difference graph, how much more than in the
        other run."""
        if self.added is None:
            return None
        return self.added[word] - (0.0 if self.other_added is None else self.other_added[word])


@dataclass(frozen=True)
class Run:
    """A forward pass, named."""

    source: Source
    """Which model, and how its vectors were read."""
    prompt: str
    tokens: tuple[str, ...]
    """The prompt's tokens as people read them; of an encoder–decoder the source's, then the
    target's."""
    position: int
    """Whose flow is drawn, counted from 0."""
    prediction: Weighed | None = None
    """What the model itself holds most probable after this position."""
    n_source: int = 0
    """How many of the tokens are the source's."""

    @property
    def model(self) -> str:
        return self.source.model


@dataclass(frozen=True)
class Pin:
    """Nodes that belong together in the eyes of who looked at them."""

    nodes: tuple[str, ...]
    name: str = ""


@dataclass(frozen=True)
class FlowGraph:
    """What flowed at one position, from which layers to which, and towards which target: the data,
    which `lexray.flow.flow.Flow` shows in all forms."""

    run: Run
    target: Word
    candidates: tuple[Word, ...]
    """Words of interest, the target among them: any can become the target in the page."""
    d_vocab: int
    layers: tuple[int, ...]
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """How it was built, as JSON."""
    other: Run | None = None
    """In a difference graph: the run to which the first one is compared."""
    pins: tuple[Pin, ...] = ()
    """What somebody has chosen to show, perhaps under names of their own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", json.loads(json.dumps(dict(self.options))))
        twice = [id for id, n in Counter(node.id for node in self.nodes).items() if n > 1]
        if twice:
            raise LexrayError(f"a flow graph's node ids are unique, {twice[0]!r} occurs twice")
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in self._by_id:
                    raise LexrayError(f"an edge names {end!r}, and there is no such node")
        if self.target.id not in {word.id for word in self.candidates}:
            raise LexrayError(f"the target {self.target.shown!r} is not among the candidates")
        for id in (id for pin in self.pins for id in pin.nodes):
            if id not in self._by_id:
                raise LexrayError(f"{id!r} is pinned, and there is no such node")
        for edge in self.edges:
            for shares in (edge.added, edge.other_added):
                if shares is not None and len(shares) != len(self.candidates):
                    raise LexrayError(
                        f"the edge {edge.source} → {edge.target} has shares for {len(shares)} "
                        f"words, the graph has {len(self.candidates)} candidates"
                    )
        for node in self.nodes:
            for seen_as in (node.projection, node.other):
                if seen_as is not None and len(seen_as.places) != len(self.candidates):
                    raise LexrayError(
                        f"{node.id} has places for {len(seen_as.places)} words, "
                        f"the graph has {len(self.candidates)} candidates"
                    )

    @cached_property
    def _by_id(self) -> dict[str, Node]:
        return {node.id: node for node in self.nodes}

    def __getitem__(self, id: str) -> Node:
        if id not in self._by_id:
            near = [name for name in self._by_id if id.lower() in name.lower()][:5]
            tip = f"did you mean {', '.join(near)}?" if near else f"try {self.nodes[0].id}"
            raise LexrayError(f"the flow graph has no node {id!r}; {tip}")
        return self._by_id[id]

    def into(self, id: str) -> list[Edge]:
        """What flows into a node, the strongest first."""
        return sorted((e for e in self.edges if e.target == self[id].id), key=lambda e: -e.score)

    def out_of(self, id: str) -> list[Edge]:
        """Where a node's vector goes, the strongest first."""
        return sorted((e for e in self.edges if e.source == self[id].id), key=lambda e: -e.score)

    def of_kind(self, kind: NodeKind | str) -> list[Node]:
        return [node for node in self.nodes if node.kind == kind]

    def contribution(self, node: Node) -> float | None:
        """What a node's vector brings to the target's logit by all that it is added to; in a
        difference graph, how much more than in the other run."""
        shares = [e.brings(self.target_index) for e in self._leaving.get(node.id, ())]
        known = [share for share in shares if share is not None]
        return sum(known) if known else None

    @cached_property
    def _leaving(self) -> dict[str, list[Edge]]:
        edges: dict[str, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            edges[edge.source].append(edge)
        return edges

    def place(self, node: Node, other: bool = False) -> Standing | None:
        """Where the target stands in a node's reading."""
        seen = node.other if other else node.projection
        return seen.places[self.target_index] if seen else None

    @cached_property
    def target_index(self) -> int:
        """Where the target is among the candidates."""
        return next(i for i, word in enumerate(self.candidates) if word.id == self.target.id)

    @property
    def is_difference(self) -> bool:
        return self.other is not None

    def pin(self: Same, *groups: str | Sequence[str], **named: Sequence[str]) -> Same:
        """The same graph with these nodes pinned, by id or address: each by itself, a list
        together, a list under a name; without any, nothing is pinned.

        >>> one, two = (node.address for node in graph.of_kind("head"))
        >>> pinned = graph.pin(one, **{"both heads": [one, two]})
        >>> svg = pinned.to_svg(paper=True)
        """
        pins = [Pin(self._find([one] if isinstance(one, str) else one)) for one in groups]
        pins += [Pin(self._find(nodes), name) for name, nodes in named.items()]
        return replace(self, pins=tuple(pins))

    def _find(self, names: Sequence[str]) -> tuple[str, ...]:
        by_address = {node.address: node.id for node in self.nodes if node.address}
        by_address |= {str(a).removesuffix(".value"): id for a, id in by_address.items()}
        return tuple(self[by_address.get(name, name)].id for name in names)

    def retarget(self: Same, word: int | str) -> Same:
        """The same graph with another of the candidates as its target, by id or as it is shown."""
        for candidate in self.candidates:
            if word in (candidate.id, candidate.shown):
                return replace(self, target=candidate)
        there = ", ".join(candidate.shown for candidate in self.candidates)
        raise LexrayError(f"{word!r} is not among the graph's candidates: {there}")


STREAM = (NodeKind.EMBED, NodeKind.RESIDUAL, NodeKind.SUM, NodeKind.MID)
"""The residual stream: drawn as a straight band."""


def memory_name(tokens: Sequence[str], position: int) -> str:
    """A token of the prompt for use in ids: with its index where it occurs more than once.

    >>> memory_name(["The", "·cat", "·the", "·cat"], 3)
    '"·cat"#3'
    """
    token = tokens[position]
    return f'"{token}"' + (f"#{position}" if tokens.count(token) > 1 else "")
