"""The logit lens over all layers and positions: its time over that of the bare projection.

SmolLM2, a prompt of 40 tokens, one thread, CPU time, interleaved, the minimum of a few rounds. The
bare product is timed in chunks into a buffer that is made once. The lens does everything a person
gets to see: final norm, top tokens, probabilities, entropies, and a target's rank.
"""

import torch
from torch import Tensor

from benchmarks.vectors import CHUNK, seconds

ROUNDS = 5
PROMPT = (
    "The capital of Japan is the city of Tokyo, which lies on the eastern coast of the largest "
    "island. It is known for its gardens, its trains and its food, and it was once called"
)
TARGET = " Edo"


def product(X: Tensor, E: Tensor, scores: Tensor) -> None:
    for chunk in torch.split(X, CHUNK):
        torch.mm(chunk, E, out=scores[: len(chunk)])


def run() -> dict[str, float]:
    """`ratio`: the whole lens over the bare product of the same vectors with the embedding."""
    from lexray.model.model import Model

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = Model.from_pretrained("smollm2").view("raw")
        trace = model.trace(PROMPT, what=["residual", "logits"])
        stream = [trace.embed, *(trace[n].resid_post for n in trace.layers)]
        X = torch.cat(stream).float()
        E = model.space.writing.rows.T
        scores = torch.empty(CHUNK, E.shape[1])
        found = trace.lens(target=TARGET, first=True)
        expected = trace.logits.float().softmax(-1).amax(-1)
        torch.testing.assert_close(found.top_probs[-1, :, 0], expected, rtol=0, atol=1e-3)
        rounds = [
            (
                seconds(lambda: product(X, E, scores)),
                seconds(lambda: trace.lens(target=TARGET, first=True)),
            )
            for _ in range(ROUNDS)
        ]
    finally:
        torch.set_num_threads(threads)
    bare, ours = (min(column) for column in zip(*rounds, strict=True))
    return {"ratio": ours / bare, "vectors": float(len(X)), "seconds": ours}


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
