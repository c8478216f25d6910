"""Parameter vectors that can be read: one at a time, or a whole group in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.groups import Group
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.result.readings import Reading, Readings
from lexray.space.kinds import Kind
from lexray.space.space import space_of
from lexray.vocabulary.filters import Filter

VECTORS_AT_ONCE = 1024


@dataclass(frozen=True)
class Vector:
    """One d_model-vector of a model: a neuron's value, a subhead, a bias, a norm's gain."""

    weights: Weights
    address: str
    kind: Kind
    read: Callable[[], Tensor]
    name: str = ""
    """What it is called in results; its kind if empty."""

    @property
    def tensor(self) -> Float[Tensor, "d_model"]:
        return self.read()

    def top(self, k: int = 30, *, filter: Filter | None = None) -> Reading:
        """Its k largest and k smallest tokens.

        >>> model["L3N17"].value.top(30)
        >>> model["L3H2.V12"].top(10, filter=filters.ascii & filters.starts_word)
        """
        (reading,) = space_of(self.weights).readings(
            self.tensor[None], self.kind, [self.address], k, filter, self.name
        )
        return reading

    def __repr__(self) -> str:
        return f"<{self.name or self.kind} {self.address} of {self.weights.name}>"


class VectorGroup(Sequence[Vector]):
    """Vectors of one kind that belong together, such as all values of a layer.

    `groups` say where they lie: the linear, the norm and the slice. There is one, but for layers of
    several heads or experts.
    """

    def __init__(self, address: str, groups: Sequence[Group]) -> None:
        self.address = address
        self.groups = tuple(groups)
        self.weights, self.kind = groups[0].weights, groups[0].kind
        self.n = sum(group.n for group in groups)

    def __len__(self) -> int:
        return self.n

    def _located(self, i: int) -> tuple[Group, int]:
        for group in self.groups:
            if i < group.n:
                return group, i
            i -= group.n
        raise IndexError(i)

    def address_of(self, i: int) -> str:
        group, at = self._located(i)
        return group.address_of(at)

    def __getitem__(self, index: int) -> Vector:  # type: ignore[override]
        if not -self.n <= index < self.n:
            raise LexrayError(
                f"there is no {self.kind} vector {index}: {self.address} has 0–{self.n - 1}"
            )
        group, i = self._located(index % self.n)
        return Vector(self.weights, group.address_of(i), self.kind, lambda: group.rows(i, i + 1)[0])

    def __iter__(self) -> Iterator[Vector]:
        for group in self.groups:
            whole = group.tensor
            for i in range(group.n):
                yield Vector(
                    self.weights,
                    group.address_of(i),
                    self.kind,
                    lambda x=whole[i]: x,  # type: ignore[misc]
                )

    @property
    def tensor(self) -> Float[Tensor, "n d_model"]:
        """All of them, as rows."""
        if len(self.groups) == 1:
            return self.groups[0].tensor
        return torch.cat([group.tensor for group in self.groups])

    def stream(self, k: int = 10, *, filter: Filter | None = None) -> Iterator[Reading]:
        """A reading of each vector, made while it is asked for."""
        whole, space = self.tensor, space_of(self.weights)
        for start in range(0, self.n, VECTORS_AT_ONCE):
            block = whole[start : start + VECTORS_AT_ONCE]
            addresses = [self.address_of(start + i) for i in range(len(block))]
            yield from space.readings(block, self.kind, addresses, k, filter)

    def top(self, k: int = 10, *, filter: Filter | None = None) -> Readings:
        """Every vector's k largest and smallest tokens.

        >>> model.layers[2].values.top(10).by_legibility()
        """
        what = f"{self.address} {self.kind}"
        read = tuple(track(self.stream(k, filter=filter), self.n, f"reading {what}"))
        source = space_of(self.weights).source(self.address, filter)
        return Readings(source, read, title=f"{what}: {self.n} vectors")

    def __repr__(self) -> str:
        return f"<{self.n} {self.kind} vectors of {self.address}>"
