"""A tensor that lies in its file is used like any other; a file that shrinks is an error."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lexray.checkpoint import mapped
from lexray.checkpoint.mapped import Mapped, MappedTensor
from lexray.errors import LexrayError
from tests.test_scratch import in_memory, linux

ROWS, WIDTH = 300, 64
SHIFT = 4 * WIDTH
"""The tensor begins behind some bytes of the file."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    whole = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "weights"
    path.write_bytes(bytes(SHIFT) + whole.numpy().tobytes())
    return path


def lying(path: Path) -> tuple[MappedTensor, Tensor]:
    """The tensor in the file, and a copy to compare it with."""
    whole = torch.frombuffer(bytearray(path.read_bytes()[SHIFT:]), dtype=torch.float32)
    part = Mapped(path).part(SHIFT, path.stat().st_size)
    return part.view(torch.float32).view(ROWS, WIDTH), whole.view(ROWS, WIDTH)


@linux
def test_a_file_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    path, size = tmp_path / "weights", 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size - 4)
        file.write(bytes([1, 2, 3, 4]))
    assert Mapped(path).part(size - 3, size).tolist() == [2, 3, 4]


Use = Callable[[Tensor], Tensor]
PLAIN: dict[str, Use] = {
    "product": lambda W: torch.ones(2, ROWS) @ W,
    "product of what is turned": lambda W: torch.ones(2, WIDTH) @ W.T,
    "linear": lambda W: functional.linear(torch.ones(2, WIDTH), W),
    "gather": lambda W: W[torch.tensor([5, 299, 0])],
    "rows": lambda W: W[7:9],
    "a row": lambda W: W[7],
    "columns": lambda W: W.T[:, 7:9],
    "some columns": lambda W: W[:, 7:9] + 0,
    "an entry": lambda W: W[7, 3],
    "cat": lambda W: torch.cat([W, W]),
    "parts": lambda W: torch.stack(W.split(100)),
    "a parameter": lambda W: nn.Parameter(W, requires_grad=False) * 1,
    "with gradient": lambda W: (nn.Parameter(W) * 2).detach(),
    "a copy": deepcopy,
    "pickled": lambda W: pickle.loads(pickle.dumps(W)),
    "half": lambda W: W.half(),
}


@pytest.mark.parametrize("block", [mapped.BLOCK, 0])
@pytest.mark.parametrize("name", PLAIN)
def test_it_is_used_like_any_other(
    path: Path, name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    W, copy = lying(path)
    assert type(W) is MappedTensor
    made = PLAIN[name](W)
    assert made.equal(PLAIN[name](copy))
    assert type(made) is Tensor
    monkeypatch.setattr(mapped, "BLOCK", block)
    assert PLAIN[name](W).equal(PLAIN[name](copy))


@pytest.mark.parametrize("name", [*PLAIN])
def test_a_file_that_shrinks_in_use(path: Path, name: str) -> None:
    """Whatever is done next with the tensor says so; without looking it would end the process."""
    W, _ = lying(path)
    PLAIN[name](W)
    os.truncate(path, 4096)
    with pytest.raises(LexrayError, match=r"has become shorter .*now 4096"):
        PLAIN[name](W)


def test_a_file_that_shrinks_between_the_look_and_the_reading(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are read, not looked at in a mapping: that cannot end the process either."""
    W, _ = lying(path)
    os.truncate(path, 4096)
    monkeypatch.setattr(Mapped, "refuse_shorter", lambda file, stop: None)
    for use in (lambda: W[100:200], lambda: W.T[:, 100:200], lambda: W[299]):
        with pytest.raises(LexrayError, match=r"has become shorter .*now 4096"):
            use()


def test_views_share_the_file_and_large_slices_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    W, _ = lying(path)
    start = W.untyped_storage().data_ptr()
    monkeypatch.setattr(mapped, "BLOCK", 4 * WIDTH * 10)
    for view in (W.T, W.view(-1), W[:11], *W.split(100), W.detach(), W[::2]):
        assert type(view) is MappedTensor
        assert view.untyped_storage().data_ptr() == start
    assert type(W[:10]) is Tensor


@linux
def test_what_was_let_go_of_is_found_again(path: Path) -> None:
    W, whole = lying(path)
    W.file.let_go(SHIFT, path.stat().st_size)
    assert in_memory(W) == 0
    assert torch.equal(W, whole)


def test_a_disk_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(LexrayError, match="cannot be read: Input/output error"):
        Mapped(path).read(0, 10)


def test_without_preadv_a_part_is_copied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "preadv")
    assert bytes(Mapped(path).read(3, 900).numpy()) == path.read_bytes()[3:900]
