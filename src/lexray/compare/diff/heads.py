"""How a head's circuits moved: the difference of two rank-r products, factored with rank 2r.

With ΔL = L′ − L and ΔR = R′ − R, L′R′ − L R = ΔL·R′ + L·ΔR = [ΔL, L]·[R′; ΔR]: the same product
as [L′, −L]·[R′; R], without the cancellation. Its token pairs come exactly from `top_pairs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.compare.diff.pair import Delta, Two
from lexray.compare.diff.stacks import SUBHEADS, Stack
from lexray.compare.diff.words import readable
from lexray.model.circuits import Circuit
from lexray.model.head import Head
from lexray.model.model import Model
from lexray.result.pairs import Pair
from lexray.scratch import each_part
from lexray.space.kinds import Kind
from lexray.space.legibility import WINDOW
from lexray.space.space import space_of
from lexray.space.topk.pairs import Sign, top_pairs
from lexray.vocabulary.filters import Filter

Matrix = Literal["VO", "QK"]
SIDES: dict[Matrix, tuple[Literal["V", "Q"], Literal["O", "K"]]] = {
    "VO": ("V", "O"),
    "QK": ("Q", "K"),
}


@dataclass(frozen=True)
class Product:
    """PᵀQ: how a head's d×d matrix moved."""

    P: Float[Tensor, "m d_model"]
    Q: Float[Tensor, "m d_model"]

    @property
    def size(self) -> float:
        """‖PᵀQ‖, from m×m matrices."""
        return product_norm(self.P.T, self.Q.T)


def product_norm(A: Float[Tensor, "n m"], B: Float[Tensor, "n2 m"]) -> float:
    """‖A Bᵀ‖, from m×m matrices, in float64 on the CPU."""
    one, other = (_multiply_itself(X) for X in (A, B))
    return float((one * other).sum().clamp(min=0).sqrt())


def _multiply_itself(X: Float[Tensor, "n m"]) -> Float[Tensor, "m m"]:
    """Xᵀ X in float64, of rows that may lie in a file."""
    total = torch.zeros(X.shape[1], X.shape[1], dtype=torch.float64)
    for part in each_part(X):
        exact = part.cpu().double()
        total += exact.T @ exact
    return total


@dataclass(frozen=True)
class MovedFactors:
    """A head's two factors before, and how each moved; None where it did not."""

    before: tuple[Float[Tensor, "r d_model"], Float[Tensor, "r d_model"]]
    deltas: tuple[Float[Tensor, "r d_model"] | None, Float[Tensor, "r d_model"] | None]

    @property
    def product(self) -> Product:
        (L, R), (dL, dR) = self.before, self.deltas
        after = R if dR is None else R + dR
        terms = [(dL, after), (L, dR)]
        kept = [(p, q) for p, q in terms if p is not None and q is not None]
        return Product(torch.cat([p for p, _ in kept]), torch.cat([q for _, q in kept]))

    @property
    def size_before(self) -> float:
        return Product(*self.before).size


