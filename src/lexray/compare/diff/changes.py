"""What moved: single changes, sizes per layer and group, and all of a comparison's figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lexray.compare.diff.lexicon import Sentiment
from lexray.compare.diff.stacks import GROUPS, DiffGroup
from lexray.result.pairs import Pair
from lexray.result.readings import Scored, Source, Token

ARROW = "→"
RULE = (
    "telling = √(share moved × times the group's median) × how far the best token stands out × "
    "legibility × share of words among the first ten (of the end that reads better)"
)


@dataclass(frozen=True)
class Change:
    """One vector, or one head's matrix, and what it moved towards."""

    address: str
    group: DiffGroup
    layer: int | None
    absolute: float
    """How far it moved: the norm of the difference."""
    relative: float | None
    """The same as a share of its norm before; None if it was zero or is new."""
    telling: float
    legibility: float
    top: tuple[Scored, ...] = ()
    bottom: tuple[Scored, ...] = ()
    pairs: tuple[Pair, ...] = ()
    bottom_pairs: tuple[Pair, ...] = ()
    token: Token | None = None
    """Whose embedding it is."""
    label: str = ""
    """What the class is called whose row it is; "new" rows have no counterpart in the base."""

    @property
    def tokens(self) -> list[str]:
        """The top tokens, or pairs of them, as people read them."""
        return _show(self.top, self.pairs)

    @property
    def bottom_tokens(self) -> list[str]:
        return _show(self.bottom, self.bottom_pairs)

    @property
    def name(self) -> str:
        """The address, with the token or class that it stands for."""
        said = self.token.shown if self.token else self.label
        return f"{self.address} {said}" if said else self.address

    def to_dict(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "address": self.address,
            "group": self.group,
            "layer": self.layer,
            "absolute": self.absolute,
            "relative": self.relative,
            "telling": self.telling,
            "legibility": self.legibility,
        }
        if self.token is not None:
            entry["of"] = self.token.to_dict()
        if self.label:
            entry["label"] = self.label
        if self.group in ("VO", "QK"):
            return entry | {
                "pairs": [pair.to_dict() for pair in self.pairs],
                "bottom_pairs": [pair.to_dict() for pair in self.bottom_pairs],
            }
        return entry | {
            "top": [scored.to_dict() for scored in self.top],
            "bottom": [scored.to_dict() for scored in self.bottom],
        }


def _show(tokens: tuple[Scored, ...], pairs: tuple[Pair, ...]) -> list[str]:
    return [s.token.shown for s in tokens] + [
        f"{pair.row.shown}{ARROW}{pair.col.shown}" for pair in pairs
    ]


@dataclass(frozen=True)
class Size:
    """How far a group moved in one layer, all its vectors together."""

    layer: int | None
    group: DiffGroup
    absolute: float
    relative: float | None
    moved: int
    vectors: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "group": self.group,
            "absolute": self.absolute,
            "relative": self.relative,
            "moved": self.moved,
            "vectors": self.vectors,
        }


@dataclass(frozen=True)
class Changes:
    """The figures of a comparison, which the report draws."""

    source: Source
    base: str
    tuned: str
    changes: tuple[Change, ...]
    """The most telling first."""
    sizes: tuple[Size, ...]
    notes: tuple[str, ...]
    through: str
    """Whose embedding the changes are read in: "base" or "tuned"."""
    moved: int
    """How many vectors moved, of `vectors`."""
    vectors: int
    sentiment: Sentiment | None = None

    def __len__(self) -> int:
        return len(self.changes)

    def __getitem__(self, index: int) -> Change:
        return self.changes[index]

    @property
    def title(self) -> str:
        return f"{self.base} {ARROW} {self.tuned}"

    @property
    def summary(self) -> str:
        if not self.changes:
            return "nothing moved"
        return f"{self.moved:,} of {self.vectors:,} vectors moved"

    @property
    def layers(self) -> list[int | None]:
        """The columns of the table of sizes; None is what belongs to no layer."""
        known = {size.layer for size in self.sizes}
        numbers = sorted(layer for layer in known if layer is not None)
        return [*numbers, *([None] if None in known else [])]

    @property
    def groups(self) -> list[DiffGroup]:
        known = {size.group for size in self.sizes}
        return [group for group in GROUPS if group in known]

    def size(self, group: DiffGroup, layer: int | None) -> Size | None:
        return next((s for s in self.sizes if (s.group, s.layer) == (group, layer)), None)
