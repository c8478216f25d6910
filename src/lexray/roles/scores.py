"""Results: which heads hold which relations, with what chance would give and the pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.result.charts.panels import Panels
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.roles.plots import heat_maps
from lexray.roles.relation import Relation

SIGNS = {1: "writes", -1: "suppresses"}
BEST = 3
"""Heads of a relation in the table of all relations."""
SURE = 0.01
"""q below which a find is one."""


@dataclass(frozen=True)
class Score:
    """A head and a relation: how many of its pairs the head's VO holds."""

    address: str
    relation: Relation
    sign: int
    """1: the targets are at the top of their sources' rows; −1: at the bottom."""
    right: tuple[tuple[str, str], ...]
    wrong: tuple[tuple[str, str], ...]
    chance: float
    """The share for shuffled targets."""
    q: float
    pieces: float | None
    """The share among the pairs whose words are several tokens; None if there are none."""

    @property
    def share(self) -> float:
        return len(self.right) / max(1, len(self.right) + len(self.wrong))

    @property
    def pairs(self) -> int:
        return len(self.right) + len(self.wrong)

    def to_dict(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "relation": self.relation.name,
            "sign": SIGNS[self.sign],
            "share": self.share,
            "chance": self.chance,
            "q": self.q,
            "in_pieces": self.pieces,
            "right": [list(pair) for pair in self.right],
            "wrong": [list(pair) for pair in self.wrong],
        }


