"""Parameter vectors that can be read: one at a time, or a whole group in a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.groups import Group
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.result.readings import NamedReadings, Reading, Readings
from lexray.space.kinds import EXPECTS, WRITES, Kind
from lexray.space.space import EmbeddingSpace, space_of
from lexray.vocabulary.filters import FilterLike, read_filter

VECTORS_AT_ONCE = 1024
ELEMENTS_AT_ONCE = 2**22
"""Of the vectors that a search or a comparison goes through."""


@dataclass(frozen=True)
class Vector:
    """One d_model-vector of a model: a neuron's value, a subhead, a bias, a norm's gain."""

    weights: Weights
    address: str
    kind: Kind
    read: Callable[[], Tensor]
    name: str = ""
    """What it is called in results; its kind if empty."""
    layer: int | None = None
    """Where it lies; None outside the blocks."""

    @property
    def tensor(self) -> Float[Tensor, "d_model"]:
        """The vector itself, as the view reads it."""
        return self.read()

    @property
    def space(self) -> EmbeddingSpace:
        """Where it is read as words."""
        return space_of(self.weights, self.layer)

    def top(self, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """Its k largest and k smallest tokens.

        >>> model["L3N17"].value.top(30)
        >>> model["L3H2.V12"].top(10, filter=filters.ascii & filters.starts_word)
        """
        return self._read_as(self.weights, k, filter, self.name)

    @property
    def readings(self) -> tuple[str, ...]:
        """How it can be read: for keys, gates and queries under the standard view, what they see
        (the token they stand on) and what they expect (the one to come)."""
        two = self.kind in EXPECTS and self.weights.options.sees_and_expects
        return ("sees", "expects") if two else ("top",)

    def sees(self, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """The tokens it responds to, through the effective embedding."""
        self._refuse_writers("see")
        return self._read_as(self.weights.view(reading="effective"), k, filter, self.name)

    def expects(self, k: int = 30, *, filter: FilterLike = None) -> Reading:
        """The tokens to come where it responds, through the output embedding.

        >>> model["L2N77"].key.expects(10)
        """
        self._refuse_writers("expect")
        name = f"{self.name or self.kind} expects"
        return self._read_as(self.weights.view(reading="output"), k, filter, name)

    def every(self, k: int = 30, *, filter: FilterLike = None) -> NamedReadings:
        """Each of its `readings`."""
        filter = read_filter(filter)
        made = tuple(getattr(self, way)(k, filter=filter) for way in self.readings)
        return NamedReadings(space_of(self.weights, self.layer).source(self.address, filter), made)

    def evidence(self, text: str | None = None, n: int = 10) -> Any:
        """Where it is strongest in running text; see `lexray.model.model.Model.evidence`."""
        return self.weights.evidence(self.address, text, n)

    def _refuse_writers(self, verb: str) -> None:
        if self.kind in WRITES:
            raise LexrayError(f"{self.address} writes: it does not {verb} tokens; try .top()")

    def _read_as(self, weights: Weights, k: int, given: FilterLike, name: str) -> Reading:
        filter = read_filter(given)
        (reading,) = space_of(weights, self.layer).readings(
            self.tensor[None], self.kind, [self.address], k, filter, name
        )
        return reading

    def __repr__(self) -> str:
        return f"<{self.name or self.kind} {self.address} of {self.weights.name}: .top()>"


def blocks_of(groups: Iterable[VectorGroup]) -> Iterator[Float[Tensor, "_ d_model"]]:
    """All vectors of groups, small ones joined."""
    waiting: list[Tensor] = []
    for part in (part for group in groups for part in group.groups):
        most = max(1, ELEMENTS_AT_ONCE // part.weights.d_model)
        for rows in part.blocks(most):
            if waiting and sum(map(len, waiting)) + len(rows) > most:
                yield torch.cat(waiting)
                waiting = []
            waiting.append(rows)
    if waiting:
        yield torch.cat(waiting)


class VectorGroup(Sequence[Vector]):
    """Vectors of one kind that belong together, such as all values of a layer.

    `groups` say where they lie: the linear, the norm and the slice. There is one, but for layers of
    several heads or experts.
    """

    def __init__(self, address: str, groups: Sequence[Group]) -> None:
        self.address = address
        self.groups = tuple(groups)
        self.weights, self.kind = groups[0].read_in, groups[0].kind
        self.layer = groups[0].layer
        self.n = sum(group.n for group in groups)

    @property
    def space(self) -> EmbeddingSpace:
        """Where they are read as words."""
        return space_of(self.weights, self.layer)

    def __len__(self) -> int:
        return self.n

    def _locate(self, i: int) -> tuple[Group, int]:
        for group in self.groups:
            if i < group.n:
                return group, i
            i -= group.n
        raise IndexError(i)

    def address_of(self, i: int) -> str:
        group, at = self._locate(i)
        return group.address_of(at)

    def __getitem__(self, index: int) -> Vector:  # type: ignore[override]
        if not -self.n <= index < self.n:
            raise LexrayError(
                f"there is no {self.kind} vector {index}: {self.address} has 0–{self.n - 1}"
            )
        group, i = self._locate(index % self.n)
        return Vector(
            self.weights,
            group.address_of(i),
            self.kind,
            lambda: group.rows(i, i + 1)[0],
            layer=group.layer,
        )

    def __iter__(self) -> Iterator[Vector]:
        for group in self.groups:
            whole = group.tensor
            for i in range(group.n):
                yield Vector(
                    self.weights,
                    group.address_of(i),
                    self.kind,
                    lambda x=whole[i]: x,  # type: ignore[misc]
                    layer=group.layer,
                )

    @property
    def tensor(self) -> Float[Tensor, "n d_model"]:
        """All of them, as rows."""
        if len(self.groups) == 1:
            return self.groups[0].tensor
        return torch.cat([group.tensor for group in self.groups])

    def blocks(self) -> Iterator[Float[Tensor, "_ d_model"]]:
        """All of them, some at a time: a layer's neurons need not lie in memory together."""
        return blocks_of([self])

    def stream(self, k: int = 10, *, filter: FilterLike = None) -> Iterator[Reading]:
        """A reading of each vector, made while it is asked for."""
        filter = read_filter(filter)
        space, start = space_of(self.weights, self.layer), 0
        for block in chain.from_iterable(torch.split(x, VECTORS_AT_ONCE) for x in self.blocks()):
            addresses = [self.address_of(start + i) for i in range(len(block))]
            yield from space.readings(block, self.kind, addresses, k, filter)
            start += len(block)

    def top(self, k: int = 10, *, filter: FilterLike = None) -> Readings:
        """Every vector's k largest and smallest tokens.

        >>> model.layers[2].values.top(10).by_legibility()
        """
        filter = read_filter(filter)
        what = f"{self.address} {self.kind}"
        read = tuple(track(self.stream(k, filter=filter), self.n, f"reading {what}"))
        source = space_of(self.weights, self.layer).source(self.address, filter)
        return Readings(source, read, title=f"{what}: {self.n} vectors")

    def __repr__(self) -> str:
        return f"<{self.n} {self.kind} vectors of {self.address}: [0].top()>"
