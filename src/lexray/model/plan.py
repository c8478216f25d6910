"""What a sweep over all heads will cost here, from headers and a second of arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter, thread_time
from typing import Any

import torch
from torch import Tensor

from lexray.families import Attention
from lexray.families.walk import tensor_names
from lexray.model.need import plan_memory
from lexray.model.weights import Weights
from lexray.result.format import show_bytes, show_flop, show_time
from lexray.result.table import Result, Table
from lexray.space.topk.arithmetic import full_precision
from lexray.space.topk.products import rows_by
from lexray.space.topk.sides import Tiling
from lexray.space.topk.sieve import multiply, segment
from lexray.space.topk.whole_products import whole_products

TYPICAL, STANDARDISED = 0.01, 0.05
"""Roughly the share of a head's token pairs that has to be multiplied, from some heads of SmolLM2;
scores have shorter tails where they are standardised."""
BOUNDING, BOUNDING_STANDARDISED = 2000, 4100
"""What finding bounds, sorting and other passes over both factors cost, beside a product with a
basis: operations for each number of a factor. By the standard view two bounds are often tried."""
CALIBRATION, GLANCE = 0.5, 0.1
"""Seconds for each of the two products that are timed; where nobody asked for a plan."""
NOTICED = 1e12
"""Operations of a sweep that is long enough for its plan to be held against it."""
SPREADS = 4
"""How often the embedding is passed over for the standard view's spreads (Q, K, V, O)."""


@dataclass(frozen=True)
class Speed:
    """What this machine does in a second."""

    multiply: float
    """Floating-point operations, in products with the embedding."""
    search: float
    """The same in tiles of a head's matrix, looked at included."""
    cores: int = 1
    """How many do that side by side, each at this speed when nothing else runs."""
    plain: float | None = None
    """Floating-point operations in all other products; None: as many."""

    @property
    def others(self) -> float:
        return self.plain or self.multiply


@dataclass(frozen=True)
class SweepPlan(Result):
    """The cost of reading every head: the answer of `lexray heads --plan`."""

    model: str
    view: str
    matrices: int
    bytes: int
    memory: int
    factors: float
    """Floating-point operations for the factors of all heads, and for what the view needs."""
    bounds: float
    """The same for bounds and all else that is done whatever is ruled out."""
    dense: float
    """Those of all token pairs of all heads, if none could be ruled out."""
    speed: Speed
    typical: float = TYPICAL
    """The share of token pairs that is expected to need it."""

    def seconds(self, share: float) -> float:
        """If that share of all token pairs has to be multiplied, and nothing else runs."""
        fixed = self.factors / self.speed.multiply + self.bounds / self.speed.others
        return (fixed + share * self.dense / self.speed.search) / self.speed.cores

    def tables(self) -> list[Table]:
        work = {
            f"if {self.typical:.0%} of all pairs need it, as in SmolLM2": self.typical,
            "at worst, if all do": 1.0,
        }
        rows: list[tuple[str, str]] = [
            ("matrices", f"{self.matrices:,}, VO and QK of every head"),
            ("read", show_bytes(self.bytes)),
            ("memory", f"{show_bytes(self.memory)} at most, beside Python and torch"),
            ("products with the embedding", f"{show_flop(self.factors)}"),
            ("bounds", f"as long as {show_flop(self.bounds)} of other products"),
            ("all token pairs", f"{show_flop(self.dense)}"),
            ("a core here, with the embedding", f"{show_flop(self.speed.multiply)}/s"),
            ("a core here, other products", f"{show_flop(self.speed.others)}/s"),
            ("a core here, token pairs", f"{show_flop(self.speed.search)}/s"),
            ("cores", f"{self.speed.cores}, if nothing else needs them"),
        ]
        rows += [(f"time {name}", show_time(self.seconds(share))) for name, share in work.items()]
        return [Table(("", self.model), tuple(rows), note=self.view)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "view": self.view,
            "matrices": self.matrices,
            "bytes": self.bytes,
            "memory": self.memory,
            "factor_flop": self.factors,
            "bound_flop": self.bounds,
            "dense_flop": self.dense,
            "multiply_flop_per_second": self.speed.multiply,
            "other_flop_per_second": self.speed.others,
            "search_flop_per_second": self.speed.search,
            "cores": self.speed.cores,
            "seconds": self.seconds(self.typical),
            "worst_seconds": self.seconds(1.0),
        }


