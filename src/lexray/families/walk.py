"""One walk over everything that a family's description names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from lexray.families.linear import Latent, Linear, Norm, Nothing

TENSORS = (
    *("embed", "unembed", "unembed_bias", "positions", "token_types", "table"),
    *("correction", "each", "curve", "sinks", "others"),
)
"""The fields of a description that are names of tensors themselves."""

Named = Linear | Norm | str
"""What tensors belong to: a linear map, a norm, or (an embedding) just its name."""


def walk(x: Any, path: str = "") -> Iterator[tuple[str, Named]]:
    """Each linear map, norm and embedding of a description, and the fields that lead to it.

    >>> dict(walk(model.architecture.blocks[0]))["attention.q.linear"].weight
    'transformer.h.0.attn.c_attn.weight'
    """
    if isinstance(x, Nothing):
        return
    if isinstance(x, Linear | Norm):
        yield path, x
        if isinstance(x, Latent):
            for name in ("down", "norm", "tail"):
                yield from walk(getattr(x, name), f"{path}.{name}")
    elif isinstance(x, tuple):
        for item in x:
            yield from walk(item, path)
    elif is_dataclass(x):
        for field in fields(x):
            value = getattr(x, field.name)
            where = f"{path}.{field.name}" if path else field.name
            if field.name in TENSORS:
                names = value if isinstance(value, tuple) else (value,)
                yield from ((where, name) for name in names if name is not None)
            else:
                yield from walk(value, where)


def tensors(part: Named) -> tuple[str | None, str | None]:
    """The names of a weight (or gain) and of its bias; None where there is none."""
    if isinstance(part, Linear):
        return part.weight, part.bias
    return (part.gain, part.bias) if isinstance(part, Norm) else (part, None)


def tensor_names(x: Any) -> set[str]:
    """Every tensor that a description, or a part of one, names."""
    return {name for _, part in walk(x) for name in tensors(part) if name is not None}


def linears(x: Any) -> Iterator[Linear]:
    """Every linear map of a description, or of a part of one: the walk without the paths.

    A mixture of experts may have 10⁵ of them, and all are looked at when a model is opened.
    """
    if isinstance(x, Nothing):
        return
    if isinstance(x, Linear):
        yield x
        if isinstance(x, Latent):
            yield x.down
            yield from linears(x.tail)
    elif isinstance(x, tuple):
        for item in x:
            yield from linears(item)
    else:
        for name in _inner(type(x)):  # type: ignore[arg-type]  # types are hashable
            yield from linears(getattr(x, name))


@cache
def _inner(kind: Any) -> tuple[str, ...]:
    """The fields of a description's part that may hold linear maps."""
    if not is_dataclass(kind) or kind is Norm:
        return ()
    return tuple(field.name for field in fields(kind) if field.type not in _PLAIN)


_PLAIN = ("int", "float", "bool", "str", "str | None", "int | None", "float | None")
