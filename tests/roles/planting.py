"""Writing parameters of our own into random models of every family."""

from __future__ import annotations

import torch
from torch import Tensor

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.families import Linear
from lexray.model.model import Model
from tests.families.zoo import find, make
from tests.vocabulary.vocabularies import vocabulary

ALL = slice(None)


def fresh(name: str) -> Model:
    """A model of its own, whose weights a test may change."""
    module = make(find(name))
    return Model(ModuleCheckpoint(module), vocabulary=vocabulary()).view("raw")


def reopened(model: Model) -> Model:
    """The same weights, nothing remembered."""
    assert isinstance(model.checkpoint, ModuleCheckpoint)
    return Model(model.checkpoint, vocabulary=vocabulary()).with_view(model.options)


def write(
    model: Model, linear: Linear, W: Tensor, *, inputs: slice = ALL, outputs: slice = ALL
) -> None:
    """W[inputs, outputs] = W, wherever and however it lies on disk."""
    assert isinstance(model.checkpoint, ModuleCheckpoint)
    stored = model.checkpoint.module.state_dict()[linear.weight]
    part = stored[linear.index(inputs, outputs)]
    part = part[0] if linear.expert is not None else part
    with torch.no_grad():
        (part if linear.in_first else part.T).copy_(W.to(part))


def write_head(model: Model, layer: int, head: int, **matrices: Tensor) -> None:
    """Q, K and V as d×r, O as r×d."""
    spec = model.architecture.blocks[layer].attention
    for kind, W in matrices.items():
        if kind == "O":
            r = spec.q.d_head
            write(model, spec.o, W, inputs=slice(head * r, (head + 1) * r))
        else:
            heads = {"Q": spec.q, "K": spec.k, "V": spec.v}[kind]
            at = head * len(heads.starts) // len(spec.q.starts)
            write(model, heads.linear, W, outputs=heads.outputs(at))
