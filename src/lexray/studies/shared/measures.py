"""What studies measure with: shared tokens, seeded samples, and how sure a mean is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.model.vectors import VectorGroup
from lexray.space.topk.vectors import TopVectors, members

RESAMPLES = 1000


def seed_generator(seed: int, *of: object) -> torch.Generator:
    """A generator of its own for each purpose: what one study draws does not depend on another."""
    data = hashlib.sha256(repr((seed, *map(str, of))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(data[:7], "big"))


def sample(n: int, of: int, generator: torch.Generator) -> Int[Tensor, "m"]:
    """n of the numbers below `of`, or all if there are no more, in rising order."""
    if n >= of:
        return torch.arange(of)
    return torch.randperm(of, generator=generator)[:n].sort().values


def rows_of(groups: Sequence[VectorGroup], at: Int[Tensor, "m"]) -> Float[Tensor, "m d_model"]:
    """The vectors at these places (in rising order) of the groups' long list, in float32."""
    parts, start = [], 0
    for group in groups:
        inside = at[(at >= start) & (at < start + group.n)] - start
        if len(inside):
            X = group.tensor
            parts.append(at_least_float32(X[inside.to(X.device)]))
        start += group.n
    return torch.cat(parts)


def derange(n: int, generator: torch.Generator) -> Int[Tensor, "n"]:
    """A shuffled order in which nothing stays in its place (if n > 1)."""
    cycle = torch.randperm(n, generator=generator)
    order = torch.empty_like(cycle)
    order[cycle] = cycle.roll(-1)
    return order


def count_shared(a: Int[Tensor, "n j"], b: Int[Tensor, "n k"]) -> Int[Tensor, "n"]:
    """|a ∩ b| of sets of token ids, row by row; no row may name an id twice."""
    return members(a, b).sum(1)


def overlap(a: Int[Tensor, "n k"], b: Int[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """The intersection score I_k: |a ∩ b| / k."""
    return count_shared(a, b).cpu().double() / a.shape[1]


def jaccard(a: Int[Tensor, "n k"], b: Int[Tensor, "n k"]) -> Float[Tensor, "n"]:
    """|a ∩ b| / |a ∪ b|."""
    both = count_shared(a, b).cpu().double()
    return both / (a.shape[1] + b.shape[1] - both)


def largest_ids(best: TopVectors, k: int) -> Int[Tensor, "n k"]:
    """The k ids of largest |score|, from both ends (each at least k long)."""
    sizes = torch.cat([best.top_values.abs(), best.bottom_values.abs()], 1)
    ids = torch.cat([best.top_ids, best.bottom_ids], 1)
    # where the ends overlap (k above half the vocabulary), a token counts once
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, best.top_ids.shape[1] :] = members(best.bottom_ids, best.top_ids)
    return ids.gather(1, sizes.masked_fill(repeated, -1.0).topk(k, dim=1).indices)


def n_tokens(model: Model) -> int:
    """How many tokens can appear in a list."""
    ids = model.space.list_ids(None)
    return model.space.n_rows if ids is None else len(ids)


def require_more_tokens(model: Model, k: int) -> None:
    """Lists of all tokens are always alike: refuse to compare them."""
    if k >= (n := n_tokens(model)):
        raise LexrayError(
            f"top lists of {k} tokens say nothing where there are {n}: {model.name} has too small "
            f"a vocabulary; try k = {max(1, n // 50)}"
        )


def interval(values: Float[Tensor, "n"], seed: int = 0) -> float:
    """Half of the 95 % interval of the mean, by resampling."""
    if len(values) < 2:
        return float("nan")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    return float(1.96 * values[drawn].mean(1).std())
