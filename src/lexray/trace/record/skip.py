"""A pass that begins in the middle: blocks before it pass on what they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from lexray.families import Block
from lexray.trace.record.running import EnoughError


@contextmanager
def begin_at(
    blocks: Sequence[nn.Module], first: int, extra: int | None, give: Callable[[], Tensor]
) -> Iterator[None]:
    """Inside, what `give` gives enters the block `first`, and those before it do nothing; `extra`
    is how many things they return (see `count_outputs`)."""

    def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = give()
        return ((x, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": x})

    with ExitStack() as undo:
        for block in blocks[:first]:
            undo.enter_context(skip(block, extra))
        handle = blocks[first].register_forward_pre_hook(enter, with_kwargs=True)
        undo.callback(handle.remove)
        yield


@contextmanager
def skip(part: nn.Module, extra: int | None) -> Iterator[None]:
    """Inside, a part of a model gives back what it is given, in a tuple if it has to."""

    def forward(hidden_states: Any, *_: Any, **__: Any) -> Any:
        return hidden_states if extra is None else (hidden_states, *[None] * (extra - 1))

    before = part.__dict__.get("forward")
    part.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del part.__dict__["forward"]
        else:
            part.__dict__["forward"] = before


def count_outputs(module: nn.Module, block: nn.Module, given: Mapping[str, Tensor]) -> int | None:
    """How many things a block returns as a tuple, in a pass over what is given; None if it returns
    a tensor."""
    seen: list[int | None] = []

    def look(_: nn.Module, __: Any, out: Any) -> None:
        seen.append(len(out) if isinstance(out, tuple | list) else None)
        raise EnoughError

    handle = block.register_forward_hook(look)
    try:
        module(**given)
    except EnoughError:
        pass
    finally:
        handle.remove()
    return seen[0]


def lowest_needed(blocks: Sequence[Block], first: int) -> int:
    """Where a pass of these layers has to begin, so that those from `first` on which use an earlier
    one's keys and values, or its choice of positions, find them."""
    rest = [block.attention for block in blocks[first:]]
    needed = [layer for x in rest for layer in (x.shares, x.chosen_by) if layer is not None]
    lowest = min([first, *needed])
    return first if lowest == first else lowest_needed(blocks, lowest)
