"""The token that a lens or an attribution looks for, given as people name it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.result.readings import Token

Wanted = str | int | Token
"""A token as people name it: its text, as it is shown, its id, or the token itself."""


@dataclass(frozen=True)
class Target:
    """One token, perhaps the first of a word that has several."""

    token: Token
    word: tuple[Token, ...]

    @property
    def id(self) -> int:
        return self.token.id

    @property
    def shown(self) -> str:
        return self.token.shown

    @property
    def note(self) -> str:
        """What to know if the token is not the whole word."""
        if len(self.word) == 1:
            return ""
        return f"{self.shown} is the first of {' + '.join(token.shown for token in self.word)}"

    def to_dict(self) -> dict[str, Any]:
        word = {"word": [token.to_dict() for token in self.word]} if len(self.word) > 1 else {}
        return self.token.to_dict() | word


def find_target(model: Anatomy, target: Wanted, *, first: bool = False) -> Target:
    """The token that is meant.

    A text of several tokens is refused, or stands for its first token with `first=True`.
    """
    if isinstance(target, Token):
        target = target.id
    if not isinstance(target, str):
        target = token_id(target)
    try:
        token = model.space.token(model.space.id(target))
    except LexrayError as error:
        ids = _pieces(model, target)
        if len(ids) < 2:
            raise
        if not first:
            raise LexrayError(
                f"{error}; first=True (--first) takes the first of them, and "
                f"trace.score({target!r}) scores the whole word"
            ) from error
        return Target(model.space.token(ids[0]), tuple(model.space.token(i) for i in ids))
    return Target(token, (token,))


def token_id(target: Any) -> int:
    """A number that stands for a token."""
    try:
        return operator.index(target)
    except TypeError as error:
        raise LexrayError(f"a target is a token's text or its id, not {target!r}") from error


def _pieces(model: Anatomy, target: str | int) -> list[int]:
    """The tokens of a text; none of what is no text or cannot be encoded."""
    if not isinstance(target, str):
        return []
    try:
        return model.vocabulary.encode(target)
    except LexrayError:
        return []
