"""Every head of SmolLM2, VO and QK: `lexray heads smollm2`, its time and its peak memory."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.pairs import Head

SCRIPT = """
import sys
from benchmarks.pairs import status_mb
from lexray.cli import main
sys.argv = ["lexray", "heads", "smollm2", "-k", "50", "--view", {view!r}, "-o", {path!r}]
try:
    main()
except SystemExit:
    pass
print("peak", status_mb("VmHWM"))
"""


def factors(folded: bool) -> Iterator[Head]:
    """The factors of all 540 matrices, as the engine gets them."""
    from lexray.model.model import Model

    model = Model.from_pretrained("smollm2").view("raw").view(folded=folded)
    for layer in model.layers:
        for head in layer.heads:
            for circuit in (head.vo, head.qk):
                with threads(os.cpu_count() or 1):  # making the factors is not what is timed
                    A, B = circuit.factors()
                yield str(circuit.address), A, B


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run() -> dict[str, float]:
    standard, raw = sweep("standard"), sweep("raw")
    return standard | {"raw_seconds": raw["seconds"]}


def sweep(view: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "heads.jsonl"
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(path=str(path), view=view)],
            check=True,
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
        lines = len(path.read_text(encoding="utf-8").splitlines())
    peak = re.search(r"peak ([\d.]+)", done.stdout)
    assert peak is not None
    return {"seconds": seconds, "peak_mb": float(peak[1]), "matrices": lines}


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
