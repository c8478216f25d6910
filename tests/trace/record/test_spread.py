"""A module spread over the processor and the disk gives the pass that it gives in one place."""

from __future__ import annotations

import gc
import shutil
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import dispatch_model

from lexray import scratch
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.families.gguf import test_names as gguf_files
from tests.families.zoo import build

IDS = torch.tensor([5, 9, 2, 7])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    build("llama").save_pretrained(path)
    return path


def places(model: Model, first: str) -> dict[str, str]:
    """All layers but the first on the disk, and that and the embedding where they are told."""
    layers = {f"model.layers.{i}": "disk" for i in range(1, model.n_layers)}
    ends = dict.fromkeys(["model.norm", "model.rotary_emb", "lm_head"], "cpu")
    return {"model.embed_tokens": first, "model.layers.0": first} | layers | ends


@pytest.mark.parametrize("first", ["cpu", "disk"])
def test_the_same_pass_from_the_disk(first: str, folder: Path, tmp_path: Path) -> None:
    plain = Model.from_pretrained(folder).view("raw").trace(IDS)
    model = Model.from_pretrained(folder).view("raw")
    module = model.module(places(model, first), tmp_path)
    assert {p.device.type for p in module.parameters()} == {"cpu", "meta"}
    spread = model.trace(IDS)
    assert spread.parts.keys() == plain.parts.keys()
    for key, part in plain.parts.items():
        assert spread.parts[key].device == model.device
        torch.testing.assert_close(spread.parts[key], part, msg=str(key))
    torch.testing.assert_close(spread.logits, plain.logits)


@pytest.mark.parametrize("first", ["cpu", "disk"])
def test_what_the_first_block_makes_of_tokens_alone(
    first: str, folder: Path, tmp_path: Path
) -> None:
    plain, model = (Model.from_pretrained(folder, dtype=torch.float32) for _ in range(2))
    model.module(places(model, first), tmp_path)
    spread = model.space.reading.rows
    assert model.space.note == ""
    torch.testing.assert_close(spread, plain.space.reading.rows)


@pytest.mark.parametrize("first", ["cpu", "disk"])
def test_what_changes_do(first: str, folder: Path, tmp_path: Path) -> None:
    plain, model = (Model.from_pretrained(folder) for _ in range(2))
    model.module(places(model, first), tmp_path)
    runs = [m.trace(IDS) for m in (plain, model)]
    one, other = (str(run.effects()) for run in runs)
    assert one == other
    one, other = (str(run.effect("scale L1N3 by 3")) for run in runs)
    assert one == other


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "gemma3", "albert", "bert", "qwen3-next"])
def test_all_of_any_model_on_the_disk(name: str, tmp_path: Path) -> None:
    build(name).save_pretrained(tmp_path / "model")
    plain, model = (Model.from_pretrained(tmp_path / "model").view("raw") for _ in range(2))
    module = model.module({"": "disk"}, tmp_path / "offload")
    assert {p.device.type for p in module.parameters()} == {"meta"}
    torch.testing.assert_close(model.trace(IDS).logits, plain.trace(IDS).logits)


def test_a_gguf_file_on_the_disk(tmp_path: Path) -> None:
    path = gguf_files.converted("llama").save(tmp_path / "model.gguf")
    plain, model = (gguf_files.opened(path).view("raw") for _ in range(2))
    model.module({"": "disk"}, tmp_path / "offload")
    torch.testing.assert_close(model.trace(IDS).logits, plain.trace(IDS).logits)


def test_a_model_in_memory_is_moved_and_moved_again(folder: Path, tmp_path: Path) -> None:
    model = Model.from_pretrained(folder).view("raw")
    whole = model.trace(IDS).logits
    for place, device in (("disk", "meta"), ("cpu", "cpu"), ("disk", "meta")):
        moved = model.module({"": place}, tmp_path)
        assert {p.device.type for p in moved.parameters()} == {device}
        torch.testing.assert_close(model.trace(IDS).logits, whole)


def test_two_models_in_one_folder(folder: Path, tmp_path: Path) -> None:
    build("gpt2").save_pretrained(tmp_path / "gpt2")
    for path in (folder, tmp_path / "gpt2"):
        plain, model = (Model.from_pretrained(path).view("raw") for _ in range(2))
        model.module({"": "disk"}, tmp_path / "offload")
        torch.testing.assert_close(model.trace(IDS).logits, plain.trace(IDS).logits)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_model_may_be_larger_than_the_memory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(name).save_pretrained(tmp_path / "model")
    monkeypatch.setattr(scratch, "HELD", 1000)
    module = Model.from_pretrained(tmp_path / "model").module({"": "cpu"})
    weights = [p for p in module.parameters() if p.ndim > 1]
    held = [p.nbytes for p in weights if scratch._map_of(p) is None]
    assert sum(held) <= scratch.HELD < sum(p.nbytes for p in weights)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_a_live_module_that_is_spread_already(name: str, tmp_path: Path) -> None:
    module, prompt = deepcopy(build(name)), IDS  # others use what is built
    plain = Model.from_module(module).view("raw")
    whole, values = plain.trace(prompt).logits, plain["L1H1"].W_O.clone()
    parts = dict.fromkeys((name for name, _ in module.named_children()), "disk")
    dispatch_model(module, parts, offload_dir=tmp_path, force_hooks=True)
    model = Model.from_module(module).view("raw")
    torch.testing.assert_close(model.trace(prompt).logits, whole)
    torch.testing.assert_close(model["L1H1"].W_O, values)
    with pytest.raises(LexrayError, match="spread already"):
        model.module("auto")


def test_what_lies_on_the_disk_goes_with_the_module(folder: Path, tmp_path: Path) -> None:
    model = Model.from_pretrained(folder)
    model.module({"": "disk"}, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    del model
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_room(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(total=100, used=0, free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(LexrayError, match="which has 100"):
        Model.from_pretrained(folder).module({"": "disk"}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_auto_takes_the_one_device_there_is(folder: Path) -> None:
    model = Model.from_pretrained(folder)
    assert {p.device.type for p in model.module("auto").parameters()} == {"cpu"}


def test_maps_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    model = Model.from_pretrained(folder)
    with pytest.raises(LexrayError, match="offload= says to which folder"):
        model.module({"": "disk"})
    with pytest.raises(LexrayError, match="'auto' or a place"):
        model.module("balanced")
    with pytest.raises(LexrayError, match="does not fit"):
        model.module({"model.embed_tokens": "cpu"}, tmp_path)
