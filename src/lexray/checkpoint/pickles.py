"""What a pickle of weights may do: its opcodes are listed, without running them, and judged.

A pickle is a small program. Anything but the building blocks of tensors is refused, and so is one
that is longer, or builds deeper nested values, than weights can be: unpacking those would take
minutes, and hashing them would overflow the stack.
"""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import torch

from lexray.checkpoint.fields import brief
from lexray.errors import LexrayError

BUILDING_BLOCKS = {
    "collections OrderedDict",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
}
"""What a pickle of weights may name, besides torch's storages, dtypes, `Size` and `device`."""

LARGEST_PICKLE = 1 << 26
"""Bytes: 10⁵ tensors need a third of it."""
MOST_OPCODES = 5_000_000
"""10⁵ tensors need about 3 million."""
DEEPEST = 100
"""Levels of values inside values; weights need six."""
_MARK = -1
"""Stands on the stack of depths for pickle's own mark."""

_WRAPS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "BINPERSID": 1, "NEWOBJ": 2}
"""These take so many values from the stack and leave one that holds them."""
_WRAPS_TO_MARK = {"TUPLE", "LIST", "DICT", "FROZENSET", "INST", "OBJ"}
_INTO_ONE = {"APPEND": 1, "SETITEM": 2, "BUILD": 1}
"""These put so many values into the one below them."""
_INTO_ONE_TO_MARK = {"APPENDS", "SETITEMS", "ADDITEMS"}


class Depths:
    """How deep the values on a pickle's stack are nested, followed opcode by opcode."""

    def __init__(self) -> None:
        self._stack: list[int] = []
        self._memo: dict[int, int] = {}

    def follow(self, name: str, argument: Any) -> int:
        """The depth of what an opcode leaves on top of the stack."""
        stack = self._stack
        if name in _WRAPS:
            taken = [stack.pop() for _ in range(_WRAPS[name])]
            stack.append(1 + max(taken))
        elif name in _INTO_ONE:
            taken = [stack.pop() for _ in range(_INTO_ONE[name])]
            stack[-1] = max(stack[-1], 1 + max(taken))
        elif name in _WRAPS_TO_MARK:
            stack.append(1 + self._to_mark())
        elif name in _INTO_ONE_TO_MARK:
            inner = self._to_mark()
            stack[-1] = max(stack[-1], 1 + inner)
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[int(argument)])
        elif name == "POP":
            stack.pop()
        elif name == "POP_MARK":
            self._to_mark()
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "STACK_GLOBAL":
            stack[-2:] = [0]
        elif name not in ("PROTO", "FRAME", "STOP"):
            stack.append(0)
        return stack[-1] if stack else 0

    def _to_mark(self) -> int:
        """Takes all values down to the last mark, and the mark; the deepest one's depth."""
        deepest = 0
        while (depth := self._stack.pop()) != _MARK:
            deepest = max(deepest, depth)
        return deepest


def refuse_code(stream: Any, size: int, path: Path) -> None:
    """Lists one pickle's opcodes and raises at the first that weights cannot need.

    `stream` is a binary file (`Any`, since one inside a zip archive is no IO[bytes] at runtime).
    """
    if size > LARGEST_PICKLE:
        raise LexrayError(f"{path} has a pickle of {size:,} bytes, which is not one of weights")
    strings, depths = ["?", "?"], Depths()
    for count, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if count > MOST_OPCODES or depths.follow(opcode.name, argument) > DEEPEST:
            raise LexrayError(
                f"{path} has a pickle that is longer or deeper nested than weights can be"
            )
        if opcode.name in ("GLOBAL", "INST"):
            wanted = str(argument)
        elif opcode.name == "STACK_GLOBAL":  # takes the two strings pushed last
            wanted = " ".join(strings)
        else:
            strings = [strings[1], argument] if isinstance(argument, str) else strings
            continue
        if not _is_building_block(wanted):
            raise LexrayError(
                f"{path} asks to run code when it is opened ({brief(wanted.replace(' ', '.'))}), "
                "which lexray never does; where you trust it, load it and save it as safetensors"
            )


def _is_building_block(wanted: str) -> bool:
    module, _, name = wanted.partition(" ")
    if module not in ("torch", "torch.storage"):
        return wanted in BUILDING_BLOCKS
    storage = name.isalnum() and name.endswith("Storage")
    return (
        storage or name in ("Size", "device") or isinstance(getattr(torch, name, None), torch.dtype)
    )
