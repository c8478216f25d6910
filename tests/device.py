"""A device that is not there: tensors that say they lie on it, and refuse what it would refuse.

A tensor on it holds a CPU tensor, with which all is computed; the difference is in what it says and
in what it does not let pass:

- tensors of two places meeting in one operation (but for numbers of no axis, and indices, which
  torch takes from the CPU);
- on a `meagre` device, float64 and what else MPS does not have: decompositions, products of bytes.

It counts what waits for the device: numbers that are asked for (`.item()`, `bool`) and tensors that
are copied from it. So a kernel that is right and quick on the CPU because everything lies there
does not pass. What it cannot show is how fast a real device is, and the last bits of its sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.dispatch import map_tensors, tensors_in

NAME = "elsewhere"
MISSING = ("_linalg_eigh", "_linalg_svd", "linalg_qr", "geqrf", "_int_mm", "segment_reduce")
"""What MPS does not have, or only by way of the CPU."""
INDEXING = ("aten.index.", "aten.index_put", "aten._index_put")
COPYING = ("aten._to_copy.", "aten.copy_.")
ASKING = "aten._local_scalar_dense."

_setup_privateuseone_for_python_backend(NAME)  # once: torch then knows a device of this name


class Elsewhere(Tensor):
    """A tensor on the device."""

    inner: Tensor
    place: Device

    @staticmethod
    def __new__(cls, inner: Tensor, place: Device) -> Elsewhere:
        found: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=place.device,
        )
        found.inner, found.place = inner, place
        return found

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"{self.inner!r} on {self.place.device}"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def new_tensor(self, data: Any, **options: Any) -> Tensor:  # type: ignore[override]
        return self.place.place(self.inner.new_tensor(data, **options))

    def tolist(self) -> list[Any]:
        found: list[Any] = self.cpu().tolist()
        return found

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"a tensor on {self.place.device} is no array; copy it to the CPU")
        return self.cpu().numpy()

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        held = [x for x in tensors_in((args, kwargs)) if isinstance(x, Elsewhere)]
        return held[0].place.run(func, args, kwargs or {})


class Device(TorchDispatchMode):
    """The device; tensors can be made on it inside `with`."""

    def __init__(self, *, meagre: bool = True) -> None:
        super().__init__()
        self.device = torch.device(NAME, 0)
        self.meagre = meagre
        self.waits: Counter[str] = Counter()
        """How often something waited for it: `asked` for a number, `copied` from it."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def place(self, x: Tensor) -> Tensor:
        """A tensor of the CPU, on the device."""
        if self._lacks(x.dtype):
            raise TypeError(f"{self.device} has no {x.dtype}")
        return Elsewhere(x.clone(), self)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One operation, where its tensors lie or where it is told to put its result."""
        name = str(func)
        given = list(tensors_in((args, kwargs)))
        here = any(isinstance(x, Elsewhere) for x in given)
        told = kwargs.get("device")
        there = here if told is None else torch.device(told).type == self.device.type
        if here:
            self._refuse(name, given)
        if name.startswith(ASKING) and here:
            self.waits["asked"] += 1
            there = False
        if name.startswith(COPYING) and here:
            into = there if told is not None else isinstance(args[0], Elsewhere)
            self.waits["copied"] += not into
            there = into
        inside = {**kwargs, **({} if told is None else {"device": "cpu"})}
        known = {id(x.inner): x for x in given if isinstance(x, Elsewhere)}
        found = func(*map_tensors(_inner, args), **map_tensors(_inner, inside))
        return map_tensors(lambda x: self._give(x, known, there), found)

    def _give(self, x: Tensor, known: dict[int, Elsewhere], there: bool) -> Tensor:
        """A result; what was changed in its place is the tensor that it was."""
        if id(x) in known:
            return known[id(x)]
        if not there:
            return x
        if self._lacks(x.dtype):
            raise TypeError(f"{self.device} has no {x.dtype}")
        return Elsewhere(x, self)

    def _refuse(self, name: str, given: Sequence[Tensor]) -> None:
        if self.meagre and any(f"aten.{missing}" in name for missing in MISSING):
            raise NotImplementedError(f"{name} on {self.device}")
        strangers = [x for x in given if not isinstance(x, Elsewhere) and x.ndim]
        if not strangers or name.startswith(COPYING):
            return
        indices = all(x.dtype in (torch.int64, torch.bool) for x in strangers)
        if indices and name.startswith(INDEXING) and isinstance(given[0], Elsewhere):
            return
        raise RuntimeError(f"{name}: tensors on {self.device} and on the CPU meet")

    def _lacks(self, dtype: torch.dtype) -> bool:
        return self.meagre and dtype in (torch.float64, torch.complex128)


def _inner(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, Elsewhere) else x
