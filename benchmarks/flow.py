"""The flow graph of all layers at GPT-2 medium's size, against reading each node by itself.

Random weights, 24 layers, 50,257 tokens, the paper's counts of heads, memories and neurons; one
thread, CPU time, interleaved, the minimum of a few rounds. The original multiplies each node's
vector with the embedding about three times (for its tokens, for the target's rank and for its
entropy): 434 products per layer. That is timed on one layer's vectors, and our whole graph, with
both ends of every reading and ten words of interest, is divided by the number of its layers; once
more with the static readings of parameters, which the original has not and which need products of
their own. The answers are compared before a time counts.
"""

import torch
from torch import Tensor

from benchmarks.vectors import seconds
from lexray.flow.build import choose_all, draft
from lexray.flow.graph import FlowGraph
from lexray.flow.options import Options
from lexray.model import Model
from lexray.trace import Trace

LAYERS = 24
ROUNDS = 2
PROJECTIONS = 434
"""What the original does per layer."""
IDS = [464, 3139, 286, 2869, 318, 262, 1748, 286]
K = 10


def gpt2_medium() -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    module = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=LAYERS, n_head=16)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return Model.from_module(module)


class OneByOne:
    """Each vector by itself: final norm, product, softmax, and what is asked of it."""

    def __init__(self, model: Model, target: int) -> None:
        self.norm, self.checkpoint = model.architecture.final_norm, model.checkpoint
        self.E, self.target = model.W_U, target

    def __call__(self, x: Tensor, question: int) -> tuple[Tensor, ...]:
        assert self.norm is not None
        logits = self.norm(x, self.checkpoint) @ self.E
        probs = logits.softmax(-1)
        if question == 0:
            return probs.topk(K), logits.topk(K, largest=False)  # type: ignore[return-value]
        if question == 1:
            rank = (logits.argsort(descending=True) == self.target).nonzero()[0, 0]
            return rank, probs[self.target]
        return (-(probs * probs.log()).nansum(),)


def written(trace: Trace, layer: int) -> dict[str, Tensor]:
    """The vectors of one layer's nodes that are read through the final norm."""
    options = Options()
    shown = choose_all(trace, [layer], len(IDS) - 1, 0, options)
    sketches = draft(trace, len(IDS) - 1, shown, options).sketches.values()
    return {s.id: s.vector for s in sketches if s.side == "writing"}


def compare_answers(graph: FlowGraph, vectors: dict[str, Tensor], read: OneByOne) -> None:
    for id, x in vectors.items():
        node = graph[id]
        place = graph.place(node)
        assert node.projection is not None
        assert place is not None
        top, _ = read(x, 0)
        ours = torch.tensor([word.weight for word in node.projection.top])
        torch.testing.assert_close(ours, top.values, rtol=1e-3, atol=1e-6)  # type: ignore[attr-defined]
        assert abs(place.rank - int(read(x, 1)[0])) <= 5, id
        assert abs(node.projection.entropy - float(read(x, 2)[0])) < 1e-2, id


def run() -> dict[str, float]:
    """`layer_ratio`: one layer node by node over one layer of ours, `static_layer_ratio` the same
    with static readings; `forward_ratio`: all of ours over the bare forward pass."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = gpt2_medium()
        trace = model.trace(IDS)
        graph = trace.flow()
        vectors, read = written(trace, LAYERS // 2), OneByOne(model, graph.target.id)
        compare_answers(graph, vectors, read)
        rows = list(vectors.values())
        tasks = [(rows[i // 3 % len(rows)], i % 3) for i in range(PROJECTIONS)]
        module, ids = model.module(), torch.tensor([IDS])
        with torch.no_grad():
            rounds = [
                (
                    seconds(lambda: [read(x, question) for x, question in tasks]),
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
