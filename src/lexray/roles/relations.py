"""Which heads map countries to capitals: every relation against every head, from weights alone.

The score of a head is the share of a relation's pairs whose target is among the k best of its
source's row of VO, or among the k last (suppression). Beside it stands what shuffled targets would
give, and a q-value over all heads, relations and signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.progress import track
from lexray.roles.chance import SHUFFLES, Chance, chance_of, p_values, q_values, shuffles
from lexray.roles.hits import HeadHits, all_hits
from lexray.roles.relation import Given, Relation, relations_of
from lexray.roles.scores import Relations, Tested
from lexray.roles.tokens import TokenPairs, tasks_of


def relations(
    model: Anatomy,
    which: Given | Sequence[Given] | None = None,
    *,
    k: int | None = None,
    shuffled: int = SHUFFLES,
    seed: int = 0,
    only: Address | None = None,
) -> Relations:
    """Scores of all heads for some relations, or for all that come along.

    `k`: among so many of the best a target has to be; by default what the relation says, 10, and 1
    for copying. `only`: one head.
    """
    wanted = relations_of(which)
    if k is not None:
        wanted = tuple(replace(relation, k=k) for relation in wanted)
    tasks = tasks_of(model, wanted)
    if not tasks:
        names = ", ".join(relation.name for relation in wanted)
        raise LexrayError(f"the vocabulary of {model.name} has no two pairs of {names}")
    orders = [shuffles(len(task), shuffled, seed) for task in tasks]
    layers = [layer for stack in model.stacks for layer in stack.own_layers]
    n_heads = 1 if only else sum(len(layer.every_head) for layer in layers)
    addresses, places = [], []
    tallies = [Tally(task, order, n_heads) for task, order in zip(tasks, orders, strict=True)]
    tracked = track(all_hits(model, tasks, only), n_heads, "relations of all heads")
    for h, (head, hits) in enumerate(tracked):
        addresses.append(str(head.address))
        places.append((head.layer, head.index))
        for t, tally in enumerate(tallies):
            tally.add(h, t, hits)
    tested = _test_all(wanted, tallies)
    known = {each.relation.name for each in tested}
    return Relations(
        model.space.source(""),
        tuple(addresses),
        tuple(places),
        tuple(tested),
        tuple(relation.name for relation in wanted if relation.name not in known),
        shuffled,
    )


class Tally:
    """What all heads score in one task, filled head by head."""

    def __init__(
        self, task: TokenPairs, orders: Int[Tensor, "shuffles pairs"], n_heads: int
    ) -> None:
        self.task, self.orders = task, orders
        self.right = np.zeros((2, n_heads, len(task)), dtype=bool)
        self.chances: list[list[Chance]] = [[], []]

    def add(self, head: int, task: int, hits: HeadHits) -> None:
        for s, sign in enumerate((1, -1)):
            hit = hits[task, sign]
            self.right[s, head] = hit.right.numpy()
            chance = chance_of(hit.rows, hit.cols, int(hit.right.sum()), self.orders)
            self.chances[s].append(chance)

    def p(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """sign × head: the share that chance gives, and p."""
        mean, variance, reached = (
            np.array([[getattr(chance, name) for chance in row] for row in self.chances])
            for name in ("mean", "variance", "reached")
        )
        n = np.full(mean.shape, len(self.task))
        p = p_values(self.right.sum(-1), mean, variance, reached, n, len(self.orders))
        return mean / len(self.task), p


def _test_all(wanted: Sequence[Relation], tallies: Sequence[Tally]) -> list[Tested]:
    by_relation: dict[str, dict[bool, Tally]] = {}
    for tally in tallies:
        by_relation.setdefault(tally.task.relation.name, {})[tally.task.whole] = tally
    parts = [by_relation[r.name] for r in wanted if r.name in by_relation]
    leading = [part.get(True) or part[False] for part in parts]
    chances = [tally.p() for tally in leading]
    q = q_values(np.stack([p for _, p in chances]))
    tests = []
    for i, (part, tally) in enumerate(zip(parts, leading, strict=True)):
        pieces = part.get(False)
        tests.append(
            Tested(
                tally.task.relation,
                tally.task.words,
                tally.right,
                chances[i][0],
                chances[i][1],
                q[i],
                None if pieces is None else pieces.right.mean(-1),
                0 if pieces is None else len(pieces.task),
                tally.task.whole,
            )
        )
    return tests
