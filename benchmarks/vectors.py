"""Top and bottom tokens of many vectors: the engine's time over that of the bare product.

One process, CPU time of one thread, interleaved, the minimum of a few rounds. The product is timed
in chunks into a buffer that is made once, whose rows are aligned as the engine's are (unaligned
rows make the product slower); `topk` at both ends is shown beside it. The answers are compared
before a time counts.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from lexray.space import top_vectors

K = 100
ROUNDS = 3
VECTORS, D_MODEL, VOCABULARY = 1920, 1024, 50257
CHUNK = 320


def product(X: Tensor, E: Tensor, scores: Tensor) -> None:
    for chunk in torch.split(X, CHUNK):
        torch.mm(chunk, E, out=scores[: len(chunk)])


def product_and_topk(X: Tensor, E: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """What one would write by hand: `topk` of every chunk, once for either end."""
    ends = []
    for chunk in torch.split(X, CHUNK):
        torch.mm(chunk, E, out=scores[: len(chunk)])
        ends.append([scores[: len(chunk)].topk(K, largest=end).values for end in (True, False)])
    top, bottom = (torch.cat(end) for end in zip(*ends, strict=True))
    return top, bottom


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def run() -> dict[str, float]:
    """`ratio`: engine over bare product; `topk_ratio`: plain `topk` at both ends over it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        generator = torch.Generator().manual_seed(1)
        X = torch.randn(VECTORS, D_MODEL, generator=generator)
        E = torch.randn(D_MODEL, VOCABULARY, generator=generator)
        scores = torch.empty(CHUNK, -(-VOCABULARY // 64) * 64)[:, :VOCABULARY]
        found, (top, bottom) = top_vectors(X, E, K), product_and_topk(X, E, scores)
        torch.testing.assert_close(found.top_values, top, rtol=0, atol=1e-3)
        torch.testing.assert_close(found.bottom_values, bottom, rtol=0, atol=1e-3)
        rounds = [
            (
                seconds(lambda: product(X, E, scores)),
                seconds(lambda: top_vectors(X, E, K)),
                seconds(lambda: product_and_topk(X, E, scores)),
            )
            for _ in range(ROUNDS)
        ]
    finally:
        torch.set_num_threads(threads)
    bare, ours, plain = (min(column) for column in zip(*rounds, strict=True))
    return {"ratio": ours / bare, "topk_ratio": plain / bare}


if __name__ == "__main__":
    print(f"vectors: N = {VECTORS}, d = {D_MODEL}, e = {VOCABULARY}, k = {K} at both ends")
    for name, value in run().items():
        print(f"{name:<24}{value:>12.4g}")
