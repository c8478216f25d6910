"""`lexray head smollm2 L25H1` from a cold process, against importing torch in the same run.

Both have their bytecode on disk, as an installed package has, even where a machine asks for none.
"""

import os
import subprocess
import sys
import time

ROUNDS = 5
OURS = [sys.executable, "-m", "lexray.cli", "head", "smollm2", "L25H1", "--format", "json"]
TORCH = [sys.executable, "-c", "import torch"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    return time.perf_counter() - start


def run() -> dict[str, float]:
    rounds = [(seconds(OURS), seconds(TORCH)) for _ in range(ROUNDS)]
    ours, torch = (min(column) for column in zip(*rounds, strict=True))
    return {"ratio": ours / torch, "seconds": ours, "torch_seconds": torch}


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
