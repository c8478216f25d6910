"""Distances that speak in attention scores: a bias for each (T5, MPNet), or vectors (DeBERTa).

Both give what is added to the scores of queries at some positions and keys at others; the product
of a query and a key, which is what a head's QK matrix holds, is left as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.checkpoint import Checkpoint
from lexray.families.linear import Heads, Norm

Queries = Float[Tensor, "p n_heads d_head"]
Keys = Float[Tensor, "n n_heads d_head"]


@dataclass(frozen=True)
class DistanceBias:
    """One number per head and bucket of distances: small distances have a bucket each, larger ones
    share them on a logarithmic scale."""

    table: str
    """The tensor, (buckets, heads)."""
    buckets: int
    furthest: int
    """From here on all distances are alike."""
    both_ways: bool
    """Half of the buckets are for keys behind the query; else these are all one with distance 0."""

    def bucket(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """Where an offset, key position − query position, is looked up."""
        n, first = self.buckets, torch.zeros_like(offset)
        if self.both_ways:
            n //= 2
            first, distance = (offset > 0) * n, offset.abs()
        else:
            distance = (-offset).clamp(min=0)
        exact = n // 2
        ratio = math.log(self.furthest / exact)
        steps = torch.log(distance.clamp(min=1).float() / exact) / ratio * (n - exact)
        far = (exact + steps.to(offset.dtype)).clamp(max=n - 1)
        return first + torch.where(distance < exact, distance, far)

    def scores(
        self, checkpoint: Checkpoint, q: Queries, k: Keys, at: Int[Tensor, "p"], seen: Tensor
    ) -> Float[Tensor, "n_heads p n"]:
        table = checkpoint.read(self.table).to(q)
        return table[self.bucket(seen - at[:, None]).to(table.device)].permute(2, 0, 1)


@dataclass(frozen=True)
class DistanceVectors:
    """Disentangled attention: a vector per bucket of distances, which queries meet as a key and
    keys as a query."""

    table: str
    """The tensor, (2 · span, d_model)."""
    norm: Norm | None
    as_key: Heads | None
    """Makes keys of them, for queries (content to position)."""
    as_query: Heads | None
    """Makes queries of them, for keys (position to content)."""
    span: int
    buckets: int
    """Distances beyond half of so many share them on a logarithmic scale; 0: each has its own."""
    furthest: int
    scale: float

    def place(self, distance: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The row of a distance, query position − key position."""
        if self.buckets > 0 and self.furthest > 0:
            mid = self.buckets // 2
            ratio = torch.log(torch.tensor((self.furthest - 1) / mid))
            size = distance.abs()
            steps = torch.log(size.clamp(min=1) / mid) / ratio * (mid - 1)
            far = distance.sign() * (torch.ceil(steps).to(distance.dtype) + mid)
            distance = torch.where(size <= mid, distance, far)
        return (distance + self.span).clamp(0, 2 * self.span - 1)

    def scores(
        self, checkpoint: Checkpoint, q: Queries, k: Keys, at: Int[Tensor, "p"], seen: Tensor
    ) -> Float[Tensor, "n_heads p n"]:
        rows = checkpoint.read(self.table)[: 2 * self.span].to(q)
        rows = rows if self.norm is None else self.norm(rows, checkpoint)
        place = self.place(at[:, None] - seen)
        total = q.new_zeros(q.shape[1], len(q), len(k))
        for heads, meeting in ((self.as_key, q), (self.as_query, k)):
            if heads is None:
                continue
            own = torch.stack(
                [self._project(heads, h, rows, checkpoint) for h in range(len(total))]
            )
            met = torch.einsum("phr,hsr->hps", meeting, own)
            index = place if meeting is q else place.T
            gathered = met.gather(2, index.to(met.device).expand(len(met), *index.shape))
            total = total + (gathered if meeting is q else gathered.transpose(1, 2))
        return total * self.scale

    def _project(self, heads: Heads, head: int, rows: Tensor, checkpoint: Checkpoint) -> Tensor:
        x = rows @ heads.read(checkpoint, head).to(rows)
        bias = heads.read_bias(checkpoint, head)
        return x if bias is None else x + bias.to(x)
