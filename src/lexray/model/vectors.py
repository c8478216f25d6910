"""Parameter vectors that can be read: one at a time, or a whole group in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.progress import track
from lexray.result.readings import Reading, Readings
from lexray.space.kinds import Kind
from lexray.vocabulary.filters import Filter

if TYPE_CHECKING:
    from lexray.model.model import Model

VECTORS_AT_ONCE = 1024


@dataclass(frozen=True)
class Vector:
    """One d_model-vector of a model: a neuron's value, a subhead, a bias, a norm's gain."""

    model: Model
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

        >>> model["L23N907"].value.top(30)
        >>> model["L3H7.V12"].top(10, filter=filters.ascii & filters.starts_word)
        """
        (reading,) = self.model.space.readings(
            self.tensor[None], self.kind, [self.address], k, filter, self.name
        )
        return reading

    def __repr__(self) -> str:
        return f"<{self.name or self.kind} {self.address} of {self.model.name}>"


@dataclass(frozen=True)
class VectorGroup:
    """Vectors of one kind that lie together, such as all values of a layer."""

    model: Model
    address: str
    kind: Kind
    n: int
    read: Callable[[], Tensor]
    """All of them, n × d_model."""
    address_of: Callable[[int], str]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Vector:
        if not -self.n <= index < self.n:
            raise LexrayError(
                f"there is no {self.kind} vector {index}: {self.address} has 0–{self.n - 1}"
            )
        i = index % self.n
        return Vector(self.model, self.address_of(i), self.kind, lambda: self.read()[i])

    def __iter__(self) -> Iterator[Vector]:
        whole = self.read()
        return (
            Vector(self.model, self.address_of(i), self.kind, lambda i=i: whole[i])  # type: ignore[misc]
            for i in range(self.n)
        )

    @property
    def tensor(self) -> Float[Tensor, "n d_model"]:
        return self.read()

    def stream(self, k: int = 10, *, filter: Filter | None = None) -> Iterator[Reading]:
        """A reading of each vector, made while it is asked for."""
        whole = self.read()
        for start in range(0, self.n, VECTORS_AT_ONCE):
            block = whole[start : start + VECTORS_AT_ONCE]
            addresses = [self.address_of(start + i) for i in range(len(block))]
            yield from self.model.space.readings(block, self.kind, addresses, k, filter)

    def top(self, k: int = 10, *, filter: Filter | None = None) -> Readings:
        """Every vector's k largest and smallest tokens.

        >>> model.layers[20].values.top(10).by_legibility()
        """
        what = f"{self.address} {self.kind}"
        read = tuple(track(self.stream(k, filter=filter), self.n, f"reading {what}"))
        source = self.model.space.source(self.address, filter)
        return Readings(source, read, title=f"{what}: {self.n} vectors")

    def __repr__(self) -> str:
        return f"<{self.n} {self.kind} vectors of {self.address}>"
