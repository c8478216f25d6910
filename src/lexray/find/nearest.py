"""The parameters that are most like a given one, by the correlation of what they read as."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.find.hits import Hit, Hits, at_least_one, own_address, readings_at
from lexray.model.anatomy import Anatomy
from lexray.model.vectors import Vector
from lexray.progress import track
from lexray.space.correlation import Kernels
from lexray.space.kinds import GROUPS, kind_of


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
    at_least_one(n)
    kinds = [kind_of(group) for group in (among or GROUPS)]
    groups = [group for kind in kinds for group in model.groups(kind)]
    if not groups:
        raise LexrayError(f"{model.name} has no {', '.join(among)}")
    x = target.tensor
    if not x.any():
        raise LexrayError(f"{address} is zero everywhere: nothing is near it")
    ids = model.space.admitted(None)
    kernels = Kernels(model.space, model.space, ids, ids)
    flat = torch.cat(
        [
            kernels.between(target.kind, group.kind).correlations_with(x, group.tensor).cpu()
            for group in track(groups, len(groups), f"comparing with {target.address}")
        ]
    )
    order = flat.abs().argsort(descending=True, stable=True)[: n + 1].tolist()
    itself = own_address(model, target.address)
    hits = [
        Hit(float(flat[i]), reading)
        for i, reading in zip(order, readings_at(groups, order, tokens), strict=True)
        if reading.source.address != itself
    ]
    title = f"Of {len(flat):,} parameters, the nearest to {target.address}"
    source = model.space.source(target.address)
    reading = target.top(tokens)
    facts = {"among": list(among or GROUPS), reading.name: reading.ends()}
    return Nearest(source, title, "correlation", tuple(hits[:n]), facts)
