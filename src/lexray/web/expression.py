"""A call that can be run and shown: what a page computed and what it offers to copy are one thing.

>>> vo = name("model").item("L2H1").get("vo").call("top", 30, exclude_same=True)
>>> vo.text
'model["L2H1"].vo.top(30, exclude_same=True)'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Access:
    """An item, an attribute, or a call of a method."""

    kind: Literal["item", "get", "call"]
    key: str | int
    args: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def text(self) -> str:
        if self.kind == "item":
            return f"[{spell(self.key)}]"
        if self.kind == "get":
            return f".{self.key}"
        said = [spell(value) for value in self.args]
        said += [f"{key}={spell(value)}" for key, value in self.options]
        return f".{self.key}({', '.join(said)})"

    def apply(self, value: Any, scope: Mapping[str, Any]) -> Any:
        if self.kind == "item":
            return value[self.key]
        attribute = getattr(value, str(self.key))
        if self.kind == "get":
            return attribute
        given = (_value(each, scope) for each in self.args)
        return attribute(*given, **{key: _value(each, scope) for key, each in self.options})


@dataclass(frozen=True)
class Expression:
    """A name and steps from it; put together by pages, never parsed from a text."""

    root: str
    steps: tuple[Access, ...] = ()

    def item(self, key: str | int) -> Expression:
        return self._and(Access("item", key))

    def get(self, attribute: str) -> Expression:
        return self._and(Access("get", attribute))

    def call(self, method: str, *args: Any, **options: Any) -> Expression:
        """A method with arguments, which may be expressions."""
        kept = tuple(tuple(each) if isinstance(each, list) else each for each in args)
        return self._and(Access("call", method, kept, tuple(options.items())))

    def _and(self, step: Access) -> Expression:
        return Expression(self.root, (*self.steps, step))

    @property
    def text(self) -> str:
        """As Python."""
        return self.root + "".join(step.text for step in self.steps)

    def evaluate(self, scope: Mapping[str, Any]) -> Any:
        """What it comes to, where the scope says what names stand for."""
        value = scope[self.root]
        for step in self.steps:
            value = step.apply(value, scope)
        return value

    @property
    def names(self) -> set[str]:
        """The names it uses."""
        names = {self.root}
        for step in self.steps:
            for value in (*step.args, *(value for _, value in step.options)):
                if isinstance(value, Expression):
                    names |= value.names
        return names


def name(text: str) -> Expression:
    """A name that the scope knows."""
    return Expression(text)


def spell(value: Any) -> str:
    """A value as Python writes it: texts in double quotes, sequences as lists."""
    if isinstance(value, Expression):
        return value.text
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, str):
        said = repr(f"'{value}")  # an apostrophe inside makes Python choose double quotes
        return f'"{said[2:-1]}"' if said.startswith('"') else repr(value)
    return repr(value)


def _value(value: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(value, Expression):
        return value.evaluate(scope)
    return list(value) if isinstance(value, tuple) else value