def plan_heads(
    weights: Weights, *, speed: Speed | None = None, calibration: float = CALIBRATION
) -> SweepPlan:
    """Looks at headers only; `speed` is measured unless given, in twice so many seconds.

    >>> plan_heads(model).matrices
    """
    a, c = weights.architecture, weights.checkpoint
    e, d = c.info(a.unembed).shape[0], a.d_model
    attentions = _attentions(weights)
    names = {a.embed, a.unembed} | {n for spec in attentions for n in tensor_names(spec)}
    factors, bounds, dense, widest = 0.0, 0.0, 0.0, 1
    standardised = weights.options.standardised
    passes = BOUNDING_STANDARDISED if standardised else BOUNDING
    for spec in attentions:
        queries, keys, values = spec.q, spec.k, spec.v
        columns = sum(len(h.starts) * h.d_head for h in (queries, keys, values))
        columns += len(queries.starts) * values.d_head
        factors += 2.0 * e * d * columns
        dense += 2.0 * e * e * len(queries.starts) * (queries.d_head + values.d_head)
        for width in (queries.d_head, values.d_head):
            bounds += 1.0 * e * width * (4 * width + passes) * len(queries.starts)
            widest = max(widest, width)
    if standardised:
        factors += SPREADS * 2.0 * e * d * d
    speed = speed or measure(d, widest, weights.device, calibration)
    return SweepPlan(
        weights.name,
        str(weights.options),
        2 * sum(len(spec.q.starts) for spec in attentions),
        sum(c.size(name) for name in names if name in c.names()),
        plan_memory(weights, attentions, e, speed.cores),
        factors,
        bounds,
        dense,
        speed,
        STANDARDISED if standardised else TYPICAL,
    )


def plan_noticed(weights: Weights) -> SweepPlan | None:
    """The plan of a sweep that is about to begin; None for one that takes a few seconds."""
    plan = plan_heads(weights, speed=Speed(1.0, 1.0))
    if plan.factors + plan.bounds < NOTICED:
        return None
    return plan_heads(weights, calibration=GLANCE)


def _attentions(weights: Weights) -> list[Attention]:
    """Of all layers of all stacks, cross-attention included."""
    blocks = [block for stack in weights.stacks for block in stack.architecture.blocks]
    return [part for block in blocks for part in (block.attention, block.cross) if part is not None]


def measure(
    d_model: int, width: int, device: torch.device, calibration: float = CALIBRATION
) -> Speed:
    """Both kinds of product, timed for so many seconds each: those with the embedding half of it in
    the way that all other products are made; tiles in bytes where there are such.

    On a processor that is the time of one core, whatever else runs on it: cores work side by side.
    """
    tiling = Tiling.suited_to(device)
    rows = torch.randn(tiling.rows, width, device=device)
    cols = torch.randn(tiling.cols, width, device=device)
    tile = torch.empty(len(rows), len(cols), device=device)
    if whole := whole_products(device, width):
        most = whole.most
        rows, cols = (X.mul(20).round().clamp(-most, most) for X in (rows, cols))
        rows, cols = whole.rows(rows), whole.cols(cols)
    block = torch.randn(2048, d_model, device=device)
    matrices = torch.randn(8 * width, d_model, device=device)

    def look() -> Tensor:
        parts = multiply(rows, cols, tile).view(len(rows), -1, segment(tiling.cols))
        return (parts.amax(2) > 2**30).nonzero()

    cores = torch.get_num_threads() if device.type == "cpu" else 1
    clock = thread_time if device.type == "cpu" else perf_counter
    with full_precision(), _on_one_core(device):
        search = _rate(look, 2.0 * tiling.entries * width, clock, calibration)
        flop = 2.0 * block.numel() * len(matrices)
        product, plain = (
            _rate(work, flop, clock, calibration / 2)
            for work in (lambda: rows_by(block, matrices), lambda: block @ matrices.T)
        )
    return Speed(product, search, cores, plain)


@contextmanager
def _on_one_core(device: torch.device) -> Iterator[None]:
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rate(
    work: Callable[[], Tensor], flop: float, clock: Callable[[], float], seconds: float
) -> float:
    """Operations a second, the median; asking for a number waits for the device."""
    work()[:1].sum().item()
    start, times = clock(), [clock()]
    while times[-1] - start < seconds:
        work()[:1].sum().item()
        times.append(clock())
    return flop / median(end - begin for begin, end in pairwise(times))
