"""Layered drawing of a part of a block: which column a node stands in, in which order, how high.

Columns by longest path, orders by barycentre sweeps, heights by isotonic regression: each node
comes as near to the mean of its neighbours as order and spacing allow.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from lexray.errors import LexrayError

SWEEPS = 6

Neighbours = Mapping[int, Sequence[int]]


def neighbours(
    nodes: Iterable[int], pairs: Iterable[tuple[int, int]]
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Who is before and who is after each node, among these nodes."""
    before: dict[int, list[int]] = {node: [] for node in nodes}
    after: dict[int, list[int]] = {node: [] for node in before}
    for source, target in pairs:
        if source in after and target in before:
            after[source].append(target)
            before[target].append(source)
    return before, after


def columns(before: Neighbours, after: Neighbours, late: Callable[[int], bool]) -> dict[int, int]:
    """The column of each node: right of all that flow into it; `late` ones as far right as can be.

    Nodes into which nothing flows stand right before what they flow into.
    """
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise LexrayError("a flow graph flows one way, and this one has a cycle") from error
    column: dict[int, int] = {}
    for node in order:
        column[node] = 1 + max((column[other] for other in before[node]), default=-1)
    for node in reversed(order):
        if after[node] and (late(node) or not before[node]):
            column[node] = max(column[node], min(column[other] for other in after[node]) - 1)
    used = {old: new for new, old in enumerate(sorted(set(column.values())))}
    return {node: used[old] for node, old in column.items()}


def order(
    stacks: Sequence[list[int]],
    before: Neighbours,
    after: Neighbours,
    follows: Neighbours,
) -> list[list[int]]:
    """The columns' nodes from top to bottom with few crossings.

    A node in `follows` stands right below the nodes of its column that are listed there.
    """
    best = [_sort(stack, {node: float(node) for node in stack}, follows) for stack in stacks]
    fewest = crossings(best, after)
    current = best
    for sweep in range(SWEEPS):
        forth = sweep % 2 == 0
        current = _sweep(current, before if forth else after, follows, forth)
        crossed = crossings(current, after)
        if crossed < fewest:
            best, fewest = current, crossed
    return best


def _sweep(
    stacks: list[list[int]], towards: Neighbours, follows: Neighbours, forth: bool
) -> list[list[int]]:
    place = {node: (i + 0.5) / len(stack) for stack in stacks for i, node in enumerate(stack)}
    out = list(stacks)
    for c in range(len(stacks)) if forth else range(len(stacks) - 1, -1, -1):
        mean = {
            node: sum(place[other] for other in towards[node]) / len(towards[node])
            if towards[node]
            else place[node]
            for node in stacks[c]
        }
        out[c] = _sort(stacks[c], mean, follows)
        place |= {node: (i + 0.5) / len(out[c]) for i, node in enumerate(out[c])}
    return out


def _sort(stack: list[int], wish: Mapping[int, float], follows: Neighbours) -> list[int]:
    def key(node: int) -> tuple[float, bool]:
        above = [wish[other] for other in follows.get(node, ()) if other in wish]
        return (max(above), True) if above else (wish[node], node in follows)

    return sorted(stack, key=key)


def crossings(stacks: Sequence[Sequence[int]], after: Neighbours) -> int:
    """How often edges between neighbouring columns cross."""
    total = 0
    for left, right in pairwise(stacks):
        place = {node: i for i, node in enumerate(right)}
        seen: list[int] = []
        for node in left:
            ends = sorted(place[other] for other in after[node] if other in place)
            total += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return total


def heights(
    stacks: Sequence[Sequence[int]],
    before: Neighbours,
    after: Neighbours,
    pitch: Callable[[int, int], float],
) -> dict[int, float]:
    """How high each node stands, 0 in the middle: full columns evenly, others by neighbours."""
    y: dict[int, float] = {}
    for stack in sorted(stacks, key=len, reverse=True):
        gaps = [pitch(a, b) for a, b in pairwise(stack)]
        wanted = [_mean_of_neighbours(node, y, before, after) for node in stack]
        known = [(i, want) for i, want in enumerate(wanted) if want is not None]
        if len(stack) == 1 or not known:
            places = _even(gaps)
        else:
            places = space_out(_fill_in(wanted, gaps), gaps)
        y |= dict(zip(stack, places, strict=True))
    return y


def _mean_of_neighbours(
    node: int, y: Mapping[int, float], before: Neighbours, after: Neighbours
) -> float | None:
    placed = [y[other] for other in (*before[node], *after[node]) if other in y]
    return sum(placed) / len(placed) if placed else None


def _even(gaps: Sequence[float]) -> list[float]:
    places = [-sum(gaps) / 2]
    for gap in gaps:
        places.append(places[-1] + gap)
    return places


def _fill_in(wanted: Sequence[float | None], gaps: Sequence[float]) -> list[float]:
    """Nodes without a wish follow the one above (or, at the top, precede the one below)."""
    first = next(i for i, want in enumerate(wanted) if want is not None)
    out: list[float] = []
    for i, want in enumerate(wanted):
        if want is not None:
            out.append(want)
        elif i < first:
            out.append((wanted[first] or 0.0) - sum(gaps[i:first]))
        else:
            out.append(out[-1] + gaps[i - 1])
    return out


def space_out(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones (least squares) that keep order and gaps.

    >>> space_out([0.0, 0.0, 10.0], [2.0, 2.0])
    [-1.0, 1.0, 10.0]
    """
    offset = [0.0]
    for gap in gaps:
        offset.append(offset[-1] + gap)
    pools: list[tuple[float, int]] = []
    for want, shift in zip(wanted, offset, strict=True):
        mean, count = want - shift, 1
        while pools and pools[-1][0] > mean:
            above, n = pools.pop()
            mean, count = (above * n + mean * count) / (n + count), n + count
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [place + shift for place, shift in zip(flat, offset, strict=True)]
