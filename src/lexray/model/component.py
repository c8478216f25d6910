"""What all parts of a model share: lazy sequences, and reading through the model's view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar, overload

from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.families.shapes import block_shapes, check
from lexray.families.spec import ALL, Linear, Norm
from lexray.model import fold

if TYPE_CHECKING:
    from lexray.model.model import Model

Part = TypeVar("Part")


class Parts(Sequence[Part]):
    """A lazy sequence of numbered parts: `model.layers`, `layer.heads`, `ff.neurons`."""

    def __init__(self, what: str, owner: str, make: Callable[[int], Part], n: int) -> None:
        self._what, self._owner, self._make, self._n = what, owner, make, n

    @overload
    def __getitem__(self, i: int) -> Part: ...
    @overload
    def __getitem__(self, i: slice) -> list[Part]: ...
    def __getitem__(self, i: int | slice) -> Part | list[Part]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._n))]
        if not -self._n <= i < self._n:
            there = f"{self._what}s 0–{self._n - 1}" if self._n else f"no {self._what}s"
            raise LexrayError(f"there is no {self._what} {i}: {self._owner} has {there}")
        return self._make(i % self._n)

    def __iter__(self) -> Iterator[Part]:
        return (self[i] for i in range(self._n))

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<{self._n} {self._what}s of {self._owner}>"


class Component:
    """What all parts share: the model they belong to, and how they read through its view."""

    def __init__(self, model: Model, address: Address) -> None:
        self.model = model
        self.address = address

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} of {self.model.name}>"

    def _read(self, linear: Linear, norm: Norm | None, outputs: slice = ALL) -> Tensor:
        """A reader W[:, outputs] of what `norm` gives."""
        self._check(linear)
        W = linear.read(self.model.checkpoint, outputs=outputs)
        if self.model.options.folded:
            W = fold.reader(W, norm, self.model.checkpoint)
        return self.model.place(W)

    def _read_bias(self, linear: Linear, norm: Norm | None, outputs: slice = ALL) -> Tensor | None:
        bias = linear.read_bias(self.model.checkpoint, outputs)
        if self.model.options.folded and norm is not None and norm.bias is not None:
            W = linear.read(self.model.checkpoint, outputs=outputs)
            bias = fold.reader_bias(bias, W, norm, self.model.checkpoint)
        return None if bias is None else self.model.place(bias)

    def _write(self, linear: Linear, norm: Norm | None, inputs: slice = ALL) -> Tensor:
        """A writer W[inputs] into what `norm` normalises."""
        self._check(linear)
        W = linear.read(self.model.checkpoint, inputs=inputs)
        if self.model.options.folded:
            W = fold.writer(W, norm, self.model.checkpoint)
        return self.model.place(W)

    def _check(self, linear: Linear) -> None:
        """Raises if the weight's size is not the config's."""
        model, layer = self.model, self.address.layer
        shapes = model.cache.get(("shapes", layer))
        if shapes is None:
            shapes = block_shapes(model.architecture, model.architecture.blocks[layer])
            model.cache["shapes", layer] = shapes
        check(linear, model.checkpoint, shapes)

    def _write_bias(self, linear: Linear, norm: Norm | None) -> Tensor | None:
        bias = linear.read_bias(self.model.checkpoint)
        if bias is None:
            return None
        if self.model.options.folded:
            bias = fold.writer(bias, norm, self.model.checkpoint)
        return self.model.place(bias)
