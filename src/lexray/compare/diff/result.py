"""What a comparison found: changes in order, sizes per layer and group, and notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lexray.compare.diff.lexicon import Sentiment
from lexray.compare.diff.stacks import GROUPS, DiffGroup
from lexray.result.format import show_percent
from lexray.result.readings import Pair, Scored, Source, Token
from lexray.result.table import Cell, Result, Table

if TYPE_CHECKING:
    import pandas

ARROW = "→"
TERMINAL_LAYERS = 16
"""With more layers the table of sizes shows their means, some layers at a time."""
RULE = (
    "telling = √(share moved × times the group's median) × how far the best token stands out × "
    "(1 + legibility)"
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
        found: dict[str, Any] = {
            "address": self.address,
            "group": self.group,
            "layer": self.layer,
            "absolute": self.absolute,
            "relative": self.relative,
            "telling": self.telling,
            "legibility": self.legibility,
        }
        if self.token is not None:
            found["of"] = self.token.to_dict()
        if self.label:
            found["label"] = self.label
        if self.group in ("VO", "QK"):
            return found | {
                "pairs": [pair.to_dict() for pair in self.pairs],
                "bottom_pairs": [pair.to_dict() for pair in self.bottom_pairs],
            }
        return found | {
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
class Diff(Result):
    """The answer of `lexray.diff`; `to_html()` is a report in one file.

    >>> found = lx.diff("demo", "demo-sentiment")
    >>> found.changes[0].address, found.changes[0].tokens
    >>> found.to_pandas(); Path("report.html").write_text(found.to_html())
    """

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
        found = {size.layer for size in self.sizes}
        numbers = sorted(layer for layer in found if layer is not None)
        return [*numbers, *([None] if None in found else [])]

    @property
    def groups(self) -> list[DiffGroup]:
        found = {size.group for size in self.sizes}
        return [group for group in GROUPS if group in found]

    def size(self, group: DiffGroup, layer: int | None) -> Size | None:
        return next((s for s in self.sizes if (s.group, s.layer) == (group, layer)), None)

    def tables(self) -> list[Table]:
        found = [*self._size_tables(), self._change_table()]
        if self.sentiment is not None:
            found += self.sentiment.tables()
        if self.notes:
            found.append(Table(("notes",), tuple((note,) for note in self.notes)))
        return found

    def _size_tables(self) -> list[Table]:
        """Groups by layers; layers in which nothing at all moved are left out."""
        moved = [x for x in self.layers if any(s.moved for s in self.sizes if s.layer == x)]
        pieces = [moved[i : i + TERMINAL_LAYERS] for i in range(0, len(moved), TERMINAL_LAYERS)]
        still = len(self.layers) - len(moved)
        note = f"{self.summary} · {self.source}, in the {self.through}'s embedding"
        if still and moved:
            note += f" · nothing moved in {still} further layers"
        tables = []
        for piece in pieces:
            names = tuple("model" if x is None else f"L{x}" for x in piece)
            rows = tuple((g, *(self._percent(g, x) for x in piece)) for g in self.groups)
            tables.append(Table(("group", *names), rows, title=f"{self.title}: share moved"))
        if not tables:
            return [Table(("group",), (), title=self.title, note=note)]
        last = tables[-1]
        return [*tables[:-1], Table(last.columns, last.rows, last.title, note)]

    def _percent(self, group: DiffGroup, layer: int | None) -> str:
        size = self.size(group, layer)
        if size is None:
            return ""
        if not size.moved:
            return "·"
        return "new" if size.relative is None else show_percent(size.relative)

    def _change_table(self) -> Table:
        rows = tuple(
            (
                change.name,
                "new" if change.relative is None else show_percent(change.relative),
                " ".join(change.tokens),
                " ".join(change.bottom_tokens),
                change.telling,
            )
            for change in self.changes
        )
        columns = ("address", "moved", "towards", "away from", "telling")
        return Table(columns, rows, title="The most telling changes", note=RULE)

    def csv_tables(self) -> list[Table]:
        """A row per change."""
        columns = (
            *("rank", "address", "group", "layer", "absolute", "relative", "telling"),
            *("legibility", "of", "top", "bottom"),
        )
        rows: list[tuple[Cell, ...]] = [
            (
                *(rank, c.address, c.group, c.layer, c.absolute, c.relative, c.telling),
                *(c.legibility, c.token.text if c.token else c.label),
                *(" ".join(c.tokens), " ".join(c.bottom_tokens)),
            )
            for rank, c in enumerate(self.changes)
        ]
        return [Table(columns, tuple(rows))]

    def sizes_to_pandas(self) -> pandas.DataFrame:
        """How far each group moved in each layer, a row each."""
        import pandas as pd

        return pd.DataFrame([size.to_dict() for size in self.sizes])

    def to_dict(self) -> dict[str, Any]:
        found = {
            **self.source.to_dict(),
            "base": self.base,
            "tuned": self.tuned,
            "through": self.through,
            "ranking": RULE,
            "moved": self.moved,
            "vectors": self.vectors,
            "notes": list(self.notes),
            "sizes": [size.to_dict() for size in self.sizes],
            "changes": [change.to_dict() for change in self.changes],
        }
        if self.sentiment is not None:
            found["sentiment"] = self.sentiment.to_dict()
        return found

    def _repr_html_(self) -> str:
        from lexray.compare.diff.report import fragment  # as long as the rest of this module

        return fragment(self)

    def to_html(self) -> str:
        """A whole report: heat map and changes, to be searched and sorted; nothing is loaded."""
        from lexray.compare.diff.report import page  # as in `_repr_html_`

        return page(self)
