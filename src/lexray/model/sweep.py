"""Many heads, one after the other: those of a layer are multiplied with the embedding together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from threading import Event
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address, Matrix
from lexray.model.circuits import Circuit, describe
from lexray.model.head_matrices import HeadMatrices
from lexray.progress import Watcher, watcher
from lexray.result.pairs import Pairs
from lexray.scratch import is_held, room
from lexray.space.topk.pairs import SearchState, Sign, TopPairs, Watch
from lexray.vocabulary.filters import Filter

MOST_BYTES = 2**28
"""What the factors that are held at once may take; one head's are held anyway."""
MOST_FILED = 2**31
"""The same of those that lie in files."""

Factors = tuple[Float[Tensor, "rows r"], Float[Tensor, "cols r"]]
End = dict[int, Float[Tensor, "tokens r"]]
"""One side's factors, by head."""
MakeEnd = Callable[[Event | None], End]
"""Makes it, unless it is told that nobody waits for it any more."""
Wait = Callable[[], Any]
"""Waits for a result."""
Made = TypeVar("Made")


def each_top(
    circuits: Iterable[Circuit],
    k: int = 50,
    *,
    sign: Sign = "largest",
    exclude_same: bool | Literal["inflected"] = False,
    filter: Filter | None = None,
) -> Iterator[Pairs]:
    """`Circuit.top` of many, in their order.

    Neighbours in a layer share one pass over the embedding, and heads that share keys and values
    share those factors. What is multiplied together does not depend on which circuits are asked
    for, so that each one's numbers are the same to the last bit.

    >>> heads = [head.vo for head in model.layers[2].heads]
    >>> [pairs[0] for pairs in each_top(heads, 5)]
    """
    note = describe(filter, None, None, exclude_same)

    def search(circuit: Circuit, factors: Factors) -> tuple[Wait, Callable[[TopPairs], Pairs]]:
        find, give = circuit.prepare_search(
            *factors,
            k,
            sign=sign,
            exclude_same=exclude_same,
            rows=filter,
            cols=filter,
            note=note,
        )
        return cores.search(find), give

    with _cores(torch.get_num_threads()) as cores:
        batches = groupby(circuits, key=lambda circuit: _batch(circuit, filter))
        each = ((list(group), heads) for (*_, heads), group in batches)
        coming = cores.alone(_begin, cores, next(each, None), filter)
        while coming:
            some, made = coming
            searches: dict[int, tuple[Wait, Callable[[TopPairs], Pairs]]] = {}
            for matrix, ends in made.items():
                left, right = (wait() for wait in ends)
                for place, circuit in enumerate(some):
                    if circuit.matrix == matrix:
                        at = circuit.head.index
                        searches[place] = search(circuit, (left[at], right[at]))
            del left, right, ends, made, coming  # what is searched is let go of
            coming = cores.alone(_begin, cores, next(each, None), filter)
            for place in range(len(some)):
                found, give = searches.pop(place)
                yield cores.alone(give, found())


def _begin(
    cores: _Cores, batch: tuple[list[Circuit], range] | None, filter: Filter | None
) -> tuple[list[Circuit], dict[Matrix, list[Wait]]] | None:
    """Heads that are multiplied together, and what waits for their factors, which are made while
    those before are searched."""
    if batch is None:
        return None
    circuits, heads = batch
    first = {circuit.matrix: circuit for circuit in reversed(circuits)}
    made = {m: list(map(cores.make, _ends(c, heads, filter))) for m, c in first.items()}
    return circuits, made


