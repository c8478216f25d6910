"""The flow graph of all layers at GPT-2 medium's size, against reading each node by itself.

Random weights, 24 layers, 50,257 tokens, the paper's counts of heads, memories and neurons; two
threads, the time one waits, interleaved, the minimum of a few rounds. The original multiplies each
node's vector with the embedding about three times (for its label, for its tokens and the target's
rank, and for the entropy of what it adds): 434 products per layer. That is timed on one layer's
vectors.
Our whole graph, with both ends of every reading and ten words of interest, is divided by the number
of its layers; once more with the static readings of parameters, which the original has not and
which need products of their own. The answers are compared before a time counts.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lexray.flow.build.build import draw_draft
from lexray.flow.graph import FlowGraph
from lexray.flow.options import BlockOptions
from lexray.model.model import Model
from lexray.trace.attribute.step import Moment
from lexray.trace.trace import Trace

LAYERS = 24
ROUNDS = 3
PROJECTIONS = 434
"""What the original does per layer."""
IDS = [464, 3139, 286, 2869, 318, 262, 1748, 286]


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def gpt2_medium() -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    module = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=LAYERS, n_head=16)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return Model.from_module(module).view("raw")


class OneByOne:
    """Each vector by itself: final norm, product, softmax, and then what is asked of it."""

    def __init__(self, model: Model, target: int) -> None:
        self.norm, self.checkpoint = model.architecture.final_norm, model.checkpoint
        self.E, self.target = model.W_U, target

    def probabilities(self, x: Tensor) -> Tensor:
        assert self.norm is not None
        return (self.norm(x, self.checkpoint) @ self.E).softmax(-1)

    def label(self, x: Tensor) -> Tensor:
        return self.probabilities(x).topk(1).indices

    def hover(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
        """The tokens at both ends, and the target's rank."""
        probs = self.probabilities(x)
        top, bottom = (probs.topk(5, largest=end) for end in (True, False))
        return top.values, bottom.indices, int((probs > probs[self.target]).sum())

    def entropy(self, x: Tensor) -> float:
        probs = self.probabilities(x).numpy()
        present = probs[probs != 0]
        return -float((present * np.log(present)).sum())


def written(trace: Trace, layer: int) -> dict[str, Tensor]:
    """The vectors of one layer's nodes that are read through the final norm."""
    draft = draw_draft(Moment.of(trace, -1), [layer], 0, BlockOptions())
    return {s.id: s.vector for s in draft.sketches.values() if s.side == "writing"}


def compare_answers(graph: FlowGraph, vectors: dict[str, Tensor], read: OneByOne) -> None:
    for id, x in vectors.items():
        node = graph[id]
        place = graph.place(node)
        assert node.projection is not None
        assert place is not None
        top, _, rank = read.hover(x)
        ours = torch.tensor([word.weight for word in node.projection.top[:5]])
        torch.testing.assert_close(ours, top, rtol=1e-3, atol=1e-7)
        assert node.projection.top[0].id == int(read.label(x))
        assert abs(place.rank - 1 - rank) <= 5, id
        assert abs(node.projection.entropy - read.entropy(x)) < 1e-2, id


def run() -> dict[str, float]:
    """`layer_ratio`: one layer node by node over one layer of ours, `static_layer_ratio` the same
    with static readings; `forward_ratio`: all of ours over the bare forward pass."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = gpt2_medium()
        trace = model.trace(IDS)
        graph = trace.flow()
        vectors, read = written(trace, LAYERS // 2), OneByOne(model, graph.target.id)
        compare_answers(graph, vectors, read)
        rows = list(vectors.values())
        ways = (read.label, read.hover, read.entropy)
        tasks = [(ways[i % 3], rows[i // 3 % len(rows)]) for i in range(PROJECTIONS)]
        module, ids = model.module(), torch.tensor([IDS])
        with torch.no_grad():
            rounds = [
                (
                    seconds(lambda: [way(x) for way, x in tasks]),
                    seconds(trace.flow),
                    seconds(lambda: trace.flow(static=True)),
                    seconds(lambda: module(ids)),
                    seconds(lambda: model.trace(IDS)),
                )
                for _ in range(ROUNDS)
            ]
    finally:
        torch.set_num_threads(threads)
    theirs, ours, static, forward, recorded = (min(column) for column in zip(*rounds, strict=True))
    return {
        "layer_ratio": theirs / (ours / LAYERS),
        "static_layer_ratio": theirs / (static / LAYERS),
        "seconds": ours,
        "nodes": float(len(graph.nodes)),
        "peer_layer_seconds": theirs,
        "forward_ratio": ours / forward,
        "trace_ratio": recorded / forward,
    }


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
