"""Quantised checkpoints wherever they lie, in pieces, and with tensors that do not go together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.opening import open_checkpoint
from lexray.checkpoint.quant import checkpoint as quantised
from lexray.errors import LexrayError
from tests.checkpoint.hub.server import serve
from tests.checkpoint.quant.writers import FORMATS

STEM = "model.layers.0.self_attn.q_proj"
NAME = f"{STEM}.weight"


def stored(form: str, rows: int = 64, columns: int = 128) -> tuple[dict[str, Tensor], Tensor]:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(2))
    parts, back = FORMATS[form].store(weight)
    return {STEM + ending: part.contiguous() for ending, part in parts.items()}, back


def put(form: str, tensors: dict[str, Tensor], folder: Path, **changes: Any) -> Checkpoint:
    said = {FORMATS[form].key: FORMATS[form].config | changes}
    (folder / "config.json").write_text(json.dumps(said))
    about = json.dumps({"_type": "Int4Tensor", "_data": {"block_size": [1, 32]}})
    save_file(tensors, folder / "model.safetensors", {NAME: about})
    return open_checkpoint(folder)


@pytest.mark.parametrize("form", FORMATS)
def test_large_parts_are_read_in_pieces(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bounded size: the same numbers, and what is read is what it costs."""
    monkeypatch.setattr(quantised, "PIECE", 1000)
    monkeypatch.setattr(quantised, "STEP", 16)
    tensors, expected = stored(form)
    checkpoint = put(form, tensors, tmp_path)
    assert len(list(quantised._parts(((0, 64), (0, 128))))) > 3
    for index in ((), (slice(5, 61), slice(3, 100)), (slice(9, 10),)):
        cost, before = checkpoint.cost(NAME, *index), checkpoint.bytes_read
        torch.testing.assert_close(checkpoint.read(NAME, *index), expected[index])
        assert checkpoint.bytes_read - before == cost


@pytest.mark.parametrize("form", ["fp8", "gptq", "nf4", "hqq"])
def test_pickled_weights(form: str, tmp_path: Path) -> None:
    tensors, expected = stored(form)
    put(form, tensors, tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    checkpoint = open_checkpoint(tmp_path)
    index = (slice(3, 20), slice(7, 70))
    torch.testing.assert_close(checkpoint.read(NAME, *index), expected[index])


def change(ending: str, value: Any) -> Any:
    """A spoiler that puts another tensor in place of one."""

    def spoil(tensors: dict[str, Tensor]) -> None:
        old = tensors.pop(STEM + ending)
        if value is not None:
            tensors[STEM + ending] = value(old).contiguous()

    return spoil


HOSTILE = [
    ("gptq", change(".scales", None), "but .*q_proj.scales is not"),
    ("gptq", change(".scales", lambda x: x[:1]), "shape"),
    ("gptq", change(".scales", lambda x: x * torch.nan), "has 8192 NaN"),
    ("gptq", change(".g_idx", lambda x: x + 2**30), "assigns columns to groups"),
    ("gptq", change(".g_idx", lambda x: x[:-3]), "bits each, where the config says 4"),
    ("gptq", change(".qweight", lambda x: x.float()), "stored as float32, where int32 is expected"),
    ("awq", change(".qzeros", lambda x: x[:, :-1]), r"shape \(4, 7\), where \(4, 8\) is expected"),
    ("fp8", change(".weight", lambda x: x.half()), "stored as float16, where float8"),
    ("fp8", change(".weight_scale_inv", lambda x: x[:3]), "does not divide"),
    ("fp8", change(".weight_scale_inv", lambda x: x * torch.inf), "8192 infinite"),
    ("compressed", change(".weight_shape", lambda x: x * 2**40), "cannot hold"),
    ("compressed", change(".weight_shape", lambda x: -x), "cannot hold"),
    ("compressed", change(".weight_zero_point", lambda x: x[:-1]), "is expected"),
    ("mlx", change(".scales", lambda x: x[:, :-1]), "do not divide into groups of 32"),
    ("mlx", change(".biases", None), "it should have its biases"),
    ("nf4", change(".weight.absmax", lambda x: x[:-1]), "where 128 are expected"),
    ("nf4", change(".weight", lambda x: x[:-1]), "cannot hold the codes"),
    ("nf4", change(".weight.quant_state.bitsandbytes__nf4", lambda x: x[:-9]), "is no text"),
    ("hqq", change(".shape", lambda x: x * 10**6), "cannot be divided|cannot hold|shape"),
    ("hqq", change(".group_size", lambda x: x * 0 - 5), "groups of -5"),
    ("torchao", change("._weight_zero_point", lambda x: x[:-1]), "is expected"),
    ("modelopt", change(".weight_scale", lambda x: x.float()), "stored as float32"),
]


@pytest.mark.parametrize(("form", "spoil", "message"), HOSTILE, ids=lambda x: str(x)[:30])
def test_tensors_that_do_not_go_together(
    form: str, spoil: Any, message: str, tmp_path: Path
) -> None:
    tensors, _ = stored(form)
    spoil(tensors)
    with pytest.raises(LexrayError, match=message):
        put(form, tensors, tmp_path).read(NAME)


@pytest.mark.parametrize(
    ("form", "changes", "message"),
    [
        ("gptq", {"bits": 8}, "4 bits each, where the config says 8"),
        ("gptq", {"group_size": 0}, "group_size 0, which is no size"),
        ("gptq", {"desc_act": False}, 'should say "desc_act": true'),
        ("awq", {"group_size": 64}, "in 4 groups are none of 64 each"),
        ("awq", {"group_size": 0}, "group_size 0, which is no size"),
        ("mlx", {"bits": 4}, "do not divide into groups of 32"),
        ("mlx", {"group_size": -3}, "MLX with bits 6, in groups of -3"),
        ("compressed", {"config_groups": {"g": {"targets": ["re:(a+)+$"]}}}, "no group of"),
    ],
    ids=str,
)
def test_settings_that_do_not_fit(
    form: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors, _ = stored(form)
    with pytest.raises(LexrayError, match=message):
        put(form, tensors, tmp_path, **changes).read(NAME, slice(None), slice(0, 16))


@pytest.mark.slow
def test_byte_ranges_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the blocks of the rows are fetched, and the shape of a flattened weight is told."""
    for form in ("nf4", "torchao"):
        folder = tmp_path / "hub" / "org" / form
        folder.mkdir(parents=True)
        tensors, _ = stored(form, 256, 1024)
        put(form, {"a": torch.zeros(1 << 15)} | tensors, folder)
    with serve(tmp_path / "hub") as hub:
        hub.use(monkeypatch, tmp_path)
        for form in ("nf4", "torchao"):
            _, expected = stored(form, 256, 1024)
            checkpoint = open_checkpoint(f"org/{form}", remote=True)
            assert checkpoint.info(NAME).shape == (256, 1024)
            hub.reset()
            cost = checkpoint.cost(NAME, slice(64, 128))
            found = checkpoint.read(NAME, slice(64, 128))
            torch.testing.assert_close(found, expected[64:128])
            assert hub.sent() == cost < checkpoint.size(NAME) / 2
