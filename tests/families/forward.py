"""Feed-forwards and several streams, calculated from weights, to be held against what ran."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from lexray.families.activation import activation
from lexray.model.feedforward import FeedForward, Mixture


def coefficients(ff: FeedForward, x: Tensor) -> Tensor:
    """By how much each neuron's value is added at inputs x."""
    up = _affine(x, ff.W_in, ff.b_in)
    if ff.spec.activation == "xielu":
        return _xielu(ff, up)
    if ff.spec.activation == "clamped swiglu":
        gate = _affine(x, ff.W_gate, ff.b_gate).clamp(max=7)
        return (up.clamp(-7, 7) + 1) * gate * (1.702 * gate).sigmoid()
    act = activation(ff.spec.activation)
    W_gate = ff.W_gate
    if W_gate is None:
        return act(up)
    gate = _affine(x, W_gate, ff.b_gate)
    if ff.spec.sparsity:
        many = NormalDist().inv_cdf(ff.spec.sparsity)
        cut = gate.mean(-1, keepdim=True) + many * gate.std(-1, keepdim=True, unbiased=False)
        gate = (gate - cut).relu()
    return act(gate) * up


def routing(mixture: Mixture, x: Tensor) -> Tensor:
    """The weight of each expert at inputs x; zero where it is not chosen."""
    spec, how = mixture.spec, mixture.spec.routing
    bias = spec.router.read_bias(mixture.weights.checkpoint)
    logits = _affine(x, mixture.W_router, bias)
    if how.score == "sparsemixer":
        return _sparse_mixer(logits, how.jitter, spec.top_k)
    scores = logits.sigmoid() if how.score == "sigmoid" else logits.softmax(-1)
    wish = scores
    if how.correction is not None:
        wish = scores + mixture.weights.checkpoint.read(how.correction).flatten().to(x)
    if how.groups > 1:
        grouped = wish.unflatten(-1, (how.groups, -1))
        best = grouped.topk(how.best, dim=-1).values.sum(-1).topk(how.kept, dim=-1).indices
        kept = torch.zeros(len(x), how.groups, dtype=torch.bool).scatter(-1, best, True)
        wish = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    chosen = wish.topk(spec.top_k, dim=-1).indices
    top = scores.gather(-1, chosen)
    if spec.normalise:
        top = top / top.sum(-1, keepdim=True)
    if how.each is not None:
        top = top * mixture.weights.checkpoint.read(how.each)[chosen]
    return torch.zeros_like(scores).scatter(-1, chosen, top * how.scale)


def _sparse_mixer(logits: Tensor, jitter: float, top_k: int) -> Tensor:
    """Each choice is weighted by the softmax of those that come close to it, earlier ones apart."""
    left, weights = logits.clone(), torch.zeros_like(logits)
    for _ in range(top_k):
        best, chosen = left.max(-1, keepdim=True)
        far = (best - logits) / logits.abs().maximum(best) > 2 * jitter
        share = left.masked_fill(far, -torch.inf).softmax(-1).gather(-1, chosen)
        weights.scatter_(-1, chosen, share)
        left = left.scatter(-1, chosen, -torch.inf)
    return weights


def _xielu(ff: FeedForward, x: Tensor) -> Tensor:
    """The activation of Apertus, by its published formula and its own parameters."""
    alpha_p, alpha_n, beta, eps = (
        ff.weights.checkpoint.read(name).float() for name in ff.spec.curve
    )
    positive = softplus(alpha_p) * x * x + beta * x
    negative = (beta + softplus(alpha_n)) * (x.minimum(eps).expm1() - x) + beta * x
    return torch.where(x > 0, positive, negative)


def router_input(mixture: Mixture, x: Tensor, stream: Tensor) -> Tensor:
    """What the router reads: what experts do, or the stream behind a norm of its own."""
    norm = mixture.spec.router_norm
    return x if norm is None else norm(stream, mixture.weights.checkpoint)


def written(ff: FeedForward | Mixture, x: Tensor, stream: Tensor | None = None) -> Tensor:
    """What the sub-block writes at inputs x, which its norm made of the stream: some experts read
    behind other norms than their router."""
    if isinstance(ff, FeedForward):
        return _affine(coefficients(ff, x), ff.W_out, ff.b_out)
    if ff.spec.own_norm is not None:
        assert stream is not None
        return _written_apart(ff, x, stream)
    weights = routing(ff, x)
    out = torch.zeros_like(x)
    for e, expert in enumerate(ff.experts):
        if weights[:, e].any():
            weight = weights[:, e : e + 1]
            scaled = ff.spec.routing.on_input
            out = out + (written(expert, x * weight) if scaled else weight * written(expert, x))
    if (shared := ff.shared) is None:
        return out * ff.spec.share
    extra = written(shared, x)
    if ff.spec.shared_gate is not None:
        gate = ff.weights.reader(ff.address.layer, ff.spec.shared_gate, ff.spec.pre_norm)
        extra = extra * (x @ gate.to(x)).sigmoid()
    return (out + extra) * ff.spec.share


def _written_apart(ff: Mixture, x: Tensor, stream: Tensor) -> Tensor:
    """Experts and the shared one, each side behind a norm of its own, and read before another."""
    checkpoint, weights = ff.weights.checkpoint, routing(ff, router_input(ff, x, stream))
    out = torch.zeros_like(x)
    for e, expert in enumerate(ff.experts):
        out = out + weights[:, e : e + 1] * (coefficients(expert, x) @ _without_gain(expert))
    shared = ff.shared
    assert shared is not None
    beside = coefficients(shared, shared.spec.pre_norm(stream, checkpoint)) @ _without_gain(shared)
    return ff.spec.own_norm(out, checkpoint) + ff.spec.shared_norm(beside, checkpoint)


def _without_gain(ff: FeedForward) -> Tensor:
    return replace(ff.spec.w_out, gain=None).read(ff.weights.checkpoint)


def _affine(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    y = x @ W.to(x)
    return y if b is None else y + b.to(x)


def united(module: Any, streams: Tensor) -> Tensor:
    """What the last step of Gemma 3n makes of (stream, position, width), by its own weights."""
    first, *rest = streams.double()
    size = first.norm(dim=-1, keepdim=True)
    parts = [first]
    for x, back in zip(rest, module.base_model.altup_unembed_projections, strict=True):
        y = x @ back.weight.detach().T.double()
        parts.append(y * size / y.norm(dim=-1, keepdim=True))
    return (sum(parts) / len(parts)).float()
