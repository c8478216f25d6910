"""What an atlas is asked to hold. What changes a file's content is apart from what only chooses
files: the first must be the same for all of an atlas, the second may grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, get_args

from lexray.errors import LexrayError
from lexray.space.kinds import GROUPS
from lexray.view import VIEWS

Part = Literal[
    "values", "keys", "gates", "Q", "K", "V", "O", "others", "heads", "relations", "roles", "links"
]
PARTS: tuple[str, ...] = get_args(Part)
"""What `--kinds` chooses among. Others are biases, norms and routers; heads are their matrices."""
MOST_LISTED = 1000
"""Tokens of a list: more are no reading."""


@dataclass(frozen=True)
class AtlasOptions:
    """As `lexray atlas` has them."""

    views: tuple[str, ...] = ("standard",)
    kinds: tuple[str, ...] = PARTS
    layers: tuple[int, ...] | None = None
    """All of them by default."""
    k: int = 50
    """Tokens at either end of a list, and pairs of a head's matrix."""
    directions: int = 10
    """Singular directions of a head's matrix."""
    links: int = 1000
    """The strongest links between neurons, and as many between heads."""
    text: str | None = None
    """Running text for evidence."""

    def __post_init__(self) -> None:
        _refuse("view", self.views, tuple(VIEWS))
        _refuse("kind", self.kinds, PARTS)
        for name, value in (("k", self.k), ("directions", self.directions), ("links", self.links)):
            if not 1 <= value <= (10**6 if name == "links" else MOST_LISTED):
                raise LexrayError(f"an atlas with {name}={value}? it is 1 to {MOST_LISTED}")
        if self.text is not None and not self.text.strip():
            raise LexrayError("the text for the evidence is empty")

    def content(self) -> dict[str, Any]:
        """What the files' content depends on, besides the model."""
        text = None if self.text is None else sha256(self.text.encode()).hexdigest()
        return {"k": self.k, "directions": self.directions, "links": self.links, "text": text}


def _refuse(what: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        raise LexrayError(
            f"an atlas knows no {what} {', '.join(map(repr, unknown)) or 'at all'}; there are "
            f"{', '.join(known)}"
        )


VECTOR_PARTS: dict[str, str] = {name: str(kind) for name, kind in GROUPS.items()}
