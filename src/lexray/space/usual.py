"""What is usual for a kind of parameter: the mean and covariance of all its vectors.

A score is standardised by it, token by token:

    z_j = (x · c_j − μ · c_j) / √(c_jᵀ Σ c_j),

so that tokens which stick out for every parameter lead no parameter's list; μ is zero for what
writes, and Σ then the second moment. x − μ is read with
columns c_j / σ_j: another d × e matrix, and everything stays exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.model.cache import Drawer
from lexray.model.groups import Group, all_groups, layer_groups
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.scratch import let_go
from lexray.space.kernels import moments
from lexray.space.kinds import Kind

CENTRED: frozenset[Kind] = frozenset({"key", "gate"})
"""Kinds that are measured from their mean. A subhead's sign is arbitrary, so it has none; and a
value is measured from nothing, for what all values add in common is part of what each one does."""
ELEMENTS = 2**28
"""A kind with more elements is sampled evenly: its moments do not notice."""
ELEMENTS_REMOTE = 2**23
AT_ONCE = 2**22
"""Elements that exist in float64 together."""

USUAL: Drawer[tuple[Kind, bool, bool], "Usual"] = Drawer(most=16)


class Usual(NamedTuple):
    """The moments of a kind's vectors."""

    mean: Float[Tensor, "d_model"]
    """Zero for kinds that are not centred."""
    second: Float[Tensor, "d_model d_model"]
    """XᵀX / N, around nothing."""


def usual(weights: Weights, kind: Kind, *, first: bool = False) -> Usual:
    """The moments over all vectors of a kind; `first`: over those of the first layer alone."""
    key = kind, first, weights.options.folded
    return USUAL.get(weights.cache, key, partial(_usual, weights, kind, first))


def _usual(weights: Weights, kind: Kind, first: bool) -> Usual:
    groups = list(layer_groups(weights, 0, kind) if first else all_groups(weights, kind))
    step = _step(weights, groups)
    what = f"how all {kind} vectors vary: made once, then kept"
    blocks = (some for group in track(_blocks(groups, step), len(groups), what) for some in group)
    mean, second = moments(weights.d_model, blocks)
    let_go(second)
    return Usual(mean if kind in CENTRED else torch.zeros_like(mean), second)


def _step(weights: Weights, groups: list[Group]) -> int:
    """Every how many-th vector is enough."""
    elements = sum(group.n for group in groups) * weights.d_model
    return -(-elements // (ELEMENTS_REMOTE if weights.checkpoint.remote else ELEMENTS)) or 1


def _blocks(groups: list[Group], step: int) -> Iterator[Iterator[Float[Tensor, "_ d_model"]]]:
    """Each group's vectors, or a run of them, begun at another place in each group."""
    for i, group in enumerate(groups):
        size = -(-group.n // step)
        start = (i * size) % max(1, group.n - size + 1)
        some = replace(group, start=group.start + start, n=size)
        yield some.blocks(max(1, AT_ONCE // group.weights.d_model))
