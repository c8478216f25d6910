"""What a head's weights say that it does with given tokens: what it writes, and where it looks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.fold import at_least_float32
from lexray.model.head import Head


def score_written(
    head: Head, token: int, among: Int[Tensor, "some"] | None = None
) -> Float[Tensor, "e"]:
    """What attending to a token writes, by the head's view: scores of all tokens, or of some."""
    space, W_V, W_O = head.vo.space, at_least_float32(head.W_V), at_least_float32(head.W_O)
    row = head.vo.space_of("V").whole("V").only(torch.tensor([token])).factor(W_V)
    listed = space.whole("O") if among is None else space.whole("O").only(among)
    return listed.project(row.to(W_O) @ W_O)[0].float().cpu()


def look_factors(
    head: Head, ids: Sequence[int]
) -> tuple[Float[Tensor, "n r"], Float[Tensor, "n r"]]:
    """The queries and the keys of a text's tokens, each by itself."""
    own = torch.tensor(list(ids))
    sides = [head.qk.space.whole(kind).only(own) for kind in head.qk.kinds]
    A, B = head.qk.factors_between(*sides)
    return A.cpu().double(), B.cpu().double()


def score_looks(
    head: Head, A: Float[Tensor, "n r"], B: Float[Tensor, "n r"]
) -> Float[Tensor, "n n"]:
    """q R(distance) kᵀ of each query with the keys up to it, at their true distances."""
    scores = torch.zeros(len(A), len(B), dtype=torch.float64)
    for distance in range(len(A)):
        R = head.rotation(-distance)
        turned = A[distance:] if R is None else A[distance:] @ R.cpu().double()
        scores.diagonal(-distance)[:] = (turned * B[: len(turned)]).sum(1)
    return scores
