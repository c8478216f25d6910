"""A module spread over the processor and the disk gives the pass that it gives in one place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lexray.errors import LexrayError
from lexray.model.model import Model
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
