"""Tensors as transformers takes them, and what a module of one block need not hold of them.

In full precision a large model's embedding and its first block would be gigabytes. The embedding
stays as it is stored, and the module is given the rows that it looks up; large weights lie in files
(`lexray.scratch`), and each is let go of when it has been multiplied with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from threading import Lock
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lexray.model.embedding import read_rows
from lexray.model.weights import Weights
from lexray.scratch import empty_rows, is_held, join_rows, let_go


class Lazy:
    """A tensor of a checkpoint, read when transformers takes its `[...]`."""

    def __init__(self, model: Weights, name: str, lock: Lock, dtype: torch.dtype) -> None:
        self.model, self.name, self.lock, self.dtype = model, name, lock, dtype

    def __getitem__(self, index: Any) -> Tensor:
        with self.lock:
            return self._read(_own_part(self.model, self.name))

    def _read(self, part: tuple[slice, ...]) -> Tensor:
        return self.model.tensor(self.name, *part)


class Shelf:
    """Room in one file for tensors that are small each and large together: experts, which
    transformers collects before it stacks them."""

    def __init__(self, model: Weights, names: Iterable[str], dtype: torch.dtype) -> None:
        infos = [model.checkpoint.info(name) for name in names]
        numbers = [prod(info.shape) for info in infos if len(info.shape) > 1]
        self._left = sum(n for n in numbers if is_held(n * dtype.itemsize))
        self._dtype, self._room = dtype, torch.empty(0)
        if model.device.type != "cpu" or is_held(self._left * dtype.itemsize):
            self._left = 0

    def put(self, X: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """The same tensor, there if there is room."""
        n = X.numel()
        if X.ndim < 2 or X.dtype != self._dtype or n > self._left:
            return X
        if not len(self._room):
            self._room = empty_rows((self._left,), X)
        own = self._room[len(self._room) - self._left :][:n].view(X.shape)
        self._left -= n
        own.copy_(X)
        let_go(own)
        return own


class Filed(Lazy):
    """One that lies in a file in the module's precision, if it is large, from its first row on."""

    def __init__(
        self, model: Weights, name: str, lock: Lock, dtype: torch.dtype, *, shelf: Shelf
    ) -> None:
        super().__init__(model, name, lock, dtype)
        self.shelf = shelf

    def _read(self, part: tuple[slice, ...]) -> Tensor:
        info = self.model.checkpoint.info(self.name)
        size = prod(info.shape) * self.dtype.itemsize
        usual = not part and info.dtype.is_floating_point and self.model.device.type == "cpu"
        if not usual or len(info.shape) < 2 or is_held(size):
            return self.shelf.put(super()._read(part).to(self.dtype))
        parts = (rows.to(self.dtype) for rows in read_rows(self.model, self.name, size))
        return join_rows(info.shape[0], parts)


class Joining(TorchFunctionMode):
    """Inside, what is stacked or joined of many tensors lies in a file, if it is large."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func not in (torch.stack, torch.cat) or "out" in options:
            return func(*args, **options)
        tensors = args[0] if args else options.pop("tensors")
        whole = all(X.device.type == "cpu" and X.dtype == tensors[0].dtype for X in tensors)
        if not whole or is_held(sum(X.nbytes for X in tensors)):
            return func(tensors, *args[1:], **options)
        shape = func([X.to("meta") for X in tensors], *args[1:], **options).shape
        joined = empty_rows(tuple(shape), tensors[0])
        func(tensors, *args[1:], **options, out=joined)
        for X in (joined, *tensors):
            let_go(X)
        return joined


def _own_part(model: Weights, name: str) -> tuple[slice, ...]:
    """What of a tensor belongs to the layers that are described: of one that has a part for each
    layer of the model (Gemma's second embedding) those of the first ones, else all."""
    inputs, n = model.architecture.layer_inputs, len(model.architecture.blocks)
    if inputs is None or name not in (inputs.table, inputs.project.weight):
        return ()
    own = slice(0, n * inputs.width)
    return (slice(None), own) if name == inputs.table else (own,)


class Absent:
    """A tensor's shape for transformers to take, with one number in it, which is none."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def __getitem__(self, index: Any) -> Tensor:
        return torch.full((), torch.nan, dtype=self.dtype).expand(self.shape)


def let_go_after(module: nn.Module) -> None:
    """From now on weights that lie in files are in memory only while their part runs."""

    def leave(part: nn.Module, _: Any, __: Any) -> None:
        for weight in part.parameters(recurse=False):
            let_go(weight)

    for part in module.modules():
        if any(True for _ in part.parameters(recurse=False)):
            part.register_forward_hook(leave)


def look_up(embedding: nn.Module, rows: Float[Tensor, "e width"], dtype: torch.dtype) -> None:
    """From now on the module finds its tokens among these rows."""

    def fetch(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        ids, *more = args
        some = _take(rows, ids.flatten()).to(ids.device, dtype)
        module.weight = nn.Parameter(some, requires_grad=False)
        return (torch.arange(ids.numel(), device=ids.device).view_as(ids), *more)

    embedding.padding_idx = None  # type: ignore[assignment]  # another row here; training's business
    embedding.register_forward_pre_hook(fetch)


def _take(rows: Float[Tensor, "e width"], ids: Int[Tensor, "n"]) -> Float[Tensor, "n width"]:
    """These rows; neighbours are read together, and nothing of what lies in a file is mapped."""
    first, n = int(ids[0]) if len(ids) else 0, len(ids)
    if bool((ids.cpu() == torch.arange(first, first + n)).all()):
        return rows[first : first + n]
    return rows[ids.to(rows.device)]
