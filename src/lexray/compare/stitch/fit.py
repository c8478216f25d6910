"""A map from A's hidden states to B's, fitted on the vocabulary itself: neither texts nor labels.

Every token of the vocabulary goes through A up to the layer where it is left, and through B up to
the one where its last layers begin, which gives pairs of states (x, y). Between them lies

    y ≈ (x − μ_A) c Q + μ_B

with each side's own mean, Q the isometry nearest to Σ w (x − μ_A)ᵀ(y − μ_B) (Procrustes), and c the
ratio of both sides' sizes; w is 1, or the root of how frequent the token is.

Tokens stand in random order in rows, not alone: a token alone stands at the first position, where
states are outliers (positions are learned, attention has nowhere else to go), so that both means
and the map would be those of no other position. The first place of a row is company only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.compare.stitch.kernels import Map, nearest_isometry
from lexray.compare.stitch.run import CutRunner
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.progress import track

WIDTH = 32
"""Tokens in a row, at most."""
STATES = 32
"""So many pairs of states for each dimension, at least: small vocabularies go round several times,
in other company."""
AT_ONCE = 2048
"""Tokens in a forward pass."""
SAMPLE = 1024
"""From so many states of A it is seen which tokens it expects."""
SPANNED = 1e-13
"""The least share of the largest covariance that is no rounding of float32 states."""
UNSEEN = 0.01
"""The frequency of a token that was not counted, as a share of the mean."""


class FitSums:
    """What the map needs of all pairs, in float64, so that no states have to be kept."""

    def __init__(self, d_a: int, d_b: int) -> None:
        self.weight, self.x_size, self.y_size = 0.0, 0.0, 0.0
        self.x, self.y = (torch.zeros(d, dtype=torch.float64) for d in (d_a, d_b))
        self.xy = torch.zeros(d_a, d_b, dtype=torch.float64)

    def add(
        self, x: Float[Tensor, "n d_a"], y: Float[Tensor, "n d_b"], w: Float[Tensor, "n"]
    ) -> None:
        """Some more pairs."""
        x, y, w = (t.cpu().double() for t in (x, y, w))
        weighted = x * w[:, None]
        self.weight += float(w.sum())
        self.x += weighted.sum(0)
        self.y += w @ y
        self.xy += weighted.T @ y
        self.x_size += float((weighted * x).sum())
        self.y_size += float(w @ y.square().sum(1))

    def solve(self) -> Map:
        """The map between the pairs seen so far."""
        x, y = self.x / self.weight, self.y / self.weight
        between = self.xy / self.weight - x[:, None] * y
        sizes = [self.x_size / self.weight - float(x @ x), self.y_size / self.weight - float(y @ y)]
        if min(sizes) <= 0:
            raise LexrayError("all tokens have one and the same state there: nothing can be fitted")
        K = nearest_isometry(between, SPANNED) * sqrt(sizes[1] / sizes[0])
        return Map(K, y - x @ K)


def fit_maps(
    a: Model,
    b: Model,
    afters: Sequence[int],
    last: int,
    *,
    normed: bool = False,
    frequencies: Float[Tensor, "e"] | None = None,
) -> dict[int, Map]:
    """The map for each layer after which A may be left, all in one pass over the vocabulary.

    `normed` says that A's states go through its final norm first. `frequencies` are counts or
    shares, of which the roots are the tokens' weights; without them all count alike.
    """
    first, second = CutRunner.of(a), CutRunner.of(b)
    entry = len(second.blocks) - last
    rows = shuffle(a, b)
    weights = torch.ones(int(rows.max()) + 1) if frequencies is None else weigh(frequencies)
    sums = {after: FitSums(a.d_model, b.d_model) for after in afters}
    parts = torch.split(rows, max(1, AT_ONCE // rows.shape[1]))
    for part in track(parts, len(parts), f"every token through {a.name} and {b.name}"):
        ids = part.to(a.device)
        mask = torch.ones_like(ids)
        with torch.no_grad():
            states = first.states(ids, mask, afters)
            theirs = second.entering(ids, mask, entry)[:, 1:].flatten(0, 1)
            for after, ours in states.items():
                ours = first.normalise(ours) if normed else ours
                sums[after].add(ours[:, 1:].flatten(0, 1), theirs, weights[part[:, 1:].flatten()])
    return {after: each.solve() for after, each in sums.items()}


def shuffle(a: Model, b: Model) -> Int[Tensor, "rows width"]:
    """Every token that both models have, in random order; a row's first place is company."""
    n = min(model.architecture.d_vocab for model in (a, b))
    tokens = (a.vocabulary.mask(n) & b.vocabulary.mask(n)).nonzero()[:, 0]
    limits = [limit for m in (a, b) if (limit := m.architecture.n_ctx)]
    wide = max(1, min([WIDTH, *limits]) - 1)
    rounds = ceil(max(STATES * max(a.d_model, b.d_model), wide) / len(tokens))
    generator = torch.Generator().manual_seed(0)
    orders = [tokens[torch.randperm(len(tokens), generator=generator)] for _ in range(rounds)]
    order = torch.cat(orders)
    whole = torch.cat([order, order[: -len(order) % wide]]).view(-1, wide)
    return torch.cat([whole.roll(1, 0)[:, -1:], whole], 1)


def weigh(frequencies: Float[Tensor, "e"]) -> Float[Tensor, "e"]:
    """The roots of frequencies; what was not seen is rare, not absent."""
    shares = frequencies.float().cpu() / frequencies.float().mean().cpu()
    return (shares + UNSEEN).sqrt()


def count_tokens(ids: Int[Tensor, "batch n"], mask: Int[Tensor, "batch n"], n: int) -> Tensor:
    """How often each token occurs in some texts."""
    return torch.bincount(ids[mask.bool()].cpu(), minlength=n).float()


@torch.no_grad()
def expect_tokens(a: Model, b: Model) -> Float[Tensor, "e"]:
    """How much A expects each token, after tokens of all kinds: frequencies without a text."""
    if a.architecture.unembed not in a.checkpoint.names():
        raise LexrayError(
            f"{a.name} predicts no tokens, so that it does not say how frequent they are; "
            'frequencies="counted" takes them from texts, "none" does without'
        )
    runner, last = CutRunner.of(a), a.n_layers - 1
    rows = shuffle(a, b)
    ids = rows[: max(1, SAMPLE // rows.shape[1])].to(a.device)
    states = runner.states(ids, torch.ones_like(ids), [last])[last][:, 1:].flatten(0, 1)
    expected: Tensor = a.logits(states.float()).softmax(-1).mean(0).cpu()
    return expected
