"""How files are spoiled: JSON by its tree, everything by its bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

from lexray.errors import LexrayError

NUMBERS = [0, 1, -1, 2, 7, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, 10**30]
TEXTS = [
    "",
    "x",
    " ",
    "..",
    "../../x",
    "/etc/passwd",
    "\0",
    "\ud800",
    "é",
    "▁",
    "[/red]",
    "a" * 9999,
]
MORE_TEXTS = [
    "[/red]",
    "(a+)+$",
    "\x1b[31m",
    "NaN",
    "64",
    "<0x0A>",
    "Regex",
    "Sequence",
    "\\",
    "C:\\x",
]
VALUES: list[Any] = [
    *(None, True, False, 1.5, -0.0, 1e300, float("nan"), float("inf")),
    *NUMBERS,
    *TEXTS,
    *MORE_TEXTS,
    *([], {}, [[]], [None], ["x"], {"a": 1}, {"": ""}, [0] * 999, {"type": "Sequence"}),
    {"type": "Replace", "pattern": {"Regex": "(.*)*"}, "content": "xx"},
    [[["x"] * 9] * 9] * 9,
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to all values inside a JSON value, of a long list only to some."""
    found = [path]
    if isinstance(value, dict):
        for key in list(value)[:60]:
            found += places(value[key], (*path, key))
    elif isinstance(value, list):
        for i in range(min(len(value), 6)):
            found += places(value[i], (*path, i))
    return found


def spoil_value(value: Any, random: Random) -> Any:
    """Something else in a value's place."""
    if isinstance(value, bool) or value is None or random.random() < 0.5:
        return deepcopy(random.choice(VALUES))
    if isinstance(value, int):
        return random.choice([value + 1, value - 1, -value, value * 1000, str(value), float(value)])
    if isinstance(value, str):
        return random.choice([value + "x", value[:-1], value.upper(), [value], value * 50])
    if isinstance(value, list):
        return random.choice([value * 2, value[:-1], value[::-1], dict(enumerate(map(str, value)))])
    return random.choice([list(value.values()) if isinstance(value, dict) else [value], [value]])


def spoil_json(value: Any, random: Random) -> Any:
    """A copy of a JSON value, spoiled in one to four places."""
    value = deepcopy(value)
    for _ in range(random.choice([1, 1, 1, 2, 3, 4])):
        path = random.choice(places(value))
        if not path:
            if random.random() < 0.1:
                value = deepcopy(random.choice(VALUES))
            continue
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        match random.randrange(6):
            case 0:
                del inner[path[-1]]
            case 1 if isinstance(inner, dict):
                inner[random.choice(TEXTS)] = inner.pop(path[-1])
            case _:
                inner[path[-1]] = spoil_value(inner[path[-1]], random)
    return value


def spoil_text(raw: bytes, random: Random) -> bytes:
    """A JSON file, spoiled by its tree, seldom by its bytes."""
    if random.random() < 0.15:
        return spoil_bytes(raw, random)
    return json.dumps(spoil_json(json.loads(raw), random)).encode()


def spoil_bytes(raw: bytes, random: Random, within: int | None = None) -> bytes:
    """Bytes changed, taken out, put in or cut off; `within` is where it mostly happens."""
    data = bytearray(raw)
    for _ in range(random.choice([1, 1, 2, 4, 16])):
        if not data:
            break
        reach = min(len(data), within or len(data)) if random.random() < 0.9 else len(data)
        at = random.randrange(reach)
        match random.randrange(7):
            case 0:
                data[at] = random.randrange(256)
            case 1:
                data[at] ^= 1 << random.randrange(8)
            case 2:
                number = random.choice([n for n in NUMBERS if 0 <= n < 2**64])
                data[at : at + 8] = struct.pack("<Q", number)
            case 3:
                data[at : at + 4] = struct.pack("<I", random.choice([0, 1, 9, 2**31, 2**32 - 1]))
            case 4:
                del data[at : at + random.choice([1, 4, 8, 100])]
            case 5:
                data[at:at] = bytes(random.randrange(256) for _ in range(random.choice([1, 8, 64])))
            case 6 if random.random() < 0.3:
                del data[at:]
    return bytes(data)


def spoil_header(raw: bytes, random: Random) -> bytes:
    """A safetensors file, by the tree of its header or by its bytes."""
    (length,) = struct.unpack("<Q", raw[:8])
    if random.random() < 0.3:
        return spoil_bytes(raw, random, 8 + length)
    header = spoil_text(raw[8 : 8 + length], random)
    return struct.pack("<Q", len(header)) + header + raw[8 + length :]


def each(*acts: Callable[[], object]) -> None:
    """Does all of them, also after one was refused; the first refusal counts."""
    refused = []
    for act in acts:
        try:
            act()
        except LexrayError as error:
            refused.append(error)
    if refused:
        raise refused[0]
