"""Large vocabularies: the pair engine on the shapes of Qwen and Gemma heads, against tiles.

    widened   SmolLM2's heads side by side, four for Gemma's width of 256, their tokens repeated
              with a tenth of noise up to the vocabulary's size: real spectra at a size that no
              model here has
    random    Gaussian factors: nothing to prune

The honest way (see `pairs`) is timed on a slice, as its time per entry does not depend on the head;
it is told the answer's threshold beforehand, or what a slice needs to find one would be scaled up.
CPU time, one thread, in one process.
"""

import time
from statistics import median

import torch
from torch import Tensor

from benchmarks.pairs import K, honest_top_pairs, seconds
from lexray.space import top_pairs

SIDE = 8192
NOISE = 0.1
HEADS = ((3, 1), (12, 4), (20, 2), (26, 7))


def widen(view: str, layer: int, first: int, width: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Factors of `width` coordinates for so many tokens."""
    from lexray.model.model import Model

    heads = Model.from_pretrained("smollm2").view(view).layers[layer].heads
    some = [heads[(first + i) % len(heads)].vo.factors() for i in range(width // 64)]
    generator = torch.Generator().manual_seed(layer)

    def grow(parts: list[Tensor]) -> Tensor:
        X = torch.cat(parts, 1)
        X = X.repeat(-(-tokens // len(X)), 1)[:tokens]
        noise = torch.randn(X.shape, generator=generator) * X.std(0) * NOISE
        return X.add_(noise)

    return grow([A for A, _ in some]), grow([B for _, B in some])


def draw(width: int, tokens: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    A, B = (torch.randn(tokens, width, generator=generator) for _ in range(2))
    return A, B


def honest_seconds(A: Tensor, B: Tensor, threshold: float) -> float:
    """Scaled from a slice: the best of two."""
    slices = A[:SIDE].contiguous(), B[:SIDE].contiguous()
    each = min(seconds(lambda: honest_top_pairs(*slices, K, threshold)) for _ in range(2))
    return each * (len(A) / len(slices[0])) * (len(B) / len(slices[1]))


def compare(A: Tensor, B: Tensor) -> tuple[float, float, float]:
    """The ratio, our seconds, the share that was multiplied."""
    start = time.process_time()
    found = top_pairs(A, B, K)
    ours = time.process_time() - start
    honest = honest_seconds(A, B, found.values[-1].item())
    return honest / ours, ours, found.work


def double(layer: int, head: int) -> float:
    """How many times as long a head that prunes takes for twice the vocabulary, the best of three
    each."""

    def least(tokens: int) -> float:
        A, B = widen("raw", layer, head, 64, tokens)
        return min(seconds(lambda: top_pairs(A, B, K)) for _ in range(3))

    return least(131_072) / least(65_536)


def run(tokens: int = 131_072, views: tuple[str, ...] = ("raw", "standard")) -> dict[str, float]:
    """Ratios by shape, view and kind, and what doubling the vocabulary costs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    try:
        for shape, width, size in (("qwen", 64, 151_665), ("gemma", 256, tokens)):
            for view in views:
                found = [compare(*widen(view, *head, width, size)) for head in HEADS]
                ratios = [ratio for ratio, _, _ in found]
                figures[f"{shape}_{view}_median_ratio"] = median(ratios)
                figures[f"{shape}_{view}_worst_ratio"] = min(ratios)
                figures[f"{shape}_{view}_median_seconds"] = median(s for _, s, _ in found)
            figures[f"{shape}_random_ratio"] = compare(*draw(width, tokens))[0]
        figures["doubling"] = max(double(*head) for head in HEADS[1:])
    finally:
        torch.set_num_threads(threads)
    return figures


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<32}{value:>12.4g}")
