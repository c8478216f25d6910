"""What an atlas will cost here, before it is begun: `lexray atlas --plan`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from lexray.atlas.options import AtlasOptions
from lexray.atlas.plan import Chunk, cost_of, count_lists, plan_chunks, plan_index
from lexray.model.plan import Speed, measure
from lexray.model.weights import Weights
from lexray.result.format import show_bytes, show_flop, show_time
from lexray.result.table import Result, Table

ENTRY = 3.4
"""Bytes of a token and its score in a list, as they are kept."""
INDEXED = 4.3
"""The same in the index."""
BEGIN = 3.5
"""Seconds until the first chunk: libraries, and what the standard view needs of a small model."""
EACH = {"vectors": 0.025, "heads": 0.12, "roles": 0.6, "relations": 1.4, "links": 0.9, "index": 0.4}
"""Seconds that a chunk takes whatever its size, on a core of 80 GFLOP/s."""
NOTICED = 1e12
"""Operations of an atlas that takes long enough for its plan to be held against it."""


@dataclass(frozen=True)
class AtlasPlan(Result):
    """The work of an atlas, job by job."""

    model: str
    workers: int
    chunks: dict[str, int]
    lists: int
    """Lists of tokens: a reader may have two."""
    flop: dict[str, float]
    """In operations of a product with the embedding."""
    size: float
    speed: Speed

    @property
    def seconds(self) -> float:
        """If every worker has a core for itself."""
        return BEGIN + sum(map(self.seconds_of, self.chunks)) / self.workers

    def seconds_of(self, job: str) -> float:
        """Of one core, for all chunks of a job."""
        return self.flop[job] / self.speed.others + EACH.get(job, 0.02) * self.chunks[job]

    def tables(self) -> list[Table]:
        rows = [
            (job, n, show_flop(self.flop[job]), show_time(self.seconds_of(job)))
            for job, n in self.chunks.items()
        ]
        total = sum(self.flop.values())
        rows.append(("all", sum(self.chunks.values()), show_flop(total), show_time(self.seconds)))
        note = (
            f"{self.lists:,} lists of tokens, about {show_bytes(self.size)} on disk · "
            f"{show_flop(self.speed.others)}/s a core here · the time of all is with "
            f"{self.workers} worker{'s' * (self.workers > 1)}, a core for each"
        )
        return [Table(("job", "chunks", "work", "time"), tuple(rows), f"{self.model}: plan", note)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "workers": self.workers,
            "lists": self.lists,
            "jobs": {job: {"chunks": n, "flop": self.flop[job]} for job, n in self.chunks.items()},
            "bytes": self.size,
            "flop_per_second": self.speed.others,
            "seconds": self.seconds,
        }


def plan_atlas(
    model: Weights, options: AtlasOptions, *, workers: int = 1, speed: Speed | None = None
) -> AtlasPlan:
    """Looks at headers, and multiplies for a second; `speed` is measured unless given."""
    reading = plan_chunks(model, options)
    every: list[Chunk] = [*reading, *plan_index(model, options, reading)]
    chunks: Counter[str] = Counter()
    flop: Counter[str] = Counter()
    for chunk in every:
        chunks[chunk.job] += 1
        flop[chunk.job] += cost_of(model, options, chunk)  # type: ignore[assignment]
    lists = sum(count_lists(model, c) for c in reading if c.job in ("vectors", "others"))
    size = lists * 2 * options.k * (ENTRY + INDEXED)
    speed = speed or measure(model.d_model, model.d_head, model.device)
    return AtlasPlan(model.name, workers, dict(chunks), lists, dict(flop), size, speed)


def plan_noticed(model: Weights, options: AtlasOptions, workers: int) -> AtlasPlan | None:
    """The plan of an atlas that is about to be written; None for one that takes a few seconds."""
    plan = plan_atlas(model, options, workers=workers, speed=Speed(1.0, 1.0))
    if sum(plan.flop.values()) < NOTICED:
        return None
    return plan_atlas(model, options, workers=workers)