@dataclass(frozen=True)
class Tested:
    """One relation over all heads: arrays by sign (writes, suppresses) and head."""

    relation: Relation
    words: tuple[tuple[str, str], ...]
    right: NDArray[np.bool_]
    """sign × head × pair."""
    chance: NDArray[np.float64]
    """sign × head: the share for shuffled targets."""
    p: NDArray[np.float64]
    q: NDArray[np.float64]
    pieces: NDArray[np.float64] | None
    """sign × head: the share among the pairs in pieces."""
    n_pieces: int
    whole: bool = True
    """False if no two pairs are whole tokens, so that the pairs in pieces stand for it."""

    @property
    def share(self) -> NDArray[np.float64]:
        """sign × head."""
        return np.asarray(self.right.mean(-1), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Relations(Result):
    """All heads × all relations; shows the best heads of each relation.

    >>> found = model.relations(["capital", "past"])
    >>> found.best("capital", 5)[0].address
    """

    source: Source
    addresses: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    """Layer and head of each."""
    tested: tuple[Tested, ...]
    left_out: tuple[str, ...]
    """Relations of which this vocabulary has no two pairs."""
    shuffles: int
    shown: int = field(default=BEST)

    @property
    def names(self) -> list[str]:
        return [tested.relation.name for tested in self.tested]

    def of(self, relation: str) -> Tested:
        """Everything about one relation."""
        for tested in self.tested:
            if relation in (tested.relation.name, tested.relation.title):
                return tested
        raise LexrayError(f"{relation!r} was not tested; these were: {', '.join(self.names)}")

    def share(
        self, relation: str, sign: int = 1, attention: str | None = None
    ) -> NDArray[np.float64]:
        """layer × head: the share of pairs that each head holds; NaN where there is no head.

        `attention`: of an encoder–decoder "encoder" or "cross-attention", else the decoder's own.
        """
        wanted = self.attentions[-1] if attention is None else attention
        if wanted not in self.attentions:
            raise LexrayError(f"there is no {wanted!r} here, only {self.attentions}")
        held = zip(self.of(relation).share[_row(sign)], self.places, self.addresses, strict=True)
        own = [(v, at) for v, at, name in held if Address.parse(name).attention == wanted]
        grid = np.full([1 + max(at[i] for _, at in own) for i in range(2)], np.nan)
        for value, place in own:
            grid[place] = value
        return grid

    @property
    def attentions(self) -> tuple[str, ...]:
        """Those whose heads are here; a stack's own ("") comes last."""
        return tuple(sorted({Address.parse(name).attention for name in self.addresses})[::-1])

    def best(self, relation: str, n: int = 5, sign: int | None = None) -> list[Score]:
        """The heads that hold most of a relation, by how far their share is above chance.

        `sign`: those that write it (1) or suppress it (−1) only.
        """
        tested = self.of(relation)
        listed = [
            (tested.chance[s, h] - tested.share[s, h], tested.q[s, h], h, s)
            for s in range(2)
            for h in range(len(self.addresses))
            if sign is None or _row(sign) == s
        ]
        return [self._score(tested, s, h) for *_, h, s in sorted(listed)[:n]]

    def at(self, address: str) -> list[Score]:
        """What one head holds with q < 0.01, the largest share first."""
        if address not in self.addresses:
            raise LexrayError(f"{address} was not tested; heads look like {self.addresses[0]}")
        h = self.addresses.index(address)
        scores = [
            self._score(tested, s, h)
            for tested in self.tested
            for s in range(2)
            if tested.q[s, h] < SURE
        ]
        return sorted(scores, key=lambda score: (-score.share, score.q))

    def _score(self, tested: Tested, s: int, h: int) -> Score:
        right = tested.right[s, h]
        pieces = None if tested.pieces is None else float(tested.pieces[s, h])
        return Score(
            self.addresses[h],
            tested.relation,
            1 if s == 0 else -1,
            tuple(pair for pair, hit in zip(tested.words, right, strict=True) if hit),
            tuple(pair for pair, hit in zip(tested.words, right, strict=True) if not hit),
            float(tested.chance[s, h]),
            float(tested.q[s, h]),
            pieces,
        )

    def tables(self) -> list[Table]:
        pieces = any(t.pieces is not None and t.whole for t in self.tested)
        columns = ("relation", "head", "", "share", *(("in pieces",) if pieces else ()))
        few = len(self.tested) <= 2
        held = [
            score
            for tested in self.tested
            for score in self.best(tested.relation.name, max(self.shown, 10 if few else 0))
            if score.right
        ]
        rows = [_row_of(score, 12 if few else 4, pieces) for score in held]
        title = f"The best heads of {self.source.called} for {say_names(self.names)}"
        notes = [str(self.source), f"chance from {self.shuffles:,} shuffles, q over all heads"]
        if self.left_out:
            notes.append(f"no two pairs in this vocabulary: {', '.join(self.left_out)}")
        if none := [n for n in self.names if n not in {score.relation.name for score in held}]:
            notes.append(f"no head holds a pair of: {', '.join(none)}")
        if pieced := [t.relation.name for t in self.tested if not t.whole]:
            notes.append(f"by pieces of words only: {', '.join(pieced)}")
        columns = (*columns, "chance", "q", "right", "wrong")
        return [Table(columns, tuple(rows), title, " · ".join(notes), frozenset({"share"}))]

    def csv_tables(self) -> list[Table]:
        columns = ("relation", "address", "sign", "share", "chance", "p", "q", "in_pieces", "pairs")
        rows: list[tuple[Cell, ...]] = [
            (
                tested.relation.name,
                address,
                SIGNS[1 if s == 0 else -1],
                float(tested.share[s, h]),
                float(tested.chance[s, h]),
                float(tested.p[s, h]),
                float(tested.q[s, h]),
                None if tested.pieces is None else float(tested.pieces[s, h]),
                len(tested.words),
            )
            for tested in self.tested
            for s in range(2)
            for h, address in enumerate(self.addresses)
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "shuffles": self.shuffles,
            "left_out": list(self.left_out),
            "relations": {
                tested.relation.name: {
                    "title": str(tested.relation),
                    "k": tested.relation.k,
                    "pairs": len(tested.words),
                    "pairs_in_pieces": tested.n_pieces,
                    "whole": tested.whole,
                    "best": [s.to_dict() for s in self.best(tested.relation.name, 10)],
                }
                for tested in self.tested
            },
        }

    def plot(self) -> Panels:
        """Layer × head, a heat map for each relation; suppression is negative."""
        grids = [
            (
                f"{t.relation}, {of}" if of else str(t.relation),
                self.share(t.relation.name, 1, of),
                self.share(t.relation.name, -1, of),
            )
            for t in self.tested
            for of in self.attentions
        ]
        return heat_maps(grids, self.tables()[0].title, str(self.source))


def _row(sign: int) -> int:
    if sign not in SIGNS:
        raise LexrayError(f"sign is 1 (writes) or -1 (suppresses), not {sign!r}")
    return 0 if sign == 1 else 1


def say_names(names: Sequence[str]) -> str:
    """A few names, or how many there are."""
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} relations"


def _row_of(score: Score, pairs: int, pieces: bool) -> tuple[Cell, ...]:
    return (
        score.relation.name,
        score.address,
        SIGNS[score.sign],
        score.share,
        *((score.pieces,) if pieces else ()),
        score.chance,
        score.q,
        show_pairs(score.right, pairs),
        show_pairs(score.wrong, pairs),
    )


def show_pairs(pairs: Sequence[tuple[str, str]], n: int) -> str:
    """The first pairs as people read them: France→Paris, a word alone if it is copied."""
    shown = [a if a == b else f"{a}→{b}" for a, b in pairs[:n]]
    return " ".join(shown) + (" …" if len(pairs) > n else "")
