"""Weights as each format's own library stored them, read by lexray: its values, part by part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.opening import open_checkpoint
from tests.checkpoint.quant.make_golden import CASES, GOLDEN


def opened(case: str, folder: Path) -> tuple[Checkpoint, str, torch.Tensor]:
    """The checkpoint of a case, the name of its weight, and what its library makes of it."""
    path = GOLDEN / f"{case}.safetensors"
    tensors = load_file(path)
    expected = tensors.pop("expected")
    with safe_open(path, "pt") as file:
        notes = dict(file.metadata())
    config, name = json.loads(notes.pop("config")), notes.pop("name")
    key = "quantization" if case.startswith("mlx") else "quantization_config"
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", key: config}))
    save_file(tensors | {"lm_head.weight": torch.ones(3, 4)}, folder / "model.safetensors", notes)
    return open_checkpoint(folder), name, expected


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_library(case: str, tmp_path: Path) -> None:
    checkpoint, name, expected = opened(case, tmp_path)
    assert set(checkpoint.names()) == {name, "lm_head.weight"}
    info = checkpoint.info(name)
    found = checkpoint.read(name)
    assert info.shape == expected.shape == found.shape
    assert found.dtype == info.dtype == torch.float32
    assert found.equal(expected), (found - expected).abs().max()


BOXES = [
    (slice(0, 1),),
    (slice(5, 19),),
    (slice(None), slice(33, 71)),
    (slice(31, 48), slice(64, 96)),
    (slice(7, 8), slice(99, 100)),
    (slice(4, 4), slice(0, 7)),
]


@pytest.mark.parametrize("case", CASES)
def test_parts_are_those_of_the_whole_and_cost_what_is_said(case: str, tmp_path: Path) -> None:
    checkpoint, name, expected = opened(case, tmp_path)
    sizes = expected.shape[-2:]
    for box in BOXES:
        index = tuple(
            slice(s.start and min(s.start, n), s.stop and min(s.stop, n))
            for s, n in zip(box, sizes, strict=False)
        )
        index = (slice(1, 3), *index) if expected.dim() == 3 else index
        cost, before = checkpoint.cost(name, *index), checkpoint.bytes_read
        assert checkpoint.read(name, *index).equal(expected[index]), index
        assert checkpoint.bytes_read - before == cost
        assert cost <= checkpoint.size(name)
