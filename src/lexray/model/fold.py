"""Folding norms into the matrices beside them.

A norm is N(x) = γ ⊙ C x / σ(x) + β with C = I − 11ᵀ/d for LayerNorm and C = I for RMSNorm. What
reads N(x) through W reads the bare C x / σ(x) through C diag(γ) W, plus the constant β W; what
writes through a norm writes W C diag(γ). Half-precision weights are folded in float32.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.checkpoint import Checkpoint
from lexray.families import Norm
from lexray.scratch import empty_rows, let_go, rows_at_once


def at_least_float32(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return x if x.dtype == torch.float64 else x.float()


def reader(
    W: Float[Tensor, "d_model *outputs"], norm: Norm | None, checkpoint: Checkpoint
) -> Float[Tensor, "d_model *outputs"]:
    """C diag(γ) W."""
    W = at_least_float32(W)
    if norm is None:
        return W
    if (gain := norm.read_gain(checkpoint)) is not None:
        W = W * gain.to(W).view(-1, *[1] * (W.ndim - 1))
    return W - W.mean(0) if norm.centres else W


def outwards(
    P: Float[Tensor, "d_model width"] | None,
    d: int,
    norm: Norm | None,
    checkpoint: Checkpoint,
    scale: float,
) -> Float[Tensor, "d_model width"]:
    """s C diag(γ) P, without P of the identity, some columns at a time: it may be too large to be
    held."""
    P = None if P is None else at_least_float32(P)
    like, width = (torch.empty(0), d) if P is None else (P, P.shape[1])
    folded, step = empty_rows((d, width), like), rows_at_once(4 * d)
    for start in range(0, width, step):
        own = folded[:, start : start + step]
        some = _unit_columns(d, start, own.shape[1]) if P is None else P[:, start : start + step]
        own.copy_(reader(some, norm, checkpoint) * scale)
    let_go(folded)
    return folded


def _unit_columns(d: int, start: int, n: int) -> Float[Tensor, "d n"]:
    """n columns of the identity."""
    columns = torch.zeros(d, n)
    columns[start : start + n].fill_diagonal_(1)
    return columns


def reader_bias(
    bias: Float[Tensor, "*outputs"] | None,
    W: Float[Tensor, "d_model *outputs"],
    norm: Norm | None,
    checkpoint: Checkpoint,
) -> Float[Tensor, "*outputs"] | None:
    """b + β W, where W is the matrix as stored."""
    shift = norm.read_bias(checkpoint) if norm is not None else None
    W = at_least_float32(W)
    if shift is None:
        return None if bias is None else bias.to(W)
    moved = shift.to(W) @ W
    return moved if bias is None else bias.to(W) + moved


def writer(
    W: Float[Tensor, "*inputs d_model"], norm: Norm | None, checkpoint: Checkpoint
) -> Float[Tensor, "*inputs d_model"]:
    """W C diag(γ)."""
    W = at_least_float32(W)
    if norm is None:
        return W
    if norm.centres:
        W = W - W.mean(-1, keepdim=True)
    gain = norm.read_gain(checkpoint)
    return W if gain is None else W * gain.to(W)
