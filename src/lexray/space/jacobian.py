"""The Jacobian of an encoder's prediction head: what a step in its input does to the decoder's.

BERT's head is h(x) = N(act(x W + b)), behind which stands the decoder E. A vector v that is added
to x moves the logits by about v J(x) E. The Jacobian depends on x; here it is the mean over typical
inputs: what reaches the head at masked tokens of a text. With s = act′(x W + b) / σ and â the
normed activations,

    J(x) = W diag(s) (I − 11ᵀ/w − ââᵀ/w) diag(γ_head).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families.activation import activation
from lexray.model.cache import Drawer
from lexray.model.kept import keep
from lexray.model.weights import Weights

MADE: Drawer[None, Tensor] = Drawer(most=1)


def head_jacobian(weights: Weights) -> Float[Tensor, "d_model width"]:
    """The mean Jacobian of the model's prediction head at typical inputs, made once."""
    return MADE.get(weights.cache, None, lambda: _make(weights))


def _make(weights: Weights) -> Float[Tensor, "d_model width"]:
    def make() -> dict[str, Tensor]:
        return {"J": mean_jacobian(weights, weights.typical_inputs())}

    return weights.place(keep(weights, "head-jacobian", make, runs=True)["J"])


def mean_jacobian(
    weights: Weights, x: Float[Tensor, "n d_model"]
) -> Float[Tensor, "d_model width"]:
    """The mean of the head's Jacobian at these inputs, in float32."""
    head, checkpoint = weights.architecture.head, weights.checkpoint
    assert head is not None  # `Weights.view` has seen to that
    W = head.dense.read(checkpoint).double()
    b = head.dense.read_bias(checkpoint)
    pre = x.cpu().double() @ W.cpu() + (0 if b is None else b.cpu().double())
    with torch.enable_grad():
        pre = pre.detach().requires_grad_()
        acted = activation(head.activation)(pre)
        (slope,) = torch.autograd.grad(acted.sum(), pre)
    acted, width = acted.detach(), pre.shape[1]
    centred = acted - acted.mean(-1, keepdim=True)
    scale = head.norm.scale(centred)
    s, normed = slope * scale, centred * scale
    inner = torch.diag(s.mean(0)) - s.mean(0)[:, None] / width
    inner = inner - (s * normed).T @ normed / (len(x) * width)
    gain = head.norm.read_gain(checkpoint)
    J = W.cpu() @ inner
    J = J if gain is None else J * gain.cpu().double()
    return J.float()
