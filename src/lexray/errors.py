"""The one exception that users see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Never

from lexray.clean import clean

if TYPE_CHECKING:
    Unknown = Never
else:
    Unknown = Any
"""Of keywords that a function does not know: a type checker refuses them all, and at run time the
function can say what there is."""

LONGEST = 4000
"""Letters of a message: what a file calls its parts may be longer than anybody reads."""


class LexrayError(Exception):
    """Says what was asked, what is there, and what to try; names from files print as they look."""

    def __str__(self) -> str:
        text = clean(super().__str__())
        if len(text) <= LONGEST:
            return text
        return f"{text[: LONGEST * 3 // 4]} … {text[-LONGEST // 4 :]}"


def refuse_unknown(what: str, unknown: Iterable[str], function: Callable[..., object]) -> None:
    """Raises for keywords that a function does not know, and lists those that it does."""
    if names := sorted(unknown):
        import inspect

        known = inspect.signature(function).parameters.values()
        there = (p.name for p in known if p.kind is not p.VAR_KEYWORD and p.name != "self")
        raise LexrayError(f"{what} has no option {', '.join(names)}; there are {', '.join(there)}")