class HeadChanges:
    """The circuits of one layer's heads, from the changes of their subheads."""

    def __init__(self, two: Two, layer: int, stacks: dict[str, tuple[Stack, Stack]]) -> None:
        self.two, self.layer, self._stacks = two, layer, stacks
        self._read: dict[str, Delta | None] = {}

    @property
    def count(self) -> int:
        """How many heads can be compared: none where the models have different numbers."""
        numbers = {len(m.layers[self.layer].heads) for m in (self.two.base, self.two.tuned)}
        return numbers.pop() if len(numbers) == 1 else 0

    def keep_only(self, head: int) -> list[str]:
        """The names of a head's subheads; those of others are no longer held."""
        names = [self._name(head, side) for side in SUBHEADS]
        self._read = {name: delta for name, delta in self._read.items() if name in names}
        return names

    def subheads(self, name: str) -> Delta | None:
        """How a stack such as `L3H7.Q` moved, found once."""
        if name not in self._read:
            self._read[name] = self.two.delta(*self._stacks[name])
        return self._read[name]

    def measure(self, head: int, matrix: Matrix) -> MovedFactors | None:
        """How a head's circuit moved; None if it did not, or if a part of it is missing."""
        ends = [self._name(head, side) for side in SIDES[matrix]]
        if not all(name in self._stacks for name in ends):
            return None
        deltas = [self.subheads(name) for name in ends]
        heads = [model.layers[self.layer].heads[head] for model in (self.two.base, self.two.tuned)]
        turned = matrix == "QK" and any(h.rotation() is not None or _gains(h) for h in heads)
        if not turned and deltas[0] is None and deltas[1] is None:
            return None
        before = [
            self._before(name) if d is None else d.before
            for name, d in zip(ends, deltas, strict=True)
        ]
        after = [x if d is None else x + d.dense for x, d in zip(before, deltas, strict=True)]
        if not turned:
            return MovedFactors(
                (before[0], before[1]),
                (None if deltas[0] is None else deltas[0].dense,
                 None if deltas[1] is None else deltas[1].dense),
            )  # fmt: skip
        old, new = _turn(heads[0], before), _turn(heads[1], after)
        moves = [b - a if bool((b - a).any()) else None for a, b in zip(old, new, strict=True)]
        if moves == [None, None]:
            return None
        return MovedFactors((old[0], old[1]), (moves[0], moves[1]))

    def _name(self, head: int, side: Literal["Q", "K", "V", "O"]) -> str:
        h = self.two.base.layers[self.layer].heads[head]
        if side in ("K", "V"):
            head = h.kv_index * (len(h.spec.q.starts) // len(h.spec.k.starts))
        return f"L{self.layer}H{head}.{side}"

    def _before(self, name: str) -> Tensor:
        b, t = self._stacks[name]
        return b.read(self.two.rounding(b, t)[0])


def _gains(head: Head) -> bool:
    return head.spec.q_norm is not None


def _turn(head: Head, ends: list[Tensor]) -> list[Tensor]:
    """Queries and keys with the gains of their norms, and queries rotated."""
    Q, K = ends
    for norm, heads, index in (
        (head.spec.q_norm, head.spec.q, head.index),
        (head.spec.k_norm, head.spec.k, head.kv_index),
    ):
        if norm is None or norm.turned:  # else the gains are part of the rotation
            continue
        own = norm.joint or norm.heads[index]
        gain = own.read_gain(head.weights.checkpoint)
        if gain is not None:
            gain = gain[heads.outputs(index)] if norm.joint else gain
            scaled = (Q if heads is head.spec.q else K) * gain.to(Q)[:, None]
            Q, K = (scaled, K) if heads is head.spec.q else (Q, scaled)
    R = head.rotation()
    return [Q if R is None else R.to(Q).T @ Q, K]


@dataclass(frozen=True)
class ChangedPairs:
    """The pairs whose scores rose and fell most, and how far the first stands out."""

    top: tuple[Pair, ...]
    bottom: tuple[Pair, ...]
    peak: float
    """The largest absolute score over the root mean square of all."""
    legibility: float
    reads: float
    """How well the words of its better end read."""


def read_pairs(
    two: Two, reader: Model, moved: MovedFactors, circuit: Circuit, k: int, filter: Filter | None
) -> ChangedPairs:
    """The exact top pairs of a circuit's change, in the embedding of `reader`.

    Where queries and keys are normed, scores are not linear in the embeddings: then the factors
    of both models are subtracted token by token.
    """
    space = space_of(reader, circuit.head.layer)
    ids = space.list_ids(filter)
    if circuit.matrix == "QK" and circuit.head.spec.q_norm is not None:
        other = two.tuned.layers[circuit.head.layer].heads[circuit.head.index].qk
        sides = [space.side(kind, filter) for kind in circuit.kinds]
        (A0, B0), (A1, B1) = (c.factors_between(*sides) for c in (circuit, other))
        A, B = torch.cat([A1 - A0.to(A1), A0.to(A1)], 1), torch.cat([B1, B1 - B0.to(B1)], 1)
    else:
        product = moved.product
        A, B = (
            space.whole(kind).factors([X.T], ids)[0]
            for kind, X in zip(circuit.kinds, (product.P, product.Q), strict=True)
        )
    signs: tuple[Sign, Sign] = ("largest", "smallest")
    best = [top_pairs(A, B, max(k, WINDOW), sign=sign) for sign in signs]
    ends = [_pairs(reader, one.rows, one.cols, one.values, ids) for one in best]
    typical = product_norm(A, B) / (len(A) * len(B)) ** 0.5
    largest = max((abs(float(one.values[0])) for one in best if len(one.values)), default=0.0)
    legible, reads = (
        max(_legibility(measure, pairs, circuit.kinds) for pairs in ends)
        for measure in (space.legibility, partial(readable, space))
    )
    top, bottom = (pairs[:k] for pairs in ends)
    return ChangedPairs(top, bottom, largest / (typical or 1.0), legible, reads)


def _pairs(
    reader: Model,
    rows: Int[Tensor, "k"],
    cols: Int[Tensor, "k"],
    values: Float[Tensor, "k"],
    ids: Int[Tensor, "some"] | None,
) -> tuple[Pair, ...]:
    left, right = (x.tolist() if ids is None else ids[x].tolist() for x in (rows, cols))
    token = reader.space.token
    return tuple(
        Pair(value, token(i), token(j))
        for value, i, j in zip(values.tolist(), left, right, strict=True)
    )


def _legibility(
    measure: Callable[[Tensor, Kind], Tensor], pairs: tuple[Pair, ...], kinds: Sequence[Kind]
) -> float:
    """The mean of the rows' and the columns'."""
    sides = [p.row for p in pairs], [p.col for p in pairs]
    lists = [list(dict.fromkeys(token.id for token in side)) for side in sides]
    scores = [
        float(measure(torch.tensor([ids]), kind)[0])
        for ids, kind in zip(lists, kinds, strict=True)
        if ids
    ]
    return sum(scores) / max(1, len(scores))
