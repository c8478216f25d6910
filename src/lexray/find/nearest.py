"""The parameters that are most like a given one, by the correlation of what they read as."""

from __future__ import annotations

from collections.abc import Sequence

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.find.hits import (
    Found,
    Hit,
    Hits,
    Searched,
    at_least_one,
    own_address,
    read_at,
)
from lexray.find.lookup import groups_of, lookup_vector
from lexray.model.anatomy import Anatomy
from lexray.model.vectors import Vector
from lexray.space.kinds import GROUPS


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
    """The parameters whose projections correlate most with this one's, in either direction.

    Projections are never built: with centred kernels K = E C E′ᵀ the correlation of xE and yE′ is
    x K yᵀ over the two norms. Those with a negative correlation read as its negation.
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
    target: Found,
    groups: Sequence[Searched],
    among: Sequence[str],
    n: int,
    tokens: int,
    itself: str,
) -> Nearest:
    """Those of some groups, but for the one of the address `itself`."""
    at_least_one(n)
    x = target.tensor
    if not x.any():
        raise LexrayError(f"{target.address} is zero everywhere: nothing is near it")
    found = lookup_vector(
        model, x, among, kind=target.kind, space=target.space, groups=groups
    ).scores
    order = found.abs().argsort(descending=True, stable=True)[: n + 1].tolist()
    hits = [
        Hit(float(found[i]), reading)
        for i, (reading, _) in zip(order, read_at(groups, order, tokens), strict=True)
        if reading.source.address != itself
    ]
    title = f"Of {len(found):,} parameters, the nearest to {target.address}"
    reading = target.top(tokens)
    facts = {"among": list(among), reading.name: reading.ends()}
    source = target.space.source(target.address)
    return Nearest(source, title, "correlation", tuple(hits[:n]), facts)
