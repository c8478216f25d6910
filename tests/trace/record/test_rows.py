"""The first block with its weights in files: the same numbers, and few of them in memory."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from lexray import scratch
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.trace.record.lone import _one_block
from lexray.trace.record.rows import Shelf
from tests.saved import save
from tests.test_scratch import in_memory, is_filed, linux


@pytest.fixture
def _in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scratch, "HELD", 500)
    monkeypatch.setattr(scratch, "PART", 700)
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "cache"))


def large_weights(block: nn.Module) -> list[torch.Tensor]:
    return [p for p in block.parameters() if p.ndim == 2 and p.nbytes > 500]


@pytest.mark.parametrize("entering", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "gemma2", "bert", "opt-350m"])
def test_what_the_block_makes_is_the_same_to_the_last_bit(
    name: str, entering: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    save(name, tmp_path, dtype=torch.bfloat16)
    held = Model.from_pretrained(tmp_path).lone_states(entering=entering)
    request.getfixturevalue("_in_files")
    filed = Model.from_pretrained(tmp_path).lone_states(entering=entering)
    assert torch.equal(filed, held)


@pytest.mark.usefixtures("_in_files")
def test_large_weights_lie_in_files(tmp_path: Path) -> None:
    save("llama", tmp_path, dtype=torch.bfloat16)
    _, module = _one_block(Model.from_pretrained(tmp_path))
    weights = large_weights(module.get_submodule("model.layers.0"))
    assert len(weights) == 7
    assert all(is_filed(weight) for weight in weights)
    assert all(weight.dtype == torch.float32 for weight in weights)


@pytest.mark.parametrize("held", [500, 3_000])
@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe", "gpt-oss", "dbrx"])
def test_experts_lie_in_files_small_ones_together(
    name: str,
    held: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save(name, tmp_path, dtype=torch.bfloat16)
    model = Model.from_pretrained(tmp_path)
    expected = model.lone_states(entering=False)
    request.getfixturevalue("_in_files")
    monkeypatch.setattr(scratch, "HELD", held)
    again = Model.from_pretrained(tmp_path)
    _, module = _one_block(again)
    stacks = [p for n, p in module.named_parameters() if "experts" in n and p.nbytes > held]
    assert stacks
    assert all(is_filed(stack) for stack in stacks)
    assert torch.equal(again.lone_states(entering=False), expected)


@pytest.mark.usefixtures("_in_files")
def test_the_shelf_keeps_what_is_put_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("mixtral", tmp_path, dtype=torch.bfloat16)
    model = Model.from_pretrained(tmp_path)
    names = [n for n in model.checkpoint.names() if "experts" in n]
    largest = max(prod(model.checkpoint.info(name).shape) * 4 for name in names)
    monkeypatch.setattr(scratch, "HELD", 2 * largest)
    shelf = Shelf(model, names, torch.float32)
    tensors = {name: model.tensor(name).float() for name in names}
    kept = {name: shelf.put(X) for name, X in tensors.items()}
    assert all(is_filed(X) for X in kept.values())
    assert all(torch.equal(kept[name], X) for name, X in tensors.items())
    assert len({X.untyped_storage().data_ptr() for X in kept.values()}) == 1
    more = torch.ones(3, 3)
    assert shelf.put(more) is more


@linux
@pytest.mark.usefixtures("_in_files")
def test_a_weight_is_in_memory_only_while_its_part_runs(tmp_path: Path) -> None:
    save("llama", tmp_path, dtype=torch.bfloat16)
    _, module = _one_block(Model.from_pretrained(tmp_path))
    part = module.get_submodule("model.layers.0.mlp.up_proj")
    assert bool(part.weight.any())
    assert in_memory(part.weight) > 0
    part(torch.ones(2, part.weight.shape[1]))
    assert in_memory(part.weight) == 0


def test_a_damaged_weight_is_named(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    save("llama", tmp_path, dtype=torch.bfloat16)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].clone()
    tensors[name][-1, 3] = torch.nan
    save_file(tensors, path, {"format": "pt"})
    request.getfixturevalue("_in_files")
    with pytest.raises(LexrayError, match=rf"{name}.* 1 NaN"):
        Model.from_pretrained(tmp_path).lone_states(entering=False)
