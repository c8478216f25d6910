"""Factors that lie in a file: the same answers to the last bit, and few of their rows in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray import scratch
from lexray.space import top_pairs
from lexray.space.topk import pairs, scan, sieve
from lexray.space.topk.pairs import Sign
from lexray.space.topk.sides import Tiling
from tests.test_scratch import in_memory, is_filed, linux, write

SIGNS = ("largest", "smallest", "absolute")
SMALL = Tiling(rows=64, cols=32, corner=32)
N, M, WIDTH = 800, 700, 100
BYTES = 4 * N * WIDTH


@pytest.fixture(autouse=True)
def _in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scratch, "HELD", BYTES // 2)
    monkeypatch.setattr(scratch, "PART", BYTES // 16)
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path))


def draw(kind: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    A, B = (torch.randn(n, WIDTH, generator=generator) for n in (N, M))
    if kind == "heavy":
        A *= torch.randn(N, 1, generator=generator).exp()
    if kind == "mean":
        A, B = A + 3, B + 1
    if kind == "zeros":
        A[::5], B[7] = 0, 0
    if kind == "tiny":
        A = A * 1e-12
    return A, B


def same(one: Any, other: Any) -> None:
    assert [x.tolist() for x in one[:3]] == [x.tolist() for x in other[:3]]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("kind", ["flat", "heavy", "mean", "zeros", "tiny"])
@pytest.mark.parametrize("in_bytes", [False, True])
def test_answers_are_the_same(
    kind: str, sign: Sign, in_bytes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_bytes:
        for module in (pairs, sieve):
            monkeypatch.setattr(module, "whole_products", lambda *_: None)
    A, B = draw(kind)
    filed = write(A), write(B)
    assert is_filed(filed[0])
    same(
        top_pairs(*filed, 30, sign=sign, tiling=SMALL), top_pairs(A, B, 30, sign=sign, tiling=SMALL)
    )


@pytest.mark.slow
def test_groups_and_some_rows() -> None:
    A, B = draw("heavy")
    options: dict[str, Any] = {
        "row_groups": torch.arange(N) % 7,
        "col_groups": torch.arange(M) % 7,
        "rows": torch.arange(0, N, 2),
        "tiling": SMALL,
    }
    same(top_pairs(write(A), write(B), 30, **options), top_pairs(A, B, 30, **options))


def test_plain_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_BOUNDS_WORTH", 0.0)
    A, B = draw("heavy")
    same(top_pairs(write(A), write(B), 30, tiling=SMALL), top_pairs(A, B, 30, tiling=SMALL))


@linux
@pytest.mark.parametrize("kind", ["flat", "heavy", "mean"])
@pytest.mark.slow
def test_few_rows_are_in_memory(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at wherever tiles are multiplied, and at the end: of either factor, and of copies in
    another order."""
    monkeypatch.setattr(scratch, "PART", 2**16)
    monkeypatch.setattr(scratch, "HELD", 2**18)
    generator = torch.Generator().manual_seed(3)
    A, B = (torch.randn(8000, 128, generator=generator) for _ in range(2))
    A = A + 3 if kind == "mean" else A
    A = A * torch.randn(8000, 1, generator=generator).exp() if kind == "heavy" else A
    filed = write(A), write(B)
    most = 0

    def look(inner: Any) -> Any:
        def multiply(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
            nonlocal most
            held = [in_memory(X) for X in (*filed, a) if is_filed(X)]
            most = max(most, sum(held))
            product: Tensor = inner(a, b, out)
            return product

        return multiply

    monkeypatch.setattr(scan, "multiply", look(scan.multiply))
    top_pairs(*filed, 20)
    assert most < 4 * A.numel() / 4
    assert sum(map(in_memory, filed)) < 4 * A.numel() / 4
