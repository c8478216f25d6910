"""Vectors of the user's own, read as tokens: a probe, a steering vector, a difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.result.readings import Reading, Readings
from lexray.space.kinds import GROUPS, Kind
from lexray.space.space import space_of
from lexray.vocabulary.filters import FilterLike, read_filter


def read_given(
    model: Anatomy,
    x: Any,
    kind: str = "value",
    layer: int | None = None,
    *,
    k: int = 30,
    filter: FilterLike = None,
    name: str = "vector",
) -> Reading | Readings:
    """Directions of the residual stream as tokens; a matrix is a vector a row.

    They are read as a parameter of this kind and layer is, with its norm folded in: what writes by
    what it promotes, what reads by what it responds to.
    """
    rows, single = rows_of(model, x)
    read_as, filter = kind_named(kind), read_filter(filter)
    if layer is not None:
        model.layers[layer]
    names = [name] if single else [f"{name} {i}" for i in range(len(rows))]
    space = space_of(model, layer)
    readings = space.readings(model.place(rows), read_as, names, k, filter, read_as)
    if single:
        return readings[0]
    where = "" if layer is None else f" of layer {layer}"
    title = f"{len(rows)} vectors, read as {read_as}s{where}"
    return Readings(space.source(name, filter), tuple(readings), title)


def rows_of(model: Anatomy, x: Any) -> tuple[Float[Tensor, "n d_model"], bool]:
    """The vectors as rows, and whether it is a single one; a LexrayError if they do not fit."""
    tensor = _tensor(x)
    shape = tuple(tensor.shape)
    if tensor.ndim not in (1, 2) or shape[-1] != model.d_model or not tensor.numel():
        raise LexrayError(
            f"x has the shape {shape}; {model.name} reads vectors of {model.d_model} numbers, or "
            f"matrices with one a row"
        )
    if not tensor.isfinite().all():
        raise LexrayError("x has entries that are infinite or no numbers")
    rows = tensor if tensor.dtype == torch.float64 else tensor.float()
    return (rows[None] if tensor.ndim == 1 else rows), tensor.ndim == 1


def _tensor(x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        try:
            x = torch.as_tensor(np.asarray(x))
        except (TypeError, ValueError, RuntimeError) as error:
            raise LexrayError(f"x is no vector of numbers: {error}") from error
    if x.dtype == torch.bool or x.is_complex():
        raise LexrayError(f"x is no vector of real numbers: its dtype is {x.dtype}")
    tensor: Tensor = x.detach()
    return tensor


def kind_named(name: str) -> Kind:
    """A kind, by its own name or by its group's: "value" or "values"."""
    for group, kind in GROUPS.items():
        if name in (group, kind):
            return kind
    raise LexrayError(f"no kind {name!r} of vectors; there are {', '.join(GROUPS.values())}")


def is_vector(x: Any) -> bool:
    """Whether it is numbers, not words: a tensor, an array, or a list of floats."""
    if isinstance(x, Tensor | np.ndarray):
        return True
    return isinstance(x, list | tuple) and bool(x) and all(isinstance(n, float) for n in x)
