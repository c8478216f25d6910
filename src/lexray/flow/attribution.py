"""Flow graphs in the form of attribution graphs, which circuit-tracer writes and its viewer and
Neuronpedia's show; and theirs read as nodes and edges.

    metadata  slug, scan (the model), prompt, prompt_tokens, node_threshold, info
    qParams   pinnedIds, supernodes [[name, id, …], …], linkType, clickedId, sg_pos: the saved view
    nodes     node_id ("layer_number_position"), feature (layer and number as one, by Cantor's
              pairing), layer ("E" for tokens), ctx_idx (the position), feature_type, jsNodeId,
              clerp (the label), influence, activation, token_prob, is_target_logit, run_idx,
              reverse_ctx_idx
    links     source, target, weight

What their viewers need beyond that, and do not say: Neuronpedia's finds nodes by node_id, the
papers' one by jsNodeId, so both are the same here; both tell nodes apart by layer and feature, so
no two parts of a layer share a number; a logit's probability is read from its clerp, after "(p=".

Of a flow graph: the prompt's tokens, heads, neurons, biases, what is left of each sum and the
stream before the first block are nodes, and so is every candidate's logit. A link into a logit
weighs what the part brings to it; a link from a token to a head weighs the attention. `influence`
is the share of all |contributions| that a node and all larger ones bring, by which they prune.
The stream before the first block of all is what the token at the position became. Rows of W_O,
queries, keys and norms, which their graphs do not have, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from lexray.checkpoint.plain import parse_json
from lexray.errors import LexrayError
from lexray.flow.caption import caption
from lexray.flow.graph import EdgeKind, FlowGraph, Node, NodeKind
from lexray.flow.story import SUMS, WRITERS
from lexray.result.format import show_model
from lexray.result.table import Result, Table

TYPES = {
    NodeKind.HEAD: "attention head",
    NodeKind.FF_VALUE: "mlp neuron",
    NodeKind.MIXER: "mixer",
    NodeKind.ATTN_BIAS: "bias",
    NodeKind.FF_BIAS: "bias",
    NodeKind.OTHERS: "rest of a sum",
    NodeKind.RESIDUAL: "residual stream",
}
HEADS, CROSS_HEADS, RESTS, EXPERTS = 1_000_000, 1_500_000, 2_000_000, 10_000_000
"""Where the numbers of a layer's heads, and of its rests and biases, begin, and how far apart those
of its experts are: a neuron keeps its own."""


@dataclass(frozen=True)
class AttributionNode:
    node_id: str
    feature: int | None
    layer: str
    """A number, or "E" for a token of the prompt."""
    ctx_idx: int
    feature_type: str
    jsNodeId: str  # noqa: N815, theirs
    clerp: str
    """What people call it."""
    influence: float | None = None
    activation: float | None = None
    token_prob: float = 0.0
    is_target_logit: bool = False
    run_idx: int = 0
    reverse_ctx_idx: int = 0


@dataclass(frozen=True)
class AttributionLink:
    source: str
    target: str
    weight: float


@dataclass(frozen=True)
class Attribution(Result):
    """An attribution graph: nodes, links, and what was pinned and grouped."""

    metadata: dict[str, Any]
    nodes: tuple[AttributionNode, ...]
    links: tuple[AttributionLink, ...]
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {node.node_id for node in self.nodes}
        if len(known) != len(self.nodes):
            raise LexrayError("an attribution graph's node ids are unique, and here some are not")
        for link in self.links:
            if missing := {link.source, link.target} - known:
                raise LexrayError(f"a link names {missing.pop()!r}, and there is no such node")

    def tables(self) -> list[Table]:
        rows = tuple((link.source, link.target, link.weight) for link in self._strongest())
        names = {node.node_id: node.clerp or node.node_id for node in self.nodes}
        shown = tuple((names[a], names[b], weight) for a, b, weight in rows)
        title = f"Attribution of {self.metadata.get('prompt', '')!r}"
        note = f"{len(self.nodes)} nodes, {len(self.links)} links"
        return [Table(("from", "to", "weight"), shown, title, note)]

    def _strongest(self) -> list[AttributionLink]:
        return sorted(self.links, key=lambda link: -abs(link.weight))[:50]

    def to_json(self, *, state: bool = False) -> str:
        """As viewers of such graphs read it; `from_attribution` reads it too, and `lx.load`."""
        return super().to_json(state=state)

    def to_dict(self) -> dict[str, Any]:
        return {
            "metadata": self.metadata,
            "qParams": self.params,
            "nodes": [asdict(node) for node in self.nodes],
            "links": [asdict(link) for link in self.links],
        }


def from_attribution(text: str) -> Attribution:
    """An attribution graph that circuit-tracer or Neuronpedia wrote, as nodes and links."""
    try:
        data = parse_json(text.encode("utf-8", "surrogatepass"), "it")
        nodes = tuple(_node(node) for node in data["nodes"])
        links = tuple(
            AttributionLink(str(e["source"]), str(e["target"]), float(e["weight"]))
            for e in data["links"]
        )
        metadata, params = dict(data["metadata"]), dict(data.get("qParams") or {})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, LexrayError) as error:
        said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise LexrayError(
            f"this is no attribution graph ({said}); it has metadata, nodes and links"
        ) from error
    return Attribution(metadata, nodes, links, params)


def _node(data: dict[str, Any]) -> AttributionNode:
    feature, influence, activation = (data.get(n) for n in ("feature", "influence", "activation"))
    return AttributionNode(
        str(data["node_id"]),
        None if feature is None else int(feature),
        str(data["layer"]),
        int(data["ctx_idx"]),
        str(data["feature_type"]),
        str(data.get("jsNodeId", data["node_id"])),
        str(data.get("clerp", "")),
        None if influence is None else float(influence),
        None if activation is None else float(activation),
        float(data.get("token_prob") or 0.0),
        bool(data.get("is_target_logit", False)),
        int(data.get("run_idx") or 0),
        int(data.get("reverse_ctx_idx") or 0),
    )


def to_attribution(graph: FlowGraph, slug: str = "") -> Attribution:
    """A flow graph as an attribution graph; it has to know what its parts bring to the logits."""
    if graph.is_difference or not any(edge.added is not None for edge in graph.edges):
        raise LexrayError(
            "an attribution graph holds what parts bring to logits, which this flow graph does not "
            "know: differences do not, nor do encoders with a non-linear head"
        )
    return _Export(graph, slug).make()


@dataclass(frozen=True)
class _Export:
    graph: FlowGraph
    slug: str

    def make(self) -> Attribution:
        graph, parts = self.graph, self._parts
        influence = self._influence(parts)
        at = graph.run.position
        nodes = [self._token(i) for i in range(at + 1)]
        nodes += [self._part(node, influence[node.id]) for node in parts]
        nodes += [self._logit(i) for i in range(len(graph.candidates))]
        links = [link for node in parts for link in self._links(node)]
        return Attribution(self._metadata(), tuple(nodes), tuple(links), self._params(parts))

    @cached_property
    def _parts(self) -> list[Node]:
        graph = self.graph
        first = min((n.layer for n in graph.nodes if n.kind == NodeKind.RESIDUAL), default=0)
        nodes = []
        for node in graph.nodes:
            into = {graph[edge.target].kind for edge in graph.out_of(node.id)}
            rest = node.kind == NodeKind.OTHERS and bool(into & set(SUMS))
            rest = rest and not node.id.endswith("W_O.others")
            start = node.kind == NodeKind.RESIDUAL and node.layer == first
            if (node.kind in WRITERS or rest or start) and self._shares(node) is not None:
                nodes.append(node)
        return nodes

    def _shares(self, node: Node) -> list[float] | None:
        """What a node brings to every candidate; of the stream, what goes past the block."""
        skips = (EdgeKind.RESIDUAL_ATTN, EdgeKind.RESIDUAL_FF)
        edges = [e for e in self.graph.out_of(node.id) if e.added is not None]
        if node.kind == NodeKind.RESIDUAL:
            edges = [e for e in edges if e.kind in skips]
        parts = [e.added for e in edges if e.added is not None]
        return [sum(column) for column in zip(*parts, strict=True)] if parts else None

    def _influence(self, parts: Sequence[Node]) -> dict[str, float]:
        target = self.graph.target_index
        sizes = {node.id: abs((self._shares(node) or [0.0])[target]) for node in parts}
        whole, so_far, influence = sum(sizes.values()) or 1.0, 0.0, {}
        for id in sorted(sizes, key=lambda id: -sizes[id]):
            so_far += sizes[id] / whole
            influence[id] = min(1.0, so_far)
        return influence

    def _token(self, position: int) -> AttributionNode:
        name, said = f"E_{position}_{position}", f"Emb: {self.graph.run.tokens[position]}"
        return AttributionNode(name, position, "E", position, "embedding", name, said)

    def _part(self, node: Node, influence: float) -> AttributionNode:
        words = " ".join(w.shown for w in node.projection.top[:4]) if node.projection else ""
        name = self._id(node)
        return AttributionNode(
            name,
            pair(node.layer, self._numbers[node.id]),
            str(node.layer),
            self.graph.run.position,
            TYPES[node.kind],
            name,
            f"{node.address or node.id}: {words}",
            influence,
            node.norm,
        )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """A number for each part, its own where it has one, and never another's of its layer."""
        numbers: dict[str, int] = {}
        for node in self._parts:
            named = re.match(r"(?:enc\.)?L\d+(?:E(\d+))?N(\d+)", node.address or "")
            if node.kind == NodeKind.HEAD and node.head is not None:
                numbers[node.id] = (CROSS_HEADS if node.crosses else HEADS) + node.head
            elif named is not None:
                expert = 0 if named[1] is None else 1 + int(named[1])
                numbers[node.id] = EXPERTS * expert + int(named[2])
            else:
                numbers[node.id] = RESTS + len(numbers)
        return numbers

    def _id(self, node: Node) -> str:
        return f"{node.layer}_{self._numbers[node.id]}_{self.graph.run.position}"

    def _logit_id(self, i: int) -> str:
        return f"{self._last}_{self.graph.candidates[i].id}_{self.graph.run.position}"

    @property
    def _last(self) -> int:
        return max(self.graph.layers, default=0) + 2

    def _logit(self, i: int) -> AttributionNode:
        graph, word = self.graph, self.graph.candidates[i]
        stations = [n for n in graph.nodes if n.kind == NodeKind.RESIDUAL and n.projection]
        last = max(stations, key=lambda n: n.layer).projection if stations else None
        chance = last.places[i].probability if last else 0.0
        return AttributionNode(
            self._logit_id(i),
            word.id,
            str(self._last),
            graph.run.position,
            "logit",
            self._logit_id(i),
            'Output "{}" (p={:.3f})'.format(word.shown.replace('"', "″"), chance),
            token_prob=chance,
            is_target_logit=i == graph.target_index,
        )

    def _links(self, node: Node) -> list[AttributionLink]:
        shares = self._shares(node) or []
        links = [
            AttributionLink(self._id(node), self._logit_id(i), share)
            for i, share in enumerate(shares)
        ]
        if node.kind == NodeKind.HEAD:
            for edge in self.graph.into(node.id):
                at = self.graph[edge.source].position
                if edge.kind == EdgeKind.ATTENTION and at is not None:
                    links.append(AttributionLink(f"E_{at}_{at}", self._id(node), edge.score))
        if node.kind == NodeKind.RESIDUAL and node.layer == 0:
            at = self.graph.run.position
            links.append(AttributionLink(f"E_{at}_{at}", self._id(node), 1.0))
        return links

    def _metadata(self) -> dict[str, Any]:
        from lexray import __version__

        run = self.graph.run
        plain = re.sub(r"[^a-z0-9]+", "-", run.prompt.lower()).strip("-")[:60]
        return {
            "slug": self.slug or f"lexray-{plain or 'graph'}",
            "scan": show_model(run.model),
            "transcoder_list": [],
            "prompt_tokens": [token.replace("·", " ") for token in run.tokens],
            "prompt": run.prompt,
            "node_threshold": 1.0,
            "schema_version": 1,
            "info": {
                "description": caption(self.graph),
                "generator": {"name": "lexray", "version": __version__},
            },
            "pruning_settings": {"node_threshold": 1.0, "edge_threshold": 1.0},
        }

    def _params(self, parts: Sequence[Node]) -> dict[str, Any]:
        ids = {node.id: self._id(node) for node in parts}
        pins = [[ids[id] for id in pin.nodes if id in ids] for pin in self.graph.pins]
        named = zip(self.graph.pins, pins, strict=True)
        return {
            "pinnedIds": [self._logit_id(self.graph.target_index), *(id for p in pins for id in p)],
            "supernodes": [[pin.name, *own] for pin, own in named if pin.name and own],
            "linkType": "both",
            "clickedId": "",
            "sg_pos": "",
        }


def pair(layer: int, number: int) -> int:
    """A layer and a number as one number, as version 1 of their schema has it.

    >>> pair(0, 0), pair(1, 0), pair(0, 1)
    (0, 1, 2)
    """
    return (layer + number) * (layer + number + 1) // 2 + number
