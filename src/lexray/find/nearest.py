"""The parameters that are most like a given one: their first words, or their whole lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.find.hits import (
    Findable,
    Hit,
    Hits,
    Searched,
    at_least_one,
    own_address,
    read_at,
    rows_at,
    turn,
)
from lexray.find.likeness import CANDIDATES, Likeness
from lexray.find.lookup import groups_of, lookup_vector, score_all
from lexray.model.anatomy import Anatomy
from lexray.model.vectors import Vector
from lexray.result.readings import Reading
from lexray.space.kinds import GROUPS
from lexray.space.legibility import WINDOW


class Nearest(Hits):
    """The answer of `Model.nearest`."""


def nearest(
    model: Anatomy,
    address: str | Address,
    n: int = 20,
    *,
    among: Sequence[str] = (),
    tokens: int = 10,
) -> Nearest:
    """The parameters that read most like this one; those with a negative score as its negation.

    By a view that standardises, these are the ones whose first words are each other's, see
    `lexray.find.likeness`; else those whose projections correlate most over all tokens. These are
    never built: with centred kernels K = E C E′ᵀ the correlation of xE and yE′ is x K yᵀ over the
    two norms.
    """
    target = model[address]
    if not isinstance(target, Vector):
        raise LexrayError(
            f"{address} is no single vector; try L3N7.value, .key or .gate, or a subhead: L3H7.V12"
        )
    names = tuple(among or GROUPS)
    itself = own_address(model, target.address)
    return nearest_to(model, target, groups_of(model, names), names, n, tokens, itself)


def nearest_to(
    model: Anatomy,
    target: Findable,
    groups: Sequence[Searched],
    among: Sequence[str],
    n: int,
    tokens: int,
    itself: str,
) -> Nearest:
    """Those of some groups, but for the one of the address `itself`."""
    at_least_one(n)
    if not target.tensor.any():
        raise LexrayError(f"{target.address} is zero everywhere: nothing is near it")
    by_words = target.space.weights.options.standardised
    rank = _rank_by_words if by_words else _rank_by_correlation
    order, scores = rank(model, target, groups, among, n + 1)
    read = read_at(groups, order, max(tokens, WINDOW))
    hits = [
        _hit(model, score, reading, tokens)
        for score, (reading, _) in zip(scores, read, strict=True)
        if reading.source.address != itself
    ]
    total = sum(group.n for group in groups)
    turned = "; where negative, their bottom tokens" if any(h.negative for h in hits[:n]) else ""
    title = f"Of {total:,} parameters, the nearest to {target.address}{turned}"
    reading = target.top(tokens)
    facts = {"among": list(among), reading.name: reading.ends()}
    source, name = target.space.source(target.address), "likeness" if by_words else "correlation"
    return Nearest(source, title, name, tuple(hits[:n]), facts)


def _hit(model: Anatomy, score: float, reading: Reading, tokens: int) -> Hit:
    """One with a negative score is like the target by its bottom tokens."""
    if score < 0:
        return Hit(score, turn(model, reading, tokens), negative=True)
    return Hit(score, replace(reading, top=reading.top[:tokens], bottom=reading.bottom[:tokens]))


Ranked = tuple[list[int], list[float]]
"""Places, counted through all groups, and their scores."""


def _rank_by_correlation(
    model: Anatomy, target: Findable, groups: Sequence[Searched], among: Sequence[str], n: int
) -> Ranked:
    kind, space = target.kind, target.space
    scores = lookup_vector(
        model, target.tensor, among, kind=kind, space=space, groups=groups
    ).scores
    order = scores.abs().argsort(descending=True, stable=True)[:n]
    return order.tolist(), scores[order].tolist()


def _rank_by_words(
    model: Anatomy, target: Findable, groups: Sequence[Searched], among: Sequence[str], n: int
) -> Ranked:
    """The likeness of those that give most to the target's first words, whatever the sign."""
    likeness = Likeness.to(target.space, target.kind, target.tensor)
    what = f"looking through {' and '.join(among)}"
    likely = score_all(groups, likeness.towards, what).abs()
    places = likely.argsort(descending=True, stable=True)[: max(CANDIDATES, n)]
    scores = torch.zeros(len(places))
    for space, kind, at, Y in rows_at(groups, places.tolist()):
        scores[at] = likeness.of(space, kind, Y).cpu()
    order = scores.abs().argsort(descending=True, stable=True)[:n]
    return places[order].tolist(), scores[order].tolist()
