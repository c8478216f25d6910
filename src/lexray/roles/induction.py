"""Induction pairs, from weights: a head whose keys see what an earlier head moved one place on.

A head that looks at the token before it writes, at every place, VO of the token before. If a later
head's keys, made of that, answer to queries of the very same token, the later head finds what once
followed the current token. For a pair of heads P, I and random tokens t, u the score is

    s(t, u) = x_t W_Q W_Kᵀ (x_u W_VO)ᵀ,   effect = (mean s(t, t) − mean s(t, u)) / std s(t, u).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.roles.patterns import LoneStates, lone_of

MOVERS = 6
"""So many of the heads that look one place back are tried as the first of a pair."""
TOKENS = 192


@dataclass(frozen=True)
class Match:
    """How well a head's queries find the same token among keys."""

    effect: float
    z: float
    """In standard deviations of what chance gives: a sample of tokens, and a head whose queries
    are turned against its keys at random."""
    mover: str = ""
    """The earlier head that the keys pass through."""
    tried: int = 1
    """Of how many it is the best."""


def match_of(queries: Float[Tensor, "n r"], keys: Float[Tensor, "n r"], mover: str = "") -> Match:
    """Scores of tokens with themselves against those with others, rows centred.

    With any rotation R between queries and keys a head would look as random as one without, and
    the mean own score is the trace of R C, C the r×r cross-covariance: its variance over all R is
    ‖C‖² / r. Few dimensions, or tokens that lie in few, make large traces by chance.
    """
    queries, keys = queries.double(), keys.double()
    keys = keys - keys.mean(0)
    scores, n = queries @ keys.T, len(queries)
    own = scores.diagonal()
    others = scores[~torch.eye(n, dtype=torch.bool)]
    spread = float(others.std())
    if spread == 0:
        return Match(0.0, 0.0, mover)
    effect = (float(own.mean()) - float(others.mean())) / spread
    turned = float((queries.T @ keys / n).norm()) / sqrt(keys.shape[1]) / spread
    return Match(effect, effect / sqrt(1 / n + turned**2), mover)


def sample(model: Anatomy, seed: int = 0) -> Int[Tensor, "n"]:
    """Random tokens out of those that lists may show."""
    listed = model.space.list_ids(None)
    listed = torch.arange(model.space.n_rows) if listed is None else listed
    generator = torch.Generator().manual_seed(seed + 1)
    return listed[torch.randperm(len(listed), generator=generator)[:TOKENS]]


def induction(
    model: Anatomy, previous: Sequence[float], *, seed: int = 0
) -> tuple[list[Match], list[Match]]:
    """Of every head: the best match through an earlier head that looks one place back, and the
    match of a token with itself (duplicates). `previous`: how much each head looks back."""
    heads = model.view(folded=True).every_head
    order = [i for encoder in (True, False) for i in _order_movers(heads, previous, encoder)]
    ids = sample(model, seed)
    states = LoneStates(model, lambda stack, first: lone_of(stack, ids, first=first))
    moved = {i: _move(heads[i], states(heads[i], "K")) for i in order}
    through, direct = [], []
    for head in heads:
        W_Q, W_K = at_least_float32(head.W_Q), at_least_float32(head.W_K)
        queries = states(head, "Q").to(W_Q) @ W_Q
        direct.append(match_of(queries, states(head, "K").to(W_K) @ W_K))
        matches = [
            match_of(queries, moved[i].to(W_K) @ W_K, str(heads[i].address))
            for i in order
            if _feeds_keys(heads[i], head)
        ]
        best = max(matches, key=lambda match: match.effect, default=Match(0.0, 0.0))
        through.append(replace(best, tried=max(1, len(matches))))
    return through, direct


def _order_movers(heads: Sequence[Head], previous: Sequence[float], encoder: bool) -> list[int]:
    """Of one stack, the heads that look one place back most."""
    own = [i for i, h in enumerate(heads) if h.address.encoder == encoder and not h.address.cross]
    return sorted(own, key=lambda i: -previous[i])[:MOVERS]


def _feeds_keys(mover: Head, head: Head) -> bool:
    """Whether a head's keys see what an earlier one has moved: a source's all of the encoder."""
    if head.address.cross:
        return mover.address.encoder
    return mover.address.encoder == head.address.encoder and mover.layer < head.layer


def _move(head: Head, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
    W_V, W_O = at_least_float32(head.W_V), at_least_float32(head.W_O)
    return x.to(W_V) @ W_V @ W_O
