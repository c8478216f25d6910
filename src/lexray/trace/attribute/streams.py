"""The way back through several residual streams (Gemma 3n): a direction for each of them.

A layer mixes its streams by numbers that it tells from what it reads; at the ends they are made as
large as one another. Held at what they were in the pass, all of these are factors, and so the
logit is linear in what was written here too.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families.linear import Linear
from lexray.families.streams import scale_to
from lexray.model.fold import at_least_float32
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step

Directions = Float[Tensor, "n_streams d_model"]
"""In which what is added to each stream moves the logit."""


def before_union(moment: Moment, g: Float[Tensor, "d_model"]) -> Directions:
    """A direction in what the final norm reads, in each of the streams behind the last layer."""
    streams = moment.weights.architecture.streams
    assert streams is not None
    first, *rest = moment.at(moment.recording.parts[moment.weights.n_layers, "streams"])
    own = [g]
    for x, linear in zip(rest, streams.gather, strict=True):
        W = _read(moment, linear)
        own.append(W @ g * scale_to(first, x @ W))
    return torch.stack(own) / streams.count


def before_spread(moment: Moment, G: Directions) -> Float[Tensor, "d_model"]:
    """Directions in the streams before the first layer, as one in the embedding."""
    streams = moment.weights.architecture.streams
    assert streams is not None
    x, g = moment.embed, G[0]
    for own, linear in zip(G[1:], streams.spread, strict=True):
        W = _read(moment, linear)
        g = g + W @ own * scale_to(x, x @ W)
    return g


def _read(moment: Moment, linear: Linear) -> Float[Tensor, "d_model d_model"]:
    weights = moment.weights
    return at_least_float32(weights.place(linear.read(weights.checkpoint)))


def of_result(step: Step, G: Directions) -> Float[Tensor, "d_model"]:
    """Of what a layer made of the stream that it works on."""
    return step.at(step.recorded.streams.correct) @ G


def before_layer(
    step: Step,
    G: Directions,
    result: Float[Tensor, "d_model"],
    through: Float[Tensor, "d_model"],
) -> Directions:
    """Directions behind a layer, before it. What it made of the stream it works on counts from what
    that stream was predicted to be: `result` is its direction, `through` that of the prediction as
    the layer passes it on."""
    streams = step.recorded.streams
    G = G.clone()
    G[streams.active] += through - result
    return step.at(streams.predict).T @ G
