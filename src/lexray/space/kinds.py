"""The kinds of parameter vectors, and on which side of the residual stream they stand."""

from __future__ import annotations

from typing import Literal, get_args

from lexray.errors import LexrayError

Kind = Literal["value", "key", "gate", "Q", "K", "V", "O", "in", "out", "bias", "norm"]
GroupName = Literal["values", "keys", "gates", "Q", "K", "V", "O", "in", "out"]

WRITES: frozenset[Kind] = frozenset({"value", "O", "out", "bias"})
"""These add to the residual stream and are read with E; all others read from it, with E′."""

EXPECTS: frozenset[Kind] = frozenset({"key", "gate", "Q", "in"})
"""These respond to the token they stand on and to the one to come; K and V to what is attended."""

GROUPS: dict[GroupName, Kind] = {
    "values": "value",
    "keys": "key",
    "gates": "gate",
    "Q": "Q",
    "K": "K",
    "V": "V",
    "O": "O",
    "in": "in",
    "out": "out",
}
"""`in` and `out` are the vectors of mixers, in hybrids."""


def kind_of(group: str) -> Kind:
    """The kind of a group's vectors: "values" → "value"."""
    if group not in GROUPS:
        raise LexrayError(
            f"no group {group!r} of parameters; there are {', '.join(get_args(GroupName))}"
        )
    return GROUPS[group]
