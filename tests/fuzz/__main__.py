"""The long run: `python -m tests.fuzz --count 2000 --seed 0 [--kind gguf]`.

Each kind's cases run in a process of its own with a bound on its memory. A case that takes too long
is ended with its process, counted, and the next process goes on behind it. A crash is shown with
its seed; `--only SEED --kind KIND` runs that one case in this process.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import IO

import psutil

LIMIT = 30.0
"""Seconds of work for one case, and ten times that in waiting, on a machine that others use too."""
BEGINNING = 3600.0
"""Seconds until a process has imported what it needs: a case that has not begun cannot hang."""
MEMORY = 4 << 30
"""Bytes of address space for a process."""


def work(kind: str, first: int, count: int, sound: Path) -> None:
    """Runs cases and writes a line before and after each."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # a spoiled base may look like a repository
    from transformers.utils import logging

    from tests.fuzz.cases import run

    logging.set_verbosity_error()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    faulthandler.register(signal.SIGUSR1, os.dup(2))  # where a case hangs
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # panics of Rust libraries
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for seed in range(first, first + count):
        out.write(json.dumps({"begin": seed}) + "\n")
        with tempfile.TemporaryDirectory() as folder:
            try:
                result, reason = run(kind, seed, sound, Path(folder)), ""
            except BaseException as error:
                frames = traceback.extract_tb(error.__traceback__)[-3:]
                where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
                result, reason = "crashed", f"{type(error).__name__}: {str(error)[:150]} ({where})"
        out.write(json.dumps({"end": seed, "result": result, "reason": reason}) + "\n")


def wait(process: subprocess.Popen[bytes], out: IO[bytes], begun: bool) -> bool:
    """Whether a line came before the case had used up its time."""
    start, worked = time.monotonic(), spent(process.pid)
    while time.monotonic() - start < (10 * LIMIT if begun else BEGINNING):
        ready, _, _ = select.select([out], [], [], LIMIT / 10)
        if ready:
            return True
        if begun and spent(process.pid) - worked > LIMIT:
            return False
    return False


def spent(pid: int) -> float:
    """Seconds that a process has worked."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def watch(kind: str, first: int, count: int, sound: Path) -> Counter[str]:
    """All cases of a kind, in as many processes as it takes."""
    found: Counter[str] = Counter()
    seed, stop = first, first + count
    while seed < stop:
        command = [sys.executable, "-m", "tests.fuzz", "--work", str(sound), "--kind", kind]
        command += ["--seed", str(seed), "--count", str(stop - seed)]
        # Unbuffered: a line that was read ahead would not be seen by `select`.
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdout is not None
            begun = False
            while True:
                ready = wait(process, process.stdout, begun)
                line = process.stdout.readline() if ready else b""
                if not line:
                    break
                said = json.loads(line)
                begun = True
                if "begin" in said:
                    seed = said["begin"]
                    continue
                found[said["result"]] += 1
                seed = said["end"] + 1
                if said["result"] == "crashed":
                    print(f"{kind} {said['end']}: {said['reason']}", flush=True)
            if not ready:
                process.send_signal(signal.SIGUSR1)
                time.sleep(1)
            process.kill()
        if seed < stop:
            what = "hung" if not ready else "killed"
            found[what] += 1
            print(f"{kind} {seed}: {what}", flush=True)
            seed += 1
    return found


def main() -> int:
    from tests.fuzz.cases import KINDS, make_sound, run

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--only", type=int)
    parser.add_argument("--work", type=Path)
    asked = parser.parse_args()
    if asked.work:
        work(asked.kind[0], asked.seed, asked.count, asked.work)
        return 0
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        sound = Path(name) / "sound"
        make_sound(sound)
        if asked.only is not None:
            (Path(name) / "case").mkdir()
            print(run(asked.kind[0], asked.only, sound, Path(name) / "case"))
            return 0
        for kind in asked.kind or KINDS:
            found = watch(kind, asked.seed, asked.count, sound)
            print(f"{kind}: {dict(found)}", flush=True)
            total += found
    print(f"all: {dict(total)}")
    return 1 if total["crashed"] + total["hung"] + total["killed"] else 0


if __name__ == "__main__":
    sys.exit(main())
