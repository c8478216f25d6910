"""Rows that are too many to be held: they lie in a file without a name, and few of them in memory.

A head's factors have a row for every token: half a gigabyte at Gemma's 262,144 tokens and heads of
width 256. Engines pass over such rows some at a time, or take a few of them. So from some size on
they lie in a temporary file that is mapped into memory, and whoever has looked at rows lets go of
them again: what a process holds is bounded, values are the same to the last bit, and the system
keeps of the file what it has room for. Tensors of a device, and small ones, are held as ever; all
functions here take either.

The file is deleted when the last tensor of it is gone, at the latest with the process. Its place on
the disk is taken before it is used, so that a full disk is no more than a reason to hold the rows.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from math import prod
from weakref import WeakValueDictionary

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from lexray.files import cache_root

HELD = 40_000_000
"""Bytes of rows that are held in memory."""
PART = 2**24
"""Bytes of rows in a file that are looked at before they are let go of."""
_AROUND = 2**16
"""Bytes around a place that is looked at which the system maps with it."""
_MUCH = 2**28
"""Bytes of rows in files from which holes in memory matter more than the time that it takes to ask
the system for every large block anew: a fifth of a sweep over the heads of a small model."""
_LARGE_BLOCK = 2**22
"""Bytes from which memory is taken from the system, and given back to it, for itself."""
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_MAPS: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
"""By the address at which they begin."""
_LET_GO: int | None = getattr(mmap, "MADV_DONTNEED", None)


def is_held(size: int) -> bool:
    """Whether rows of so many bytes are held in memory on a processor."""
    return size <= HELD or _LET_GO is None


def empty_rows(shape: tuple[int, ...], like: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """Room for rows of this shape, in `like`'s dtype and on its device."""
    size = prod(shape) * like.dtype.itemsize
    if is_held(size) or like.device.type != "cpu":
        return like.new_empty(shape)
    if size + _in_files() >= _MUCH:
        leave_no_holes()
    try:
        room = _map_file(size)
    except (OSError, ValueError):  # no disk, no scratch
        return like.new_empty(shape)
    whole = torch.frombuffer(room, dtype=like.dtype)
    _MAPS[whole.data_ptr()] = room
    return whole.view(shape)


def room() -> int:
    """Bytes that files of rows may take together: half of the disk's free ones; 0 where rows are
    held in memory instead."""
    if _LET_GO is None:
        return 0
    with suppress(OSError):
        return shutil.disk_usage(_folder()).free // 2
    return 0


def _in_files() -> int:
    """Bytes of all rows that lie in files now."""
    maps = (known() for known in _MAPS.valuerefs())
    return sum(len(room) for room in maps if room is not None)


def _folder() -> str:
    """The cache's disk rather than /tmp, which may be memory."""
    folder = cache_root()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return str(folder) if os.access(folder, os.W_OK) else tempfile.gettempdir()


def _map_file(size: int) -> mmap.mmap:
    with tempfile.TemporaryFile(dir=_folder()) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def _map_of(X: Shaped[Tensor, "..."]) -> mmap.mmap | None:
    if X.device.type != "cpu" or not _MAPS:
        return None
    return _MAPS.get(X.untyped_storage().data_ptr())


def let_go(X: Shaped[Tensor, "..."]) -> None:
    """These rows, if they lie in a file, need not be in memory now; they stay as they are."""
    room = _map_of(X)
    if room is None or X.numel() == 0 or _LET_GO is None:
        return
    begin = X.untyped_storage().data_ptr()
    reach = sum((n - 1) * step for n, step in zip(X.shape, X.stride(), strict=True))
    first = X.data_ptr() // _AROUND * _AROUND
    last = -(-(X.data_ptr() + (1 + reach) * X.dtype.itemsize) // _AROUND) * _AROUND
    start, stop = max(0, first - begin), min(len(room), last - begin)
    room.madvise(_LET_GO, start, stop - start)


@cache
def leave_no_holes() -> None:
    """Before much work: large blocks of memory go back to the system as soon as they are freed,
    where that can be asked for (glibc). Left alone, it keeps ever larger ones for later, up to 32
    MB each, and the holes between them come to as much as the work itself."""
    with suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE_BLOCK)


def give_back() -> None:
    """After much work: what was freed, and is kept by the allocator for later, goes back to the
    system, where that can be asked for (glibc)."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def each_part(X: Shaped[Tensor, "_ ..."]) -> Iterator[Shaped[Tensor, "_ ..."]]:
    """All rows in order: together if they are held, else some at a time."""
    if _map_of(X) is None:
        yield X
        return
    for part in torch.split(X, _rows_at_once(X)):
        yield part
        let_go(part)


def rows_at_once(size: int) -> int:
    """How many rows of so many bytes are looked at together."""
    return max(1, PART // max(1, size))


def _rows_at_once(X: Shaped[Tensor, "n ..."]) -> int:
    return rows_at_once(X.dtype.itemsize * prod(X.shape[1:]))


def join_rows(n: int, parts: Iterable[Shaped[Tensor, "_ ..."]]) -> Shaped[Tensor, "n ..."]:
    """Parts of n rows, made one by one, as one tensor that lies there from the first on: parts that
    are kept between large things that are thrown away leave holes in memory, as large as all of
    these together."""
    joined, start = None, 0
    for part in parts:
        joined = empty_rows((n, *part.shape[1:]), part) if joined is None else joined
        own = joined[start : start + len(part)]
        own.copy_(part)
        let_go(own)
        start += len(part)
    return torch.empty(0) if joined is None else joined


def map_parts(
    apply: Callable[[Tensor], Tensor], X: Shaped[Tensor, "n ..."]
) -> Shaped[Tensor, "n ..."]:
    """What a function makes of all rows, each for itself; in a file if they lie in one."""
    return apply(X) if _map_of(X) is None else join_rows(len(X), map(apply, each_part(X)))


def take_rows(X: Shaped[Tensor, "n ..."], index: Int[Tensor, "some"]) -> Shaped[Tensor, "some ..."]:
    """Copies of these rows, in the order of the index."""
    if _map_of(X) is None:
        return X.index_select(0, index)
    return join_rows(
        len(index), (_gather(X, some) for some in torch.split(index, _rows_at_once(X)))
    )


def _gather(X: Shaped[Tensor, "n ..."], index: Int[Tensor, "some"]) -> Shaped[Tensor, "some ..."]:
    """In the order in which they lie, so that what was looked at can be let go of."""
    order = index.argsort()
    ascending = index[order]
    step = _rows_at_once(X)
    ends = torch.searchsorted(ascending, torch.arange(step, len(X) + step, step)).tolist()
    rows, start = X.new_empty(len(index), *X.shape[1:]), 0
    for place, stop in enumerate(ends):
        if stop > start:
            rows[order[start:stop]] = X.index_select(0, ascending[start:stop])
            let_go(X[place * step : (place + 1) * step])
        start = stop
    return rows
