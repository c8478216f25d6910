"""Exact top-k token pairs: lexray's engine against two ways that build the whole product.

    honest   tiles of 512×1024, row maxima first, a closer look only at rows above the threshold
    flat     the full product and one `topk` over it, as today's toolkits do; timed on 16384×16384
             entries and scaled to the head's size (its time per entry grows with size, if anything)

All in one process on one thread, in CPU time, interleaved, the minimum of a few rounds. Answers
are compared index by index before a time counts. The honest way takes the same time for any head,
so it is timed on 12 heads and its median serves for all of them.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from lexray.space import TopPairs, top_pairs
from lexray.space.topk.arithmetic import exact_values

Head = tuple[str, Tensor, Tensor]

K = 50
ROUNDS = 3
VOCABULARY = 49152
WIDTH = 64
BASELINE_HEADS = 12
FLAT_SIDE = 16384


def honest_top_pairs(
    A: Tensor, B: Tensor, k: int, threshold: float = -torch.inf
) -> tuple[Tensor, Tensor]:
    """The k best pairs by tiles, kept with some to spare in float32, ordered in float64; a
    `threshold` that is known beforehand spares it the search for one."""
    spare = k + 64
    buffer = torch.empty(512 * 1024)
    scores, flat = torch.empty(0), torch.empty(0, dtype=torch.int64)
    for i in range(0, len(A), 512):
        rows = A[i : i + 512]
        for j in range(0, len(B), 1024):
            cols = B[j : j + 1024]
            tile = buffer[: len(rows) * len(cols)].view(len(rows), len(cols))
            torch.mm(rows, cols.T, out=tile)
            hit = (tile.amax(1) >= threshold).nonzero()[:, 0]
            if len(hit) == 0:
                continue
            r, c = (tile[hit] >= threshold).nonzero(as_tuple=True)
            scores = torch.cat([scores, tile[hit[r], c]])
            flat = torch.cat([flat, (i + hit[r]) * len(B) + j + c])
            best = scores.topk(min(spare, len(scores)))
            scores, flat = best.values, flat[best.indices]
            threshold = max(threshold, scores[-1].item() if len(scores) == spare else -torch.inf)
    flat = flat.sort().values
    values = exact_values(A, B, flat // len(B), flat % len(B))
    flat = flat[values.argsort(descending=True, stable=True)][:k]
    return flat // len(B), flat % len(B)


def flat_top_pairs(A: Tensor, B: Tensor, k: int) -> Tensor:
    return (A @ B.T).flatten().topk(k).indices


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def assert_identical(name: str, ours: TopPairs, theirs: tuple[Tensor, Tensor]) -> None:
    if not (torch.equal(ours.rows, theirs[0]) and torch.equal(ours.cols, theirs[1])):
        raise AssertionError(f"{name}: the two ways disagree")


def ratio(name: str, A: Tensor, B: Tensor, rounds: int = ROUNDS) -> float:
    """How many times faster than the honest way, on one pair of factors."""
    assert_identical(name, top_pairs(A, B, K), honest_top_pairs(A, B, K))
    times = [
        (seconds(lambda: top_pairs(A, B, K)), seconds(lambda: honest_top_pairs(A, B, K)))
        for _ in range(rounds)
    ]
    ours, theirs = (min(column) for column in zip(*times, strict=True))
    return theirs / ours


def flat_seconds(A: Tensor, B: Tensor) -> float:
    """The time of the full product and a flat topk, scaled from a slice."""
    slices = A[:FLAT_SIDE], B[:FLAT_SIDE]
    entry = min(seconds(lambda: flat_top_pairs(*slices, K)) for _ in range(ROUNDS))
    return entry * len(A) * len(B) / (len(slices[0]) * len(slices[1]))


def real_heads(heads: Iterable[Head], count: int) -> dict[str, float]:
    """Ratios over a model's heads; `count` of them are expected."""
    spacing = max(1, count // BASELINE_HEADS)
    ours: list[float] = []
    works: list[float] = []
    honest: list[float] = []
    flat = 0.0
    for index, (name, A, B) in enumerate(heads):
        start = time.process_time()
        found = top_pairs(A, B, K)
        first = time.process_time() - start
        works.append(found.work)
        if index % spacing == spacing // 2:
            assert_identical(name, found, honest_top_pairs(A, B, K))
            honest.append(seconds(lambda A=A, B=B: honest_top_pairs(A, B, K)))
        flat = flat or flat_seconds(A, B)
        ours.append(min(first, seconds(lambda A=A, B=B: top_pairs(A, B, K))))
    baseline = median(honest)
    return {
        "median_ratio": baseline / median(ours),
        "sum_ratio": baseline * len(ours) / sum(ours),
        "worst_ratio": baseline / max(ours),
        "flat_topk_ratio": flat / median(ours),
        "median_work": median(works),
        "median_ms": 1000 * median(ours),
        "honest_ms": 1000 * baseline,
        "heads": float(len(ours)),
    }


def heavy_tailed(seed: int) -> tuple[Tensor, Tensor]:
    """Factors like a head's: tokens of log-normal size, a decaying spectrum, correlated sides."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tokens = normal(VOCABULARY, WIDTH) * (0.4 * normal(VOCABULARY, 1)).exp()
    spectrum = torch.linspace(0, -2, WIDTH).exp()[:, None]
    left, right = (normal(WIDTH, WIDTH) * spectrum for _ in range(2))
    return tokens @ left, (tokens + 0.5 * normal(VOCABULARY, WIDTH)) @ (0.5 * left + right)


def with_opposite_means(seed: int) -> tuple[Tensor, Tensor]:
    """The hard case: a large common mean that makes every product negative."""
    A, B = heavy_tailed(seed)
    mean = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    return A + 6 * mean, B - 6 * mean


def gaussian(seed: int) -> tuple[Tensor, Tensor]:
    """Nothing to prune."""
    generator = torch.Generator().manual_seed(seed)
    A, B = (torch.randn(VOCABULARY, WIDTH, generator=generator) for _ in range(2))
    return A, B


def peak_mb(A: Tensor, B: Tensor) -> float:
    """Memory at the peak of one search, its factors included (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status_mb("VmRSS")
    top_pairs(A, B, K)
    factors = sum(X.numel() * X.element_size() for X in (A, B)) / 2**20
    return status_mb("VmHWM") - before + factors


def status_mb(field: str) -> float:
    """A line of this process's memory (Linux): VmRSS now, VmHWM at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def run(heads: Iterable[Head] | None = None, count: int = 540) -> dict[str, float]:
    """All figures; those of a model's heads only if the heads are given."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = {"peak_mb": max(peak_mb(*heavy_tailed(1)), peak_mb(*with_opposite_means(1)))}
        figures["heavy_tailed_ratio"] = ratio("heavy-tailed", *heavy_tailed(1))
        figures["opposite_means_ratio"] = ratio("opposite means", *with_opposite_means(1))
        figures["gaussian_ratio"] = ratio("Gaussian", *gaussian(1))
        if heads is not None:
            figures |= real_heads(heads, count)
        return figures
    finally:
        torch.set_num_threads(threads)


def table(figures: dict[str, float], title: str) -> str:
    lines: Sequence[str] = [f"{name:<24}{value:>12.4g}" for name, value in figures.items()]
    return "\n".join([title, *lines])


if __name__ == "__main__":
    print(table(run(), f"pairs: e = {VOCABULARY}, r = {WIDTH}, k = {K}"))
