"""Nothing takes the CPU for granted: see `device_cases.py`, which runs in a process of its own.

torch keeps what it was told of a device for as long as it runs, and other tests look for one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_on_a_device_that_is_not_there() -> None:
    cases = str(Path(__file__).with_name("device_cases.py"))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
