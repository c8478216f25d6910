"""Many heads, one after the other: those of a layer are multiplied with the embedding together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from threading import Event
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address, Matrix
from lexray.model.circuits import Circuit, describe
from lexray.model.head_matrices import HeadMatrices
from lexray.progress import Watcher, watcher
from lexray.result.pairs import Pairs
from lexray.space.topk.pairs import SearchState, Sign, TopPairs, Watch
from lexray.vocabulary.filters import Filter

MOST_BYTES = 2**28
"""What the factors that are held at once may take; one head's are held anyway."""

Submit = Callable[[Callable[[Watch | None], TopPairs]], Callable[[], TopPairs]]
"""Takes a search, gives what waits for its result."""
Factors = tuple[Float[Tensor, "rows r"], Float[Tensor, "cols r"]]


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
    with _pool(torch.get_num_threads()) as submit:
        for (*_, heads), group in groupby(circuits, key=lambda circuit: _batch(circuit, filter)):
            factors: dict[Matrix, dict[int, Factors]] = {}
            waiting = []
            for circuit in group:
                if circuit.matrix not in factors:
                    factors[circuit.matrix] = multiply(circuit, heads, filter)
                find, give = circuit.prepare_search(
                    *factors[circuit.matrix][circuit.head.index],
                    k,
                    sign=sign,
                    exclude_same=exclude_same,
                    rows=filter,
                    cols=filter,
                    note=note,
                )
                waiting.append((submit(find), give))
            del factors, find
            while waiting:
                search, give = waiting.pop(0)
                yield give(search())


@contextmanager
def _pool(workers: int) -> Iterator[Submit]:
    """Searches side by side, each on one core: most of their steps are too small for several. What
    is left when the caller leaves is given up."""
    if workers < 2:
        yield lambda find: partial(find, _heed(watcher(), None))
        return
    left = Event()
    with ThreadPoolExecutor(workers, initializer=partial(torch.set_num_threads, 1)) as pool:
        try:
            yield lambda find: pool.submit(find, _heed(watcher(), left)).result
        finally:
            left.set()
            pool.shutdown(wait=True, cancel_futures=True)
            torch.set_num_threads(workers)


def _heed(watched: Watcher, left: Event | None) -> Watch:
    """Whoever watches may end a search, and the one who started it by leaving."""

    def see(standing: SearchState) -> bool:
        return not (left and left.is_set()) and watched(standing.done, standing.found)

    return see


def _batch(circuit: Circuit, filter: Filter | None) -> tuple[Address, range]:
    """The layer (and whether its cross-attention is meant, as of its head 0), and the heads of it
    that are multiplied together: as many as may be held."""
    space, head = circuit.space, circuit.head
    ids = space.list_ids(filter)
    tokens = space.n_rows if ids is None else len(ids)
    n = heads_together(tokens, head.d_head)
    start = head.index // n * n
    return replace(head.address, head=0), range(start, min(start + n, len(head.spec.q.starts)))


def heads_together(tokens: int, width: int) -> int:
    """How many heads are multiplied together: as many as may be held, each with four factors."""
    return max(1, MOST_BYTES // max(1, 4 * tokens * width * 4))


def multiply(circuit: Circuit, heads: Iterable[int], filter: Filter | None) -> dict[int, Factors]:
    """`Circuit.factors` of these heads of the circuit's layer, each end in one product."""
    weights, layer, cross = circuit.head.weights, circuit.head.layer, circuit.head.spec.crosses
    some = [Circuit(HeadMatrices(weights, layer, i, cross=cross), circuit.matrix) for i in heads]
    if circuit.normed:
        return {c.head.index: c.factors(filter, filter) for c in some}
    left, right = (_multiply_end(some, end, filter) for end in (0, 1))
    return {c.head.index: (left[c.head.index], right[c.head.index]) for c in some}


def _multiply_end(
    circuits: Sequence[Circuit], end: int, filter: Filter | None
) -> dict[int, Float[Tensor, "tokens r"]]:
    """The factors of one end, by head; shared keys and values are multiplied once."""
    kind = circuits[0].kinds[end]
    side, ids = circuits[0].side(kind, filter)
    owner = {
        c.head.index: c.head.kv_index if kind in ("K", "V") else c.head.index for c in circuits
    }
    first = {owner[c.head.index]: c for c in reversed(circuits)}
    matrices = {key: (c.matrices[0] if end == 0 else c.matrices[1].T) for key, c in first.items()}
    products = side.factors(list(matrices.values()), ids)
    factors = dict(zip(matrices, products, strict=True))
    return {index: factors[key] for index, key in owner.items()}
