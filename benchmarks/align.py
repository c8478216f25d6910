"""Alignment of layers by kernels, against the projected way: project to the vocabulary, correlate.

Random weights of two sizes, the FF keys of all layers of two models. Both ways get the same
vectors, on one thread, in CPU time, interleaved, the minimum of a few rounds, and their S are
compared before a time counts. At `demo`'s size all is timed as it is. At GPT-2 small's, where the
projected way takes an hour, both are timed on one layer of either model, part by part (what is done
once, for each layer, for each two layers), and the parts are added up for 12 layers. For the
projected way that is kind: it would need 15 GB to project every layer only once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.pairs import status_mb
from lexray.space.correlation import Kernel, absolute_sum, kernel
from lexray.space.side import Side

ROUNDS = 3
SHORT_ROUNDS = 9
LARGEST_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Size:
    layers: int
    vectors: int
    width: int
    vocabulary: int


DEMO = Size(layers=4, vectors=640, width=160, vocabulary=4500)
GPT2 = Size(layers=12, vectors=3072, width=768, vocabulary=50257)


@dataclass
class Parts:
    """Seconds for what is done once, for a layer of each model, and for two layers."""

    once: float = 0.0
    layer: float = 0.0
    pair: float = 0.0

    def total(self, layers: int) -> float:
        return self.once + layers * self.layer + layers**2 * self.pair


def seconds(work: Callable[[], object]) -> tuple[float, object]:
    start = time.process_time()
    done = work()
    return time.process_time() - start, done


def projected(X: Tensor, E: Tensor) -> Tensor:
    """The projections of the rows of X, ready for products that are Pearson correlations."""
    P = X @ E.T
    P -= P.mean(1, keepdim=True)
    P /= P.norm(dim=1, keepdim=True)
    return P


def mean_correlation(P: Tensor, Q: Tensor) -> float:
    return float((P @ Q.T).abs_().mean())


def project_way(X: Tensor, Y: Tensor, E: Tensor, F: Tensor) -> tuple[Parts, float]:
    a, P = seconds(lambda: projected(X, E))
    b, Q = seconds(lambda: projected(Y, F))
    assert isinstance(P, Tensor)
    assert isinstance(Q, Tensor)
    pair, S = seconds(lambda: mean_correlation(P, Q))
    assert isinstance(S, float)
    return Parts(layer=a + b, pair=pair), S


def kernel_way(X: Tensor, Y: Tensor, E: Tensor, F: Tensor) -> tuple[Parts, float]:
    once, k = seconds(lambda: kernel(Side(E), Side(F)))
    assert isinstance(k, Kernel)
    a, U = seconds(lambda: k.carry(k.left.units(X)))
    b, V = seconds(lambda: k.right.units(Y))
    assert isinstance(U, Tensor)
    assert isinstance(V, Tensor)
    pair, total = seconds(lambda: absolute_sum(U, V))
    assert isinstance(total, float)
    return Parts(once, a + b, pair), total / (len(X) * len(Y))


def weights(size: Size, seed: int) -> tuple[Tensor, Tensor]:
    """Vectors of one layer, and an embedding with a mean and directions of unequal size."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0, -2, size.width).exp()
    E = torch.randn(size.vocabulary, size.width, generator=generator) * spread
    E += 0.5 * torch.randn(1, size.width, generator=generator)
    return torch.randn(size.vectors, size.width, generator=generator), E


def best(rounds: list[Parts]) -> Parts:
    return Parts(*(min(getattr(r, name) for r in rounds) for name in ("once", "layer", "pair")))


def ratios(size: Size) -> dict[str, float]:
    """How many times faster for a whole model, and for one layer of each with all that it needs."""
    (X, E), (Y, F) = weights(size, 1), weights(size, 2)
    ours, theirs, difference = [], [], 0.0
    for _ in range(ROUNDS):
        mine, S = kernel_way(X, Y, E, F)
        plain, T = project_way(X, Y, E, F)
        difference = max(difference, abs(S - T))
        ours.append(mine)
        theirs.append(plain)
    if difference > LARGEST_DIFFERENCE:
        raise AssertionError(f"the two ways differ by {difference}")
    fast, slow = best(ours), best(theirs)
    return {
        "ratio": slow.total(size.layers) / fast.total(size.layers),
        "pair_only_ratio": slow.pair / fast.pair,
        "layer_pair_ratio": slow.total(1) / fast.total(1),
        "seconds": fast.total(size.layers),
        "difference": difference,
    }


def peak_mb(size: Size, way: Callable[[Tensor, Tensor, Tensor, Tensor], object]) -> float:
    """Memory at the peak, for a layer of each model, beside weights and embeddings (Linux)."""
    (X, E), (Y, F) = weights(size, 1), weights(size, 2)
    Path("/proc/self/clear_refs").write_text("5")
    before = status_mb("VmRSS")
    way(X, Y, E, F)
    return status_mb("VmHWM") - before


def whole_demo() -> float:
    """The same ratio with nothing added up: four layers of keys, each way from start to end."""
    size = DEMO
    embeddings = [weights(size, seed)[1] for seed in (1, 2)]
    A, B = ([weights(size, s + i)[0] for i in range(size.layers)] for s in (10, 20))

    def ours() -> list[float]:
        k = kernel(*(Side(E) for E in embeddings))
        U = [k.carry(k.left.units(X)) for X in A]
        V = [k.right.units(Y) for Y in B]
        return [absolute_sum(u, v) / (len(u) * len(v)) for u in U for v in V]

    def theirs() -> list[float]:
        P, Q = ([projected(X, E) for X in side] for side, E in zip((A, B), embeddings, strict=True))
        return [mean_correlation(p, q) for p in P for q in Q]

    difference = max(abs(s - t) for s, t in zip(ours(), theirs(), strict=True))
    if difference > LARGEST_DIFFERENCE:
        raise AssertionError(f"the two ways differ by {difference}")
    times = [(seconds(ours)[0], seconds(theirs)[0]) for _ in range(SHORT_ROUNDS)]
    fast, slow = (min(column) for column in zip(*times, strict=True))
    return slow / fast


def run() -> dict[str, float]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = {"peak_mb": peak_mb(GPT2, kernel_way)}
        figures["projected_peak_mb"] = peak_mb(GPT2, project_way)
        figures["demo_ratio"] = whole_demo()
        return figures | {f"gpt2_{name}": value for name, value in ratios(GPT2).items()}
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    print(f"align: {GPT2} and {DEMO}")
    for name, value in run().items():
        print(f"{name:<24}{value:>12.4g}")
