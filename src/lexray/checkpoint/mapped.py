"""A file of weights: the one place where its bytes are looked at.

A file may shrink while it is open: a download that begins anew, a disk that is tidied up. Reading
a mapped file behind its end then kills the process (SIGBUS). So parts of it are copied by reading,
which fails like any other call, and costs what a copy out of a mapping does. What is too large to
be copied stays in the file as a `MappedTensor`: its blocks are read when they are asked for, and
before anything else is done with it the file's size is looked up.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lexray.checkpoint.plain import open_plain
from lexray.errors import LexrayError

BLOCK = 1 << 26
"""The most bytes of a mapped tensor's slice that are read at once: more stays in the file."""

_NO_RESERVE = {"x86_64": 0x4000, "aarch64": 0x4000, "riscv64": 0x4000}
"""Linux's MAP_NORESERVE, which Python has a name for only lately."""


def _map(file: int, size: int) -> mmap.mmap:
    """A private mapping, which may be written to, as torch insists on. Nothing ever does, so that
    the system need not keep memory for it: it refuses to for a file larger than all it has."""
    usual = _NO_RESERVE.get(platform.machine(), 0) if sys.platform == "linux" else 0
    flag: int = getattr(mmap, "MAP_NORESERVE", usual)
    if not flag:
        return mmap.mmap(file, size, access=mmap.ACCESS_COPY)
    both = mmap.PROT_READ | mmap.PROT_WRITE
    return mmap.mmap(file, size, flags=mmap.MAP_PRIVATE | flag, prot=both)


class Mapped:
    """The bytes of a regular file. `size` is what it had when it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open_plain(path)
        except OSError as error:
            raise self._unreadable(error) from error
        self.size = os.fstat(self._file.fileno()).st_size
        if not self.size:
            raise LexrayError(f"{path} is empty; download it again")

    def _unreadable(self, error: OSError) -> LexrayError:
        return LexrayError(f"{self.path} cannot be read: {error.strerror or error}")

    @cached_property
    def buffer(self) -> mmap.mmap:
        """All bytes, as long as the file keeps them."""
        self.refuse_shorter(self.size)
        try:
            return _map(self._file.fileno(), self.size)
        except OSError as error:
            raise self._unreadable(error) from error

    @cached_property
    def _bytes(self) -> Tensor:
        return torch.frombuffer(self.buffer, dtype=torch.uint8)

    def part(self, start: int, stop: int) -> MappedTensor:
        """The bytes from `start` up to `stop`, still in the file."""
        self.refuse_shorter(stop)
        return _watch(self._bytes[start:stop], self, stop)

    def let_go(self, start: int, stop: int) -> None:
        """These bytes need not be in memory any more; whoever looks at them finds them again."""
        advice = getattr(mmap, "MADV_DONTNEED", None)
        first = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        if advice is not None:
            self.buffer.madvise(advice, first, stop - first)

    def read(self, start: int, stop: int) -> Tensor:
        """A copy of the bytes from `start` up to `stop`."""
        if not hasattr(os, "preadv"):  # Windows, which lets nobody shorten what is mapped
            return self.part(start, stop).clone()
        self.refuse_shorter(stop)
        out = torch.empty(stop - start, dtype=torch.uint8)
        rest: memoryview = out.numpy().data
        try:
            while rest.nbytes:
                count = os.preadv(self._file.fileno(), [rest], stop - rest.nbytes)
                if not count:
                    raise self._shorter()
                rest = rest[count:]
        except OSError as error:
            raise self._unreadable(error) from error
        return out

    def refuse_shorter(self, stop: int) -> None:
        """Raises if the file no longer reaches `stop`."""
        if os.fstat(self._file.fileno()).st_size < stop:
            raise self._shorter()

    def _shorter(self) -> LexrayError:
        now = os.fstat(self._file.fileno()).st_size
        return LexrayError(
            f"{self.path} has become shorter since it was opened ({self.size} bytes, now "
            f"{now}); open the model again"
        )


class MappedTensor(Tensor):
    """A tensor that lies in a file. Slices of it, up to a block, are copies; whatever is made of it
    is a plain tensor."""

    file: Mapped
    stop: int
    """Where the file has to reach to."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Whatever is done with one: the file's size is looked up before."""
        mapped = _find((args, *(kwargs or {}).values()))
        for tensor in mapped:
            tensor.file.refuse_shorter(tensor.stop)
        with torch._C.DisableTorchFunctionSubclass():
            if func in (Tensor.__reduce_ex__, Tensor.__deepcopy__):
                args = (args[0].as_subclass(Tensor), *args[1:])
            result = func(*args, **(kwargs or {}))
            return _keep(result, mapped, func is Tensor.__getitem__)


def _find(values: Iterable[Any]) -> list[MappedTensor]:
    """The mapped tensors among arguments, and in lists of them."""
    tensors: list[MappedTensor] = []
    for value in values:
        if isinstance(value, MappedTensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += _find(value)
    return tensors


def _keep(result: Any, mapped: list[MappedTensor], sliced: bool) -> Any:
    """A result that still lies in the file is mapped again, or (`sliced`, and small) read."""
    if type(result) in (list, tuple):
        return type(result)(_keep(each, mapped, sliced) for each in result)
    if not isinstance(result, Tensor) or isinstance(result, MappedTensor):
        return result
    for source in mapped:
        if result.untyped_storage().data_ptr() == source.untyped_storage().data_ptr():
            copy = _read(result, source.file) if sliced else None
            return _watch(result, source.file, source.stop) if copy is None else copy
    return result


def _read(view: Tensor, file: Mapped) -> Tensor | None:
    """A copy of a view of the file, if its bytes are few and lie side by side."""
    turned = view.ndim == 2 and not view.is_contiguous()
    rows = view.mT if turned else view
    length = rows.numel() * rows.dtype.itemsize
    if not 0 < length <= BLOCK or not rows.is_contiguous():
        return None
    start = int(rows.storage_offset()) * rows.dtype.itemsize
    copy = file.read(start, start + length).view(rows.dtype).view(rows.shape)
    return copy.mT if turned else copy


def _watch(tensor: Tensor, file: Mapped, stop: int) -> MappedTensor:
    mapped = tensor.as_subclass(MappedTensor)
    mapped.file, mapped.stop = file, stop
    return mapped
