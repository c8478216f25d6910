"""Towards the target: the direction in which what a block writes moves the target's logit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families import Norm
from lexray.flow.build.step import Step
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.model.weights import Weights
from lexray.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Pull:
    """The target's logit is linear in what a block writes once every norm on the way is held at its
    recorded scale: these are the directions, at the attention's output and the feed-forward's."""

    attention: Float[Tensor, "d_model"]
    ff: Float[Tensor, "d_model"]


def pulls(
    trace: Trace, weights: Anatomy, target: int, position: int, layers: Collection[int]
) -> dict[int, Pull]:
    """For each layer. In models that norm the sums (BERT), all later layers must have been kept."""
    a = weights.architecture
    g = trace.weights.space.writing.column(target).to(weights.device) * a.logit_scale
    final = at_least_float32(trace.final[trace.row(position)].to(weights.device))
    g = _before(weights, a.final_norm, g, final)
    found = {}
    for index in range(weights.n_layers - 1, min(layers) - 1, -1):
        step = Step(trace, weights.layers[index], position)
        spec = step.spec
        if spec.ff.sum_norm is not None:
            total = step.at(step.recorded.resid_mid) + step.at(step.recorded.mlp_out)
            g = _before(weights, spec.ff.sum_norm, g, total)
        ff = g
        if spec.attention.sum_norm is not None:
            total = step.at(step.recorded.resid_pre) + step.at(step.recorded.attn_out)
            g = _before(weights, spec.attention.sum_norm, g, total)
        if index in layers:
            found[index] = Pull(_written(step, "attention", g), _written(step, "ff", ff))
    return found


def _written(step: Step, sub_block: str, g: Float[Tensor, "d_model"]) -> Float[Tensor, "d_model"]:
    """The direction before the norm of a sub-block's output, if it has one."""
    norm = getattr(step.spec, sub_block).post_norm
    if norm is None:
        return g
    recorded = step.recorded
    written = recorded.attn_write if sub_block == "attention" else recorded.mlp_write
    return _before(step.layer.weights, norm, g, step.at(written))


def _before(
    model: Weights, norm: Norm | None, g: Float[Tensor, "d_model"], x: Float[Tensor, "d_model"]
) -> Float[Tensor, "d_model"]:
    """A direction behind a norm whose input was x, before it."""
    if norm is None:
        return g
    if (gain := norm.read_gain(model.checkpoint)) is not None:
        g = g * gain.to(g)
    if norm.centres:
        g, x = g - g.mean(), x - x.mean()
    return g * torch.rsqrt(x.square().mean() + norm.eps)
