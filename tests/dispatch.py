"""Tensors among the arguments and the results of an operation, for modes that look at every one.

torch's own walk knows every container there is and takes longer than most operations on tiny
tensors; operations are given and give lists and tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor


def tensors_in(x: Any) -> Iterator[Tensor]:
    """All of them, in their order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for part in x:
            yield from tensors_in(part)
    elif isinstance(x, dict):
        yield from tensors_in(list(x.values()))


def map_tensors(change: Callable[[Tensor], Any], x: Any) -> Any:
    """The same with another thing in each one's place."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, list | tuple):
        return type(x)([map_tensors(change, part) for part in x])
    if isinstance(x, dict):
        return {key: map_tensors(change, part) for key, part in x.items()}
    return x
