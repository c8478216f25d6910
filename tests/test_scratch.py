"""Rows in a file are those that would be held, and what was let go of is not in memory."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray import scratch
from lexray.scratch import each_part, empty_rows, join_rows, let_go, map_parts, take_rows

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


@pytest.fixture
def _in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scratch, "HELD", 0)
    monkeypatch.setattr(scratch, "PART", 3000)
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path))


filed = pytest.mark.usefixtures("_in_files")


def in_memory(X: Tensor) -> int:
    """Bytes of the mapping at X's address that the process holds, from /proc."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        bounds = line.split(" ", 1)[0].split("-")
        if len(bounds) == 2 and int(bounds[0], 16) <= X.data_ptr() < int(bounds[1], 16):
            rss = next(line for line in lines if line.startswith("Rss:"))
            return 1024 * int(rss.split()[1])
    raise AssertionError("no such mapping")


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def write(X: Tensor) -> Tensor:
    return join_rows(len(X), torch.split(X, 7))


def is_filed(X: Tensor) -> bool:
    return scratch._map_of(X) is not None


@filed
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8])
def test_rows_are_those_that_were_written(dtype: torch.dtype) -> None:
    X = (10 * random(500, 9)).to(dtype)
    filed = write(X)
    assert is_filed(filed)
    assert torch.equal(filed, X)
    parts = list(each_part(filed))
    assert len(parts) > 1
    assert torch.equal(torch.cat(parts), X)
    doubled = map_parts(lambda part: part + part, filed)
    assert is_filed(doubled)
    assert torch.equal(doubled, X + X)
    for index in (torch.randperm(500), torch.tensor([499, 0, 0, 37]), torch.arange(0)):
        assert torch.equal(take_rows(filed, index), X[index])


@pytest.mark.slow
@filed
@linux
def test_what_was_let_go_of_is_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "PART", 2**16)
    X = random(4000, 64)
    filed = write(X)
    assert in_memory(filed) == 0
    assert torch.equal(filed, X)
    assert in_memory(filed) >= X.numel() * 4
    let_go(filed[1000:])
    assert 0 < in_memory(filed) < X.numel() * 2
    let_go(filed)
    assert in_memory(filed) == 0
    most = 0
    for part in each_part(filed):
        part.sum()
        most = max(most, in_memory(filed))
    assert most < X.numel()  # a quarter of its bytes
    take_rows(filed, torch.randperm(4000))
    assert in_memory(filed) == 0


@pytest.mark.slow
@filed
def test_the_file_is_gone_with_its_last_tensor(tmp_path: Path) -> None:
    filed = write(random(100, 8))
    kept = filed[3]
    expected = kept.clone()
    del filed
    gc.collect()
    assert torch.equal(kept, expected)
    assert len(scratch._MAPS) == 1
    del kept
    gc.collect()
    assert len(scratch._MAPS) == 0
    assert list(tmp_path.iterdir()) == []


def test_few_rows_are_held() -> None:
    X = random(50, 8)
    assert not is_filed(write(X))
    assert [part is X for part in each_part(X)] == [True]
    assert torch.equal(take_rows(X, torch.tensor([3, 1])), X[[3, 1]])
    let_go(X)
    assert torch.equal(join_rows(0, iter(())), torch.empty(0))


@filed
def test_a_full_disk_is_a_reason_to_hold_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scratch.os, "posix_fallocate", refuse, raising=False)
    X = random(50, 8)
    room = empty_rows((50, 8), X)
    assert not is_filed(room)
    room.copy_(X)
    assert torch.equal(take_rows(room, torch.tensor([3, 1])), X[[3, 1]])


@filed
def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "file" / "inside"))
    X = random(50, 8)
    assert torch.equal(write(X), X)


@filed
def test_holes_matter_where_files_are_large_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(scratch, "leave_no_holes", lambda: asked.append(True))
    gc.collect()
    monkeypatch.setattr(scratch, "_MUCH", scratch._in_files() + 30_000)
    first = write(random(500, 9))
    assert is_filed(first)
    assert not asked
    second = write(random(500, 9))
    assert is_filed(second)
    assert asked


HOLES = """
import sys
import torch
from pathlib import Path
from lexray.scratch import leave_no_holes

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon:")).split()[1]) / 1024

if sys.argv[1] == "leave none":
    leave_no_holes()
del_me = torch.ones(7_900_000)  # as large as glibc lets what it keeps become
del del_me
before = held()
large, small = [], []
for _ in range(20):
    large.append(torch.ones(1_250_000))
    small.append(torch.ones(100))
large.clear()
print(held() - before)
"""


@linux
@pytest.mark.slow
def test_large_blocks_go_back_at_once() -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc can be asked")

    def megabytes(*how: str) -> float:
        command = [sys.executable, "-c", HOLES, *how]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(done.stdout)

    assert megabytes("leave none") < 10
    assert megabytes("as ever") > 20
