"""An atlas of SmolLM2: writing one layer's vectors over the bare products, sizes, and queries.

`run` takes one layer's keys, gates, values and subheads in the standard view, readers with both of
their readings: CPU time of one thread, interleaved, the minimum of some rounds. The product is that
of the same vectors with the same embedding, in chunks into a buffer. What is compared with it is
all of the writing: reading weights, both ends' lists, legibility, Parquet, and then the index.

`python -m benchmarks.atlas DIR` asks a whole atlas the questions of the app and prints how long
each takes: the minimum and the median of some rounds, and CPU time, in milliseconds.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import lexray as lx
from lexray.atlas.make import Task, one_thread, write_chunk
from lexray.atlas.options import AtlasOptions
from lexray.atlas.plan import plan_chunks, plan_index
from lexray.atlas.store import Store
from lexray.model.fold import at_least_float32
from lexray.space.space import space_of

LAYER = 12
ROUNDS = 3
ASKED = 20
AT_ONCE = 320
KINDS = ("values", "keys", "gates", "Q", "K", "V", "O")


def products(model: lx.Model) -> Callable[[], None]:
    """The bare products of all the lists of a layer."""
    work = []
    for part in KINDS:
        kind = {"values": "value", "keys": "key", "gates": "gate"}.get(part, part)
        two = kind in ("key", "gate", "Q")
        for seen in (model, *([model.view(reading="output")] if two else [])):
            side = space_of(seen, LAYER).whole(kind)  # type: ignore[arg-type]
            X = torch.cat([group.tensor for group in model.layers[LAYER].groups(kind)])  # type: ignore[arg-type]
            work.append((at_least_float32(X), side.rows.T))
    e = work[0][1].shape[1]
    scores = torch.empty(AT_ONCE, -(-e // 64) * 64)[:, :e]

    def multiply() -> None:
        for X, E in work:
            for chunk in torch.split(X, AT_ONCE):
                torch.mm(chunk, E, out=scores[: len(chunk)])

    return multiply


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def run() -> dict[str, float]:
    """`ratio`: lists over products; `whole_ratio`: with their index; sizes in bytes for a list."""
    model = lx.Model.from_pretrained("smollm2")
    options = AtlasOptions(kinds=KINDS, layers=(LAYER,))
    chunks = [chunk for chunk in plan_chunks(model, options) if chunk.job == "vectors"]
    (index,) = plan_index(model, options, chunks)
    with tempfile.TemporaryDirectory() as folder, one_thread():
        store = Store(folder)
        task = Task(index, tuple(chunk.name for chunk in chunks))
        bare = products(model)

        def write() -> int:
            made = [write_chunk(model, Task(chunk), options, store) for chunk in chunks]
            return sum(file.rows for files in made for file in files)

        lists = write()  # also makes what is made once
        rounds = [
            (
                seconds(bare),
                seconds(write),
                seconds(lambda: write_chunk(model, task, options, store)),
            )
            for _ in range(ROUNDS)
        ]
        product, listed, indexed = (min(column) for column in zip(*rounds, strict=True))
        sizes = {
            table: sum(path.stat().st_size for path in Path(folder, table).rglob("*.parquet"))
            for table in ("vectors", "index")
        }
    return {
        "ratio": listed / product,
        "whole_ratio": (listed + indexed) / product,
        "product_seconds": product,
        "list_bytes": sizes["vectors"] / lists,
        "index_bytes": sizes["index"] / lists,
    }


def ask(folder: str) -> dict[str, list[float]]:
    """What the app asks, in milliseconds."""
    atlas = lx.Atlas(folder)
    questions: dict[str, Callable[[], object]] = {
        "parameters of a word": lambda: atlas.parameters(" law"),
        "search of three words": lambda: atlas.search("court judge law"),
        "search, only legible": lambda: atlas.search("court judge law", legibility=0.2),
        "like": lambda: atlas.like("L14N1215.value"),
        "a vector": lambda: atlas.vector("L20N77.key"),
        "a neuron's three": lambda: [
            atlas.vector(f"L20N77.{name}") for name in ("key", "gate", "value")
        ],
        "a layer's values": lambda: atlas.vectors("value", 20),
        "the most legible": lambda: atlas.vectors("value", n=30, by="legibility"),
        "neurons of a layer": lambda: atlas.neurons(20),
        "neurons of all layers": lambda: atlas.neurons(n=100),
        "heads": lambda: atlas.heads(),
        "pairs of a head": lambda: atlas.pairs("L12H3"),
        "directions of a head": lambda: atlas.directions("L12H3"),
        "relations": lambda: atlas.relations(),
        "links": lambda: atlas.links(),
        "legibility by layer": lambda: atlas.sql(
            "select layer, kind, avg(legibility) from vectors where view = ? group by all",
            [atlas.view],
        ),
    }
    atlas.shown  # noqa: B018
    found: dict[str, list[float]] = {}
    for name, question in questions.items():
        question()
        took, worked = [], []
        for _ in range(ASKED):
            start, before = time.perf_counter(), time.process_time()
            question()
            took.append(1000 * (time.perf_counter() - start))
            worked.append(1000 * (time.process_time() - before))
        found[name] = [min(took), median(took), min(worked)]
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(f"{'question':<28}{'least':>10}{'median':>10}{'CPU':>10}   (ms)")
        for name, times in ask(sys.argv[1]).items():
            print(f"{name:<28}" + "".join(f"{value:>10.1f}" for value in times), flush=True)
    else:
        for name, value in run().items():
            print(f"{name:<24}{value:>12.4g}")
