"""Feed-forwards calculated from the weights that lexray reads, to be held against what ran."""

from __future__ import annotations

import torch
from torch import Tensor

from lexray.families.activation import activation
from lexray.model.feedforward import FeedForward, Mixture


def coefficients(ff: FeedForward, x: Tensor) -> Tensor:
    """By how much each neuron's value is added at inputs x."""
    act = activation(ff.spec.activation)
    up = _affine(x, ff.W_in, ff.b_in)
    W_gate = ff.W_gate
    return act(up) if W_gate is None else act(_affine(x, W_gate, ff.b_gate)) * up


def routing(mixture: Mixture, x: Tensor) -> Tensor:
    """The weight of each expert at inputs x; zero where it is not chosen."""
    weights = (x @ mixture.W_router.to(x)).softmax(-1)
    top, chosen = weights.topk(mixture.spec.top_k, dim=-1)
    if mixture.spec.normalise:
        top = top / top.sum(-1, keepdim=True)
    return torch.zeros_like(weights).scatter(-1, chosen, top)


def written(ff: FeedForward | Mixture, x: Tensor) -> Tensor:
    """What the sub-block writes at inputs x."""
    if isinstance(ff, FeedForward):
        return _affine(coefficients(ff, x), ff.W_out, ff.b_out)
    weights = routing(ff, x)
    out = torch.zeros_like(x)
    for e, expert in enumerate(ff.experts):
        if weights[:, e].any():
            out = out + weights[:, e : e + 1] * written(expert, x)
    if (shared := ff.shared) is None:
        return out
    extra = written(shared, x)
    if ff.spec.shared_gate is not None:
        gate = ff.weights.reader(ff.address.layer, ff.spec.shared_gate, ff.spec.pre_norm)
        extra = extra * (x @ gate.to(x)).sigmoid()
    return out + extra


def _affine(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    y = x @ W.to(x)
    return y if b is None else y + b.to(x)