class _Cores:
    """Work side by side, each piece on one core: most of a search's steps are too small for
    several. Without a pool, it is done when it is waited for."""

    def __init__(self, pool: ThreadPoolExecutor | None, left: Event) -> None:
        self._pool, self._left, self._n = pool, left, torch.get_num_threads()

    def alone(self, work: Callable[..., Made], *args: Any) -> Made:
        """What is done here meanwhile, on one core, too: waiting for another that is busy would
        cost more than the work."""
        torch.set_num_threads(1)
        try:
            return work(*args)
        finally:
            torch.set_num_threads(self._n)

    def make(self, end: MakeEnd) -> Wait:
        """Factors, which nobody needs any more when the caller leaves."""
        return self._do(partial(end, self._left))

    def search(self, find: Callable[[Watch | None], TopPairs]) -> Wait:
        """A search, seen by whoever watches."""
        return self._do(partial(find, _heed(watcher(), self._left)))

    def _do(self, work: Callable[[], Any]) -> Wait:
        return work if self._pool is None else self._pool.submit(work).result


@contextmanager
def _cores(n: int) -> Iterator[_Cores]:
    """What is left when the caller leaves is given up."""
    left = Event()
    if n < 2:
        yield _Cores(None, left)
        return
    with ThreadPoolExecutor(n, initializer=partial(torch.set_num_threads, 1)) as pool:
        try:
            yield _Cores(pool, left)
        finally:
            left.set()
            pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(n)


def _heed(watched: Watcher, left: Event) -> Watch:
    """Whoever watches may end a search, and the one who started it by leaving."""

    def see(standing: SearchState) -> bool:
        return not left.is_set() and watched(standing.done, standing.found)

    return see


def _batch(circuit: Circuit, filter: Filter | None) -> tuple[Address, range]:
    """The layer (and whether its cross-attention is meant, as of its head 0), and the heads of it
    that are multiplied together: as many as may be held."""
    space, head = circuit.space, circuit.head
    ids = space.list_ids(filter)
    tokens = space.n_rows if ids is None else len(ids)
    n = heads_together(tokens, head.d_head, head.weights.device)
    start = head.index // n * n
    return replace(head.address, head=0), range(start, min(start + n, len(head.spec.q.starts)))


def heads_together(tokens: int, width: int, device: torch.device) -> int:
    """How many heads are multiplied together: as many as there is room for, each with four factors,
    once more while those before are searched."""
    each = 4 * tokens * width
    filed = device.type == "cpu" and not is_held(each) and room() > 4 * MOST_FILED
    return max(1, (MOST_FILED if filed else MOST_BYTES) // max(1, 4 * each))


def multiply(circuit: Circuit, heads: Iterable[int], filter: Filter | None) -> dict[int, Factors]:
    """`Circuit.factors` of these heads of the circuit's layer, each end in one product."""
    left, right = (make(None) for make in _ends(circuit, heads, filter))
    return {index: (left[index], right[index]) for index in left}


def _ends(circuit: Circuit, heads: Iterable[int], filter: Filter | None) -> list[MakeEnd]:
    """What makes both ends, which any thread may do: weights are read here."""
    weights, layer, cross = circuit.head.weights, circuit.head.layer, circuit.head.spec.crosses
    some = [Circuit(HeadMatrices(weights, layer, i, cross=cross), circuit.matrix) for i in heads]
    return [_end(some, end, filter) for end in (0, 1)]


def _end(circuits: Sequence[Circuit], end: int, filter: Filter | None) -> MakeEnd:
    """What makes the factors of one end; shared keys and values are multiplied once."""
    kind = circuits[0].kinds[end]
    side, ids = circuits[0].side(kind, filter)
    owner = {
        c.head.index: c.head.kv_index if kind in ("K", "V") else c.head.index for c in circuits
    }
    first = {owner[c.head.index]: c for c in reversed(circuits)}
    if circuits[0].normed:
        makers = {key: c.end(end, (side, ids)) for key, c in first.items()}

        def multiply(until: Event | None) -> list[Tensor]:
            return [make(until=until) for make in makers.values()]

    else:
        matrices = [c.matrices[0] if end == 0 else c.matrices[1].T for c in first.values()]

        def multiply(until: Event | None) -> list[Tensor]:
            return side.factors(matrices, ids, until)

    def make(until: Event | None) -> End:
        factors = dict(zip(first, multiply(until), strict=True))
        return {index: factors[key] for index, key in owner.items()}

    return make
