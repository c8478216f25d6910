"""All benchmarks: ratios against a peer or a baseline in the same run, kept in results.json.

`python -m benchmarks` (or `make bench`) takes under 15 minutes on two cores; names as arguments run
only those: `python -m benchmarks pairs vectors`.
"""

import json
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from benchmarks import (
    align,
    app,
    atlas,
    cold_start,
    effects,
    flow,
    heads,
    large,
    lens,
    opening,
    pairs,
    readme,
    relations,
    vectors,
)

RESULTS = Path(__file__).parent / "results.json"
MATRICES = 540


def real_pairs() -> dict[str, float]:
    every = chain(heads.factors(folded=False), heads.factors(folded=True))
    return pairs.run(every, count=2 * MATRICES)


BENCHMARKS: dict[str, Callable[[], dict[str, float]]] = {
    "cold_start": cold_start.run,
    "opening": opening.run,
    "vectors": vectors.run,
    "atlas": atlas.run,
    "align": align.run,
    "app": app.run,
    "lens": lens.run,
    "flow": flow.run,
    "effects": effects.run,
    "heads": heads.run,
    "relations": relations.run,
    "pairs": real_pairs,
    "large": large.run,
}


def main(names: list[str]) -> None:
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names or list(BENCHMARKS):
        start = time.perf_counter()
        figures = BENCHMARKS[name]()
        print(f"{name} ({time.perf_counter() - start:.0f} s)")
        for figure, value in figures.items():
            print(f"  {figure:<24}{value:>12.4g}", flush=True)
        results[name] = {figure: float(f"{value:.4g}") for figure, value in figures.items()}
        RESULTS.write_text(json.dumps(results, indent=2) + "\n")
        readme.update(results)


if __name__ == "__main__":
    main(sys.argv[1:])
