"""`lexray head smollm2 L25H1` from a cold process, against importing torch in the same run."""

import subprocess
import sys
import time

ROUNDS = 5
OURS = [sys.executable, "-m", "lexray.cli", "head", "smollm2", "L25H1", "--format", "json"]
TORCH = [sys.executable, "-c", "import torch"]


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def run() -> dict[str, float]:
    rounds = [(seconds(OURS), seconds(TORCH)) for _ in range(ROUNDS)]
    ours, torch = (min(column) for column in zip(*rounds, strict=True))
    return {"ratio": ours / torch, "seconds": ours, "torch_seconds": torch}


if __name__ == "__main__":
    for figure, value in run().items():
        print(f"{figure:<24}{value:>12.4g}")
