"""Folding against dense float64 matrices: C diag(γ) W, b + β W and W C diag(γ), literally."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lexray import scratch
from lexray.checkpoint import Checkpoint
from lexray.checkpoint.base import Box, TensorInfo
from lexray.families import Norm
from lexray.model import fold

Kind = Literal["layer", "rms"]
d = 7


class Memory(Checkpoint):
    """A checkpoint that is a dict."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.name = "memory"
        self.tensors = tensors

    def names(self) -> Collection[str]:
        return self.tensors.keys()

    def info(self, name: str) -> TensorInfo:
        return TensorInfo(tuple(self.tensors[name].shape), self.tensors[name].dtype)

    def _read(self, name: str, box: Box) -> Tensor:
        return self.tensors[name][tuple(slice(*bounds) for bounds in box)]

    @property
    def config(self) -> dict[str, Any]:
        return {}


def make(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Memory, Tensor]:
    random = torch.Generator().manual_seed(seed)
    gain, bias, W = (
        torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)
        for shape in ((d,), (d,), (d, 5))
    )
    return Memory({"g": gain, "b": bias}), W


def centring(kind: Kind) -> Tensor:
    eye = torch.eye(d, dtype=torch.float64)
    return eye - 1 / d if kind == "layer" else eye


def close(ours: Tensor, reference: Tensor) -> None:
    torch.testing.assert_close(ours.double(), reference.double(), rtol=1e-5, atol=1e-6)


kinds = pytest.mark.parametrize("kind", ["layer", "rms"])


@kinds
@pytest.mark.parametrize("plus_one", [False, True])
def test_reader_is_the_dense_product(kind: Kind, plus_one: bool) -> None:
    memory, W = make()
    gain = memory.tensors["g"] + plus_one
    ours = fold.reader(W, Norm(kind, "g", plus_one=plus_one), memory)
    close(ours, centring(kind) @ gain.diag() @ W)
    close(fold.reader(W[:, 0], Norm(kind, "g", plus_one=plus_one), memory), ours[:, 0])


@kinds
def test_writer_is_the_dense_product(kind: Kind) -> None:
    memory, W = make()
    ours = fold.writer(W.T, Norm(kind, "g"), memory)
    close(ours, W.T @ centring(kind) @ memory.tensors["g"].diag())
    close(fold.writer(W[:, 0], Norm(kind, "g"), memory), ours[0])


@kinds
def test_a_norm_without_gain_only_centres(kind: Kind) -> None:
    memory, W = make()
    close(fold.reader(W, Norm(kind, None), memory), centring(kind) @ W)
    close(fold.writer(W.T, Norm(kind, None), memory), W.T @ centring(kind))


@kinds
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("step", [1, 3, d])
def test_outwards_is_the_dense_product_in_parts(
    kind: Kind, projected: bool, step: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path))
    monkeypatch.setattr(scratch, "PART", 4 * d * step)
    memory, W = make()
    ours = fold.outwards(W if projected else None, d, Norm(kind, "g"), memory, 0.3)
    P = W if projected else torch.eye(d, dtype=torch.float64)
    close(ours, 0.3 * centring(kind) @ memory.tensors["g"].diag() @ P)
    monkeypatch.setattr(scratch, "HELD", 0)
    filed = fold.outwards(W if projected else None, d, Norm(kind, "g"), memory, 0.3)
    assert scratch._map_of(filed) is not None
    assert torch.equal(filed, ours)


def test_no_norm_changes_nothing() -> None:
    memory, W = make()
    assert fold.reader(W, None, memory).equal(W)
    assert fold.writer(W.T, None, memory).equal(W.T)
    assert fold.reader_bias(None, W, None, memory) is None


@kinds
def test_bias_gains_what_the_norms_bias_reads(kind: Kind) -> None:
    memory, W = make()
    b, shift = torch.randn(5, dtype=torch.float64), memory.tensors["b"]
    both, gain_only = Norm(kind, "g", "b"), Norm(kind, "g")
    moved, alone = fold.reader_bias(b, W, both, memory), fold.reader_bias(None, W, both, memory)
    assert moved is not None
    assert alone is not None
    close(moved, b + W.T @ shift)
    close(alone, W.T @ shift)
    assert fold.reader_bias(None, W, gain_only, memory) is None
    unmoved = fold.reader_bias(b, W, gain_only, memory)
    assert unmoved is not None
    close(unmoved, b)


@kinds
@given(seed=st.integers(0, 2**16), plus_one=st.booleans())
def test_folded_on_the_bare_norm_is_raw_on_torchs_norm(
    kind: Kind, seed: int, plus_one: bool
) -> None:
    memory, W = make(seed=seed)
    norm = Norm(kind, "g", "b", eps=1e-4, plus_one=plus_one)
    x = 3 * torch.randn(4, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gain = memory.tensors["g"] + plus_one
    if kind == "layer":
        whole = torch.nn.functional.layer_norm(x, (d,), gain, memory.tensors["b"], 1e-4)
    else:
        whole = torch.nn.functional.rms_norm(x, (d,), gain, 1e-4) + memory.tensors["b"]
    bias = fold.reader_bias(None, W, norm, memory)
    assert bias is not None
    close(norm.bare(x) @ fold.reader(W, norm, memory) + bias, whole @ W)


@kinds
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_folded_in_float32(kind: Kind, dtype: torch.dtype) -> None:
    memory, W = make(dtype)
    norm, C = Norm(kind, "g", "b"), centring(kind)
    gain, shift = memory.tensors["g"].double(), memory.tensors["b"].double()
    reader, writer = fold.reader(W, norm, memory), fold.writer(W.T, norm, memory)
    bias = fold.reader_bias(W[0], W, norm, memory)
    assert bias is not None
    assert {reader.dtype, writer.dtype, bias.dtype} == {torch.float32}
    # float32's accuracy from half-precision weights: nothing was rounded on the way
    close(reader, C @ gain.diag() @ W.double())
    close(writer, W.double().T @ C @ gain.diag())
    close(bias, W[0].double() + shift @ W.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_dtypes_stay(dtype: torch.dtype) -> None:
    memory, W = make(dtype)
    assert fold.reader(W, Norm("layer", "g"), memory).dtype == dtype
    assert fold.writer(W.T, Norm("rms", "g"), memory).dtype == dtype


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_that_was_read_is_changed(kind: Kind, dtype: torch.dtype) -> None:
    memory, W = make(dtype)
    norm = Norm(kind, "g", "b", plus_one=True)
    before = {name: tensor.clone() for name, tensor in {**memory.tensors, "W": W}.items()}
    fold.reader(W, norm, memory)
    fold.writer(W.T, norm, memory)
    fold.reader_bias(W[0], W, norm, memory)
    for name, tensor in {**memory.tensors, "W": W}.items():
        assert tensor.equal(before[name]), name
