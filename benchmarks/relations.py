"""Relations of heads, and links between neurons, against the plain ways.

SmolLM2, one thread, CPU time. Relations: the batched pass for a head (all relations that come
along, both signs) against (a) each row of the head by itself, as `head.vo.row` gives it, timed on a
few rows, and (b) the head's two factors, one product with all sources, and `topk` at both ends.
Links: the values of a layer with all later keys and gates by the pair engine, against the dense
product and a flat `topk`. Answers are compared before a time is taken.
"""

import torch
from torch import Tensor

from benchmarks.vectors import seconds

HEADS = ("L5H3", "L14H0", "L23H4")
ROWS = 6
LAYER = 26
LINKS = 100


def plain_hits(A: Tensor, B: Tensor, targets: Tensor, k: Tensor) -> Tensor:
    """Whether each source's target is among the k best of its row: the whole product."""
    scores = A @ B.T
    best = scores.topk(10, dim=1).values
    scores.topk(10, dim=1, largest=False)
    last = best.gather(1, (k - 1)[:, None])
    return (scores.gather(1, targets[:, None]) >= last)[:, 0]


def relations() -> dict[str, float]:
    from lexray.model.model import Model
    from lexray.roles.hits import Board, all_hits
    from lexray.roles.relation import load_shipped
    from lexray.roles.tokens import tasks_of

    model = Model.from_pretrained("smollm2").view("raw", folded=True)
    tasks = tasks_of(model, tuple(load_shipped().values()))
    board = Board.of(tasks)
    ours, rows, plain = 0.0, 0.0, 0.0
    for address in HEADS:
        head = model.head(address)
        list(all_hits(model, tasks, head.address))
        ours += seconds(lambda at=head.address: list(all_hits(model, tasks, at)))  # type: ignore[misc]
        some = board.sources[:: len(board.sources) // ROWS][:ROWS].tolist()
        each = seconds(lambda h=head, s=some: [h.vo.row(i, 10) for i in s]) / len(some)  # type: ignore[misc]
        rows += each * len(board.sources)

        def product(h=head) -> Tensor:  # type: ignore[no-untyped-def]
            A, B = h.vo.factors()
            return plain_hits(A[board.sources], B, board.targets, board.k)

        plain += seconds(product)
        ((_, hits),) = all_hits(model, tasks, head.address)
        right = torch.cat([hits[t, 1].right for t in range(len(tasks))])
        assert int((right != product()).sum()) <= 1  # a tie at the k-th place may round either way
    return {"rows": rows / ours, "product": plain / ours, "seconds_a_head": ours / len(HEADS)}


def links() -> dict[str, float]:
    from lexray.model.model import Model
    from lexray.roles.ends import end, later_ends
    from lexray.space.topk.pairs import top_pairs

    model = Model.from_pretrained("smollm2")
    written = end(model, LAYER, "value")
    later = [make() for make in later_ends(model, "value", LAYER, ("key", "gate"))]
    assert written is not None
    A, B = written.units, torch.cat([each.units for each in later if each is not None])

    def dense() -> Tensor:
        return (A @ B.T).abs().flatten().topk(LINKS).values

    found = top_pairs(A, B, LINKS, sign="absolute")
    torch.testing.assert_close(found.values.abs().float(), dense(), rtol=1e-4, atol=1e-5)
    ours = min(seconds(lambda: top_pairs(A, B, LINKS, sign="absolute")) for _ in range(3))
    theirs = min(seconds(dense) for _ in range(3))
    return {"links_dense": theirs / ours, "links_seconds": ours}


def run() -> dict[str, float]:
    """`rows`, `product`: how many times as long the plain ways take; `links_dense` likewise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return relations() | links()
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
