"""What a model makes once and all its views share: typed drawers, each with a bound.

A module that makes something costly owns a drawer for it, at its top:

    SIDES: Drawer[Key, Side] = Drawer(most=8)
    …
    side = SIDES.get(weights.cache, key, make)

So a drawer's keys and values have types, no two modules share a name by accident, and what has not
been asked for lately makes room for what is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Cache:
    """The drawers of one model, by whose they are."""

    def __init__(self) -> None:
        self._drawers: dict[Drawer[Any, Any], OrderedDict[Any, Any]] = {}

    def without(self, *drawers: Drawer[Any, Any]) -> Cache:
        """The same contents but for these drawers."""
        other = Cache()
        other._drawers = {
            owner: content.copy()
            for owner, content in self._drawers.items()
            if owner not in drawers
        }
        return other

    def __len__(self) -> int:
        """How many things are kept."""
        return sum(map(len, self._drawers.values()))


class Drawer(Generic[Key, Value]):
    """One kind of thing that is kept: the `most` that were used last."""

    def __init__(self, most: int) -> None:
        self.most = most

    def get(self, cache: Cache, key: Key, make: Callable[[], Value]) -> Value:
        """What lies under `key`; made if it is not there."""
        content: OrderedDict[Key, Value] = cache._drawers.setdefault(self, OrderedDict())
        if key in content:
            content.move_to_end(key)
            return content[key]
        value = make()
        self.put(cache, key, value)
        return value

    def put(self, cache: Cache, key: Key, value: Value) -> None:
        content: OrderedDict[Key, Value] = cache._drawers.setdefault(self, OrderedDict())
        content[key] = value
        content.move_to_end(key)
        while len(content) > self.most:
            content.popitem(last=False)

    def peek(self, cache: Cache, key: Key) -> Value | None:
        """What lies under `key`, if anything does."""
        content: OrderedDict[Key, Value] = cache._drawers.get(self, OrderedDict())
        return content.get(key)
