"""Made-up flow graphs of every shape that blocks have: for tests of layout and drawing."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lexray.flow.flow import Flow
from lexray.flow.graph import (
    Edge,
    EdgeKind,
    Node,
    NodeKind,
    Projection,
    Run,
    Standing,
    Static,
    Weighed,
    Word,
    memory_name,
)
from lexray.result.readings import Source
from lexray.view import View

SOURCE = Source("gpt2-medium", "607a30d", "flow", View())

D_VOCAB = 50257
PLAIN = (
    "·Tokyo ·Japan ·city ·Osaka ·Kyoto ·the ·capital ·Yamato ·Samurai ·cities ·government "
    "·Paris ·London ·a ·in ·its ·where ·metropolitan ·Seoul ·population ·neighbourhood "
    "·Nagasaki ·and ·Emperor ·yen ·prefecture ·world ·which ·that ·district ·Kobe ·urban "
    "·downtown ·mayor ·of ·Beijing ·Hokkaido ·Asia ·island ·anime izens ·Tok ama uda ↵ · "
    "·internationalization 東京 🗼"
)
WORDS = [
    *PLAIN.split(),
    "·\\xe6\\x9d",
    "<script>alert(1)</script>",
    "</script>",
    "&amp;",
    "\u2028",
    "·quo\"te'",
]
PROMPT = ("The", "·capital", "·of", "·Japan", "·is", "·the", "·city", "·of")
CANDIDATES = ("·Tokyo", "·Osaka", "·the", "·London")


@dataclass
class Maker:
    """Adds nodes and edges block by block; everything random comes from one seed."""

    seed: int = 0
    heads: int = 10
    memories: int = 2
    neurons: tuple[int, int] = (18, 7)
    listed: int = 10
    prompt: Sequence[str] = PROMPT
    words: Sequence[str] = tuple(WORDS)
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def projection(self, liking: float | None = None) -> Projection:
        """A reading; `liking` from -1 to 1 says how near the top the target is."""
        liking = self.random.gauss(0, 0.4) if liking is None else liking
        liking = max(-1.0, min(1.0, liking))
        rank = int((D_VOCAB / 2) ** (1 - abs(liking))) - 1
        rank = rank if liking >= 0 else D_VOCAB - 1 - rank
        top = self._words(0.4 * self.random.random() + 0.02)
        if rank < len(top):
            first = Weighed(0, self.words[0], top[rank].weight)
            top = (*top[:rank], first, *top[rank + 1 :])
        probability = top[rank].weight if rank < len(top) else 0.01 / (rank + 2)
        places = [Standing(rank + 1, probability)]
        places += [
            Standing(1 + self.random.randrange(D_VOCAB), 1e-5 * self.random.random())
            for _ in CANDIDATES[1:]
        ]
        entropy = self.random.uniform(1.5, math.log(D_VOCAB))
        return Projection(top, self._words(1e-9), tuple(places), entropy)

    def _words(self, first: float) -> tuple[Weighed, ...]:
        picked = self.random.sample(range(1, len(self.words)), self.listed)
        return tuple(Weighed(i, self.words[i], first * 0.7**n) for n, i in enumerate(picked))

    def static(self) -> Static:
        return Static(self._words(6.0), self._words(-4.0))

    def node(
        self,
        id: str,
        kind: NodeKind,
        layer: int,
        label: str,
        liking: float | None = None,
        **more: object,
    ) -> str:
        parameter = more.get("address") is not None
        node = Node(
            id,
            kind,
            layer,
            label,
            projection=self.projection(liking),
            norm=self.random.lognormvariate(2, 1),
            static=self.static() if parameter else None,
        )
        self.nodes.append(replace(node, **more))  # type: ignore[arg-type]
        return id

    def edge(self, source: str, target: str, kind: EdgeKind, score: float | None = None) -> None:
        size = self.random.lognormvariate(0, 0.8) if score is None else abs(score)
        sign = -1 if score is not None and score < 0 else 1
        entropy = self.random.uniform(1, 10.8) if kind == EdgeKind.SUM else None
        self.edges.append(Edge(source, target, kind, size, sign, entropy, size))

    def attention(self, layer: int, source: str, liking: float) -> str:
        """From the normed input to the attention output."""
        at = f"L{layer}"
        qkv = self.node(f"{at}.qkv", NodeKind.QKV, layer, "q, k, v")
        self.edge(source, qkv, EdgeKind.SUM)
        concat_edges = []
        for head in range(self.heads):
            query = self.node(f"{at}.H{head}.query", NodeKind.QUERY, layer, f"{head}", head=head)
            self.edge(qkv, query, EdgeKind.QUERY)
            out = f"{at}.H{head}"
            weights = sorted(
                (self.random.random() ** 2 for _ in range(self.memories)), reverse=True
            )
            shown = self.random.sample(range(len(self.prompt)), self.memories)
            for position, weight in zip(shown, weights, strict=True):
                name = memory_name(self.prompt, position)
                where = {"head": head, "position": position}
                key = self.node(
                    f"{out}.key@{name}", NodeKind.KEY, layer, self.prompt[position], **where
                )
                value = self.node(
                    f"{out}.value@{name}", NodeKind.VALUE, layer, self.prompt[position], **where
                )
                self.edge(query, key, EdgeKind.ATTENTION, weight)
                self.edge(key, value, EdgeKind.ATTENTION, weight)
                concat_edges.append((value, out, weight))
            self.node(
                out,
                NodeKind.HEAD,
                layer,
                f"{head}",
                liking * self.random.random(),
                head=head,
                address=f"L{layer}H{head}",
            )
        for value, out, weight in concat_edges:
            self.edge(value, out, EdgeKind.ATTENTION, weight)
        concat = self.node(f"{at}.concat", NodeKind.CONCAT, layer, "heads", liking)
        for head in range(self.heads):
            self.edge(f"{at}.H{head}", concat, EdgeKind.SUM)
        others = self.node(f"{at}.heads.others", NodeKind.OTHERS, layer, "others", count=6)
        self.edge(others, concat, EdgeKind.OTHERS)
        attn_out = f"{at}.attn_out"
        neurons = self.fan(layer, concat, NodeKind.O_NEURON, "O")
        self.node(attn_out, NodeKind.ATTN_OUT, layer, "attention", liking)
        self.gather(layer, neurons, attn_out, NodeKind.ATTN_BIAS, "attn")
        return attn_out

    def fan(self, layer: int, source: str, kind: NodeKind, name: str) -> list[tuple[str, int]]:
        """The most active neurons: positive first, then negative."""
        out = []
        high, low = self.neurons
        for i in range(high + low):
            sign = 1 if i < high else -1
            number = self.random.randrange(4096)
            id = f"L{layer}.{name}{i}"
            self.node(
                id,
                kind,
                layer,
                f"{number}",
                sign * self.random.random() * 0.8,
                address=f"L{layer}H{number % 16}.O{number}",
            )
            self.edge(source, id, EdgeKind.ACTIVATION, sign * self.random.lognormvariate(0, 0.7))
            out.append((id, sign))
        return out

    def gather(
        self, layer: int, sources: list[tuple[str, int]], target: str, bias: NodeKind, name: str
    ) -> None:
        for id, _ in sources:
            self.edge(id, target, EdgeKind.SUM)
        others = self.node(f"L{layer}.{name}.others", NodeKind.OTHERS, layer, "others", count=4071)
        self.edge(others, target, EdgeKind.OTHERS)
        added = self.node(f"L{layer}.{name}.bias", bias, layer, "bias")
        self.edge(added, target, EdgeKind.BIAS)

    def feed_forward(self, layer: int, source: str, liking: float, gated: bool) -> str:
        keys = self.fan(layer, source, NodeKind.FF_KEY, "key")
        values = []
        for i, (key, sign) in enumerate(keys):
            value = self.node(
                f"L{layer}.value{i}",
                NodeKind.FF_VALUE,
                layer,
                self.nodes[-1].label,
                sign * self.random.random(),
                address=f"L{layer}N{i}.value",
            )
            if gated:
                gate = self.node(
                    f"L{layer}.gate{i}",
                    NodeKind.FF_GATE,
                    layer,
                    "gate",
                    address=f"L{layer}N{i}.gate",
                )
                self.edge(source, gate, EdgeKind.ACTIVATION)
                self.edge(gate, value, EdgeKind.ACTIVATION)
            self.edge(key, value, EdgeKind.ACTIVATION, sign * self.random.lognormvariate(0, 0.7))
            values.append((value, sign))
        out = self.node(f"L{layer}.ff_out", NodeKind.FF_OUT, layer, "feed-fwd", liking)
        self.gather(layer, values, out, NodeKind.FF_BIAS, "ff")
        return out

    def stream(self, id: str, kind: NodeKind, layer: int, label: str, liking: float) -> str:
        return self.node(id, kind, layer, label, liking)

    def block(
        self, layer: int, before: str, after: str, how: str, detail: bool, liking: float
    ) -> None:
        """A block: sequential, gated, parallel, post-norm, or sandwich (norms around its parts)."""
        at = f"L{layer}"
        if not detail:
            return self.closed(layer, before, after, how, liking)
        norm = before
        if how != "post-norm":
            norm = self.node(f"{at}.norm", NodeKind.NORM, layer, "norm", liking)
            self.edge(before, norm, EdgeKind.NORM)
        attn = self.attention(layer, norm, liking)
        if how == "parallel":
            ff = self.feed_forward(layer, norm, liking, False)
            self.edge(attn, after, EdgeKind.SUM)
            self.edge(ff, after, EdgeKind.SUM)
            return self.edge(before, after, EdgeKind.RESIDUAL_FF)
        mid = self.stream(f"{at}.mid", NodeKind.MID, layer, "mid", liking)
        self.join(layer, attn, before, mid, how, "attn", EdgeKind.RESIDUAL_ATTN)
        norm = mid
        if how != "post-norm":
            norm = self.node(f"{at}.ff_norm", NodeKind.NORM, layer, "norm", liking)
            self.edge(mid, norm, EdgeKind.NORM)
        ff = self.feed_forward(layer, norm, liking, how in ("gated", "sandwich"))
        return self.join(layer, ff, mid, after, how, "ff", EdgeKind.RESIDUAL_FF)

    def join(
        self, layer: int, added: str, before: str, after: str, how: str, name: str, skip: EdgeKind
    ) -> None:
        at = f"L{layer}.{name}"
        if how == "sandwich":
            normed = self.node(f"{at}.normed", NodeKind.NORM, layer, "normed")
            self.edge(added, normed, EdgeKind.NORM)
            added = normed
        total = after
        if how == "post-norm":
            total = self.stream(f"{at}.sum", NodeKind.SUM, layer, "sum", 0.1)
            self.edge(total, after, EdgeKind.NORM)
        self.edge(added, total, EdgeKind.SUM)
        self.edge(before, total, skip)

    def closed(self, layer: int, before: str, after: str, how: str, liking: float) -> None:
        at = f"L{layer}"
        attn = self.node(f"{at}.attn_out", NodeKind.ATTN_OUT, layer, "attention", liking)
        ff = self.node(f"{at}.ff_out", NodeKind.FF_OUT, layer, "feed-fwd", liking)
        mid = self.stream(f"{at}.mid", NodeKind.MID, layer, "mid", liking)
        self.join(layer, attn, before, mid, how, "attn", EdgeKind.RESIDUAL_ATTN)
        self.join(layer, ff, mid, after, how, "ff", EdgeKind.RESIDUAL_FF)


def graph(
    layers: Sequence[int] = (14,),
    how: str = "sequential",
    detail: bool = True,
    embed: bool = False,
    **options: object,
) -> Flow:
    """A graph over these layers; the target rises in the stream as in the paper's example."""
    maker = Maker(**options)  # type: ignore[arg-type]
    for i, layer in enumerate(layers):
        rise = -0.2 + 1.2 * (i / len(layers)) ** 1.5
        if i == 0 or layers[i - 1] != layer - 1:
            maker.stream(f"L{layer}.in", NodeKind.RESIDUAL, layer, f"into {layer}", rise)
        if i == 0 and embed:
            maker.node("embed", NodeKind.EMBED, layer, "embedding")
            maker.edge("embed", f"L{layer}.in", EdgeKind.SUM)
        after = f"L{layer + 1}.in"
        maker.stream(
            after, NodeKind.RESIDUAL, layer + 1, f"into {layer + 1}", rise + 1.2 / len(layers)
        )
        maker.block(layer, f"L{layer}.in", after, how, detail, rise)
    words = {word: i for i, word in enumerate(maker.words)}
    candidates = tuple(Word(words.get(word, 900 + i), word) for i, word in enumerate(CANDIDATES))
    tokens = tuple(maker.prompt)
    return Flow(
        run=Run(SOURCE, "".join(tokens).replace("·", " "), tokens, len(tokens) - 1),
        target=candidates[0],
        candidates=candidates,
        d_vocab=D_VOCAB,
        layers=tuple(layers),
        nodes=tuple(maker.nodes),
        edges=tuple(maker.edges),
        options={"heads": maker.heads, "memories": maker.memories, "neurons": list(maker.neurons)},
    )


def difference(seed: int = 0) -> Flow:
    """The same graph under two prompts."""
    one, two = graph(seed=seed), graph(seed=seed + 1)
    nodes = [
        replace(n, other=o.projection, other_norm=o.norm)
        for n, o in zip(one.nodes, two.nodes[: len(one.nodes)], strict=True)
    ]
    edges = [
        replace(e, other_score=o.sign * o.score) for e, o in zip(one.edges, two.edges, strict=True)
    ]
    run = replace(one.run, prompt="The capital of France is the city of")
    return replace(one, nodes=tuple(nodes), edges=tuple(edges), other=run)


def speaking(seed: int) -> Flow:
    """A graph in which some heads, drawn at random, have the target high in their readings."""
    found, drawn = graph((3, 4), seed=seed, heads=6, neurons=(1, 1)), random.Random(seed)
    nodes = []
    for node in found.nodes:
        if node.kind == NodeKind.HEAD and node.projection is not None and drawn.random() < 0.6:
            places = tuple(Standing(drawn.randint(1, 200), 0.01) for _ in node.projection.places)
            node = replace(node, projection=replace(node.projection, places=places))
        nodes.append(node)
    return replace(found, nodes=tuple(nodes))
