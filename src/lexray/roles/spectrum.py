"""Copying, from weights: do the eigenvalues of a head's VO over tokens lie above zero or below?

The e×e matrix Eᵀ W_V W_O E has the eigenvalues of the r×r matrix B = W_O K W_V with K = Σ w rᵀ over
all tokens, w and r a token's columns for writing and reading: exact, and small. A head that copies
writes every token it sees; its eigenvalues are positive, and Σ Re λ / Σ |λ| is near 1; near −1 it
suppresses what it sees. Chance: were the head's two sides turned against one another at random, the
trace of B would have mean 0 and variance ‖B‖² / r.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from lexray.model.anatomy import Anatomy
from lexray.model.cache import Drawer
from lexray.model.head import Head
from lexray.space.kernels import exactly, gram
from lexray.view import View

KERNELS: Drawer[tuple[View, bool, bool], Tensor] = Drawer(most=3)


@dataclass(frozen=True)
class Copying:
    score: float
    """Σ Re λ / Σ |λ|: from −1, suppresses what it sees, to 1, copies it."""
    z: float
    """The trace in standard deviations of a random alignment of the two sides."""


def copying(head: Head) -> Copying:
    B = small_matrix(head)
    values = torch.linalg.eigvals(B)
    size = float(values.abs().sum())
    score = float(values.real.sum()) / size if size > 0 else 0.0
    norm = float(B.norm())
    z = sqrt(len(B)) * float(B.trace()) / norm if norm > 0 else 0.0
    return Copying(score, z)


def eigenvalues(head: Head) -> Complex[Tensor, "r"]:
    """The eigenvalues of VO over all tokens that are not zero, the largest first."""
    values: Tensor = torch.linalg.eigvals(small_matrix(head))
    return values[values.abs().argsort(descending=True)]


def small_matrix(head: Head) -> Float[Tensor, "r r"]:
    """W_O K W_V in float64."""
    K = _kernel(head)
    W_V, W_O = (exactly(W).to(K.device) for W in (head.W_V, head.W_O))
    return W_O @ K @ W_V


def _kernel(head: Head) -> Float[Tensor, "d_written d_read"]:
    """Σ w rᵀ over the tokens that lists may show."""
    read, written = head.vo.space_of("V"), head.vo.space
    key = head.weights.options, written.first, head.spec.crosses
    make = lambda: gram(written.side("O"), read.side("V"))  # noqa: E731
    return KERNELS.get(head.weights.cache, key, make)


def all_copying(model: Anatomy) -> list[Copying]:
    """Of every head, layer after layer."""
    return [copying(head) for head in model.every_head]
