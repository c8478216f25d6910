"""A result's whole state as plain JSON values, and back: what lets `lx.load` open it again.

A state is a list of objects, each after those that it holds: its class's number, then its fields.
Equal tokens, sources and the like are there once. Tuples are lists, references `{"o": 3}`; other
containers, tensors and numbers that JSON lacks are objects of one entry as well.
"""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any

from lexray.errors import LexrayError

NAME = re.compile(
    r"lexray\.(?:result|find|roles|effects|compare|studies|trace|flow|model|atlas|view|address)"
    r"(?:\.[a-z][a-z_]*)*:[A-Z][A-Za-z]*"
)
"""Classes that may come from a file: ours, out of the rooms whose results are kept."""
DTYPES = ("float64", "float32", "int64", "int32", "bool", "uint8")


def pack(value: Any) -> dict[str, Any]:
    """Everything that a result holds."""
    packer = _Packer()
    root = packer.pack(value)
    return {"classes": packer.classes, "objects": packer.objects, "root": root}


def unpack(state: Any) -> Any:
    """The result that `pack` was given; what is damaged or foreign is a LexrayError."""
    try:
        classes = [(_class(name), tuple(map(str, held))) for name, held in state["classes"]]
        made: list[Any] = []
        for number, *values in state["objects"]:
            cls, names = classes[number]
            given = dict(zip(names, (_unpack(x, made) for x in values), strict=True))
            made.append(_make(cls, given))
        return _unpack(state["root"], made)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise LexrayError(f"this result is damaged: {str(error)[:300]}") from error


def is_same(a: Any, b: Any) -> bool:
    """Whether two values hold the same, tensors and numbers that are none included."""
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(is_same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.compare)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if _is(a, "torch", "Tensor") or _is(a, "numpy", "ndarray"):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and bool(((a == b) | ((a != a) & (b != b))).all())
    return bool(a == b) or (a != a and b != b)


def _is(value: Any, package: str, name: str) -> bool:
    """Whether a value is of a class whose package need not be there."""
    module = sys.modules.get(package)
    return module is not None and isinstance(value, getattr(module, name))


class _Packer:
    def __init__(self) -> None:
        self.classes: list[list[Any]] = []
        self.objects: list[list[Any]] = []
        self._numbers: dict[type, int] = {}
        self._places: dict[Any, int] = {}

    def pack(self, value: Any) -> Any:
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else {"f": str(value)}
            case tuple() | range():
                return [self.pack(x) for x in value]
            case list():
                return {"l": [self.pack(x) for x in value]}
            case frozenset() | set():
                return {"s": sorted((self.pack(x) for x in value), key=repr)}
            case PurePath():
                return {"p": str(value)}
            case Mapping():
                return {"d": [[self.pack(key), self.pack(x)] for key, x in value.items()]}
        if _is(value, "torch", "Tensor"):
            return {"t": _pack_numbers(_as_array(value))}
        if _is(value, "numpy", "ndarray"):
            return {"a": _pack_numbers(value)}
        if hasattr(value, "for_file") and (small := value.for_file()) is not value:
            return self.pack(small)
        if is_dataclass(value) and not isinstance(value, type):
            return {"o": self._place(value)}
        raise TypeError(f"a {type(value).__name__} cannot be kept in a file")

    def _place(self, value: Any) -> int:
        """Where an object stands; one that equals it, and can be told so, stands for it."""
        held = [f.name for f in fields(value) if f.init]
        packed = [self._number(type(value), held), *(self.pack(getattr(value, f)) for f in held)]
        key = repr(packed)
        if key not in self._places:
            self._places[key] = len(self.objects)
            self.objects.append(packed)
        return self._places[key]

    def _number(self, cls: type, held: list[str]) -> int:
        if cls not in self._numbers:
            self._numbers[cls] = len(self.classes)
            self.classes.append([f"{cls.__module__}:{cls.__qualname__}", held])
        return self._numbers[cls]


def _as_array(tensor: Any) -> Any:
    plain = str(tensor.dtype).removeprefix("torch.") in DTYPES
    return (tensor if plain else tensor.float()).detach().cpu().numpy()


def _pack_numbers(value: Any) -> list[Any]:
    raw = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
    return [value.dtype.name, list(value.shape), base64.b64encode(raw).decode()]


def _unpack_array(packed: Any, made: list[Any]) -> Any:
    import numpy  # a result without numbers in bulk does without

    kind, shape, text = packed
    if kind not in DTYPES:
        raise ValueError(f"{kind!r} is no kind of numbers")
    raw = numpy.frombuffer(base64.b64decode(text), numpy.dtype(kind).newbyteorder("<"))
    return raw.astype(kind).reshape([int(n) for n in shape])


def _unpack_tensor(packed: Any, made: list[Any]) -> Any:
    import torch  # as above

    return torch.from_numpy(_unpack_array(packed, made))


def _unpack(value: Any, made: list[Any]) -> Any:
    if isinstance(value, list):
        return tuple(_unpack(x, made) for x in value)
    if not isinstance(value, dict):
        return value
    [(kind, held)] = value.items()
    return _KINDS[kind](held, made)


def _unpack_float(held: Any, made: list[Any]) -> float:
    if held not in ("nan", "inf", "-inf"):
        raise ValueError(f"{held!r} is no number")
    return float(held)


def _unpack_object(held: Any, made: list[Any]) -> Any:
    if not isinstance(held, int) or not 0 <= held < len(made):
        raise ValueError("an object comes before what it holds")
    return made[held]


_KINDS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "o": _unpack_object,
    "f": _unpack_float,
    "l": lambda held, made: [_unpack(x, made) for x in held],
    "s": lambda held, made: frozenset(_unpack(x, made) for x in held),
    "d": lambda held, made: {_unpack(key, made): _unpack(x, made) for key, x in held},
    "p": lambda held, made: Path(held),
    "a": _unpack_array,
    "t": _unpack_tensor,
}


def _class(name: Any) -> type:
    """A frozen dataclass of ours by its name; nothing else of Python's can be asked for."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise LexrayError(f"this result holds a {str(name)[:100]!r}, which is no result of lexray")
    module, _, own = name.partition(":")
    try:
        cls = getattr(import_module(module), own)
    except (ImportError, AttributeError):
        raise LexrayError(
            f"this result holds a {name!r}, which this lexray does not have; read it with the "
            "lexray that wrote it"
        ) from None
    if not is_dataclass(cls) or not isinstance(cls, type) or cls.__module__ != module:
        raise LexrayError(f"this result holds a {name!r}, which is no result of lexray")
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise LexrayError(f"this result holds a {name!r}, which is no result of lexray")
    return cls


def _make(cls: type, given: dict[str, Any]) -> Any:
    reopen = getattr(cls, "reopen", None)
    return cls(**given) if reopen is None else reopen(**given)
