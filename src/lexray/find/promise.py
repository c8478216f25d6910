"""What a head's weights say that it does with given tokens: what it writes, and where it looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.model.head_matrices import Map


def score_written(
    head: Head, token: int, among: Int[Tensor, "some"] | None = None
) -> Float[Tensor, "e"]:
    """What attending to a token writes, by the head's view: scores of all tokens, or of some."""
    space, W_V, W_O = head.vo.space, at_least_float32(head.W_V), at_least_float32(head.W_O)
    row = head.vo.space_of("V").whole("V").only(torch.tensor([token])).factor(W_V)
    listed = space.whole("O") if among is None else space.whole("O").only(among)
    return listed.project(row.to(W_O) @ W_O)[0].float().cpu()


@dataclass(frozen=True, eq=False)
class Looks:
    """Where a head's weights say that it looks in texts; they are read once."""

    head: Head

    @cached_property
    def _maps(self) -> tuple[Map, Map]:
        head = self.head
        return head.query_map(bias=False, clip=False), head.key_map(bias=False, clip=False)

    def factors(self, ids: Sequence[int]) -> tuple[Float[Tensor, "n r"], Float[Tensor, "n r"]]:
        """The queries and the keys of a text's tokens, each by itself, before they are turned."""
        own, circuit = torch.tensor(list(ids)), self.head.qk
        sides = [circuit.space_of(kind).whole(kind).only(own) for kind in circuit.kinds]
        A, B = (side.map_rows(each) for side, each in zip(sides, self._maps, strict=True))
        return A.cpu().double(), B.cpu().double()

    def score(self, A: Float[Tensor, "n r"], B: Float[Tensor, "n r"]) -> Float[Tensor, "n n"]:
        """Each query with the keys up to it, both turned as at their positions."""
        if (rotary := self.head.spec.rotary) is not None:
            at = torch.arange(len(A))
            A, B = (rotary.turn(x[:, None], at)[:, 0] for x in (A, B))
            if (gains := self.head.turned_gains) is not None:
                A = A * gains.cpu().double()
        return (A @ B.T).tril()
