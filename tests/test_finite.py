"""A damaged weight: one message that names the tensor and the place, whatever was asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lexray as lx
from lexray import LexrayError, finite
from lexray.finite import all_finite, require_finite
from lexray.studies import find
from tests.cli.running import lexray, save_tiny
from tests.families.zoo import build

EMBED, UNEMBED = "model.embed_tokens.weight", "lm_head.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
UP = "model.layers.1.mlp.up_proj.weight"
QUERY = "model.layers.1.self_attn.q_proj.weight"
OUTPUT = "model.layers.1.self_attn.o_proj.weight"
NORM = "model.layers.1.input_layernorm.weight"
PROMPT = "the cat and the dog"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("sound") / "model", "llama")


@pytest.fixture
def damage(sound: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the model with one entry of one tensor replaced."""

    def damaged(name: str, *place: int, value: float = math.nan) -> Path:
        tensors = load_file(sound / "model.safetensors")
        tensors[name][place] = value
        folder = tmp_path / "damaged"
        folder.mkdir()
        for file in sound.iterdir():
            if file.suffix == ".json":
                (folder / file.name).symlink_to(file)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder

    return damaged


QUESTIONS: dict[str, tuple[tuple[str, tuple[int, ...]], Callable[[Any, Any], Any]]] = {
    "vector": ((DOWN, (3, 7)), lambda m, _: m["L1N7.value"].top(3)),
    "pairs": ((OUTPUT, (5, 13)), lambda m, _: m["L1H2"].vo.top(3)),
    "pairs, folded": ((NORM, (4,)), lambda m, _: m.view(folded=True)["L1H0"].vo.top(3)),
    "svd": ((QUERY, (9, 2)), lambda m, _: m["L1H1"].qk.svd(2, 3)),
    "lookup": ((DOWN, (0, 0)), lambda m, _: m.lookup([" the"], "values").top(2)),
    "lookup, token": ((UNEMBED, (9, 2)), lambda m, _: m.lookup([" the"], "values").top(2)),
    "related": ((DOWN, (3, 7)), lambda m, _: m.related(2)),
    "nearest": ((UP, (3, 7)), lambda m, _: m.nearest("L0N1.key", 2)),
    "calibrated": ((UP, (3, 7)), lambda m, _: m.view("raw", calibrated=True)["L0N1.key"].top(2)),
    "align": ((UP, (3, 7)), lambda m, s: lx.align(s, m)),
    "align, embedding": ((UNEMBED, (3, 7)), lambda m, s: lx.align(s, m)),
    "diff": ((DOWN, (3, 7)), lambda m, s: lx.diff(s, m)),
    "diff, embedding": ((EMBED, (3, 7)), lambda m, s: lx.diff(s, m)),
    "diff, norm": ((NORM, (7,)), lambda m, s: lx.diff(s, m)),
    "trace": ((NORM, (7,)), lambda m, _: m.trace(PROMPT)),
    "trace, embedding": ((EMBED, (3, 7)), lambda m, _: m.trace(PROMPT)),
    "study": ((UNEMBED, (3, 7)), lambda m, _: find("keep-k")(m)),
    "study of prompts": ((DOWN, (3, 7)), lambda m, _: find("sim-k")(m)),
}


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_tensor_and_the_place_are_named(
    question: str, value: float, sound: Path, damage: Callable[..., Path]
) -> None:
    (name, place), ask = QUESTIONS[question]
    model = lx.Model.from_pretrained(damage(name, *place, value=value))
    with pytest.raises(LexrayError) as caught:
        ask(model, lx.Model.from_pretrained(sound))
    told = str(caught.value)
    assert f"the tensor {name} of" in told
    assert f"the first at [{', '.join(map(str, place))}]" in told
    assert ("1 NaN and 0" if math.isnan(value) else "0 NaN and 1") in told


@pytest.mark.parametrize("command", ["heads", "contributions"])
def test_on_the_command_line(command: str, damage: Callable[..., Path]) -> None:
    more = {"heads": ["-k", 2], "contributions": [PROMPT]}[command]
    ran = lexray(command, damage(QUERY, 9, 2), *more)
    assert ran.code == 2
    assert f"the tensor {QUERY} of" in ran.err
    assert "NaN" not in ran.out


def test_what_is_not_read_does_not_matter(damage: Callable[..., Path]) -> None:
    model = lx.Model.from_pretrained(damage(DOWN, 3, 7)).view("raw")
    assert len(model["L1N6.value"].top(3).top) == 3
    assert len(model["L0H0"].vo.top(3)) == 3


def test_small_floats_and_empty_tensors() -> None:
    eight = torch.tensor([1.0, math.nan]).to(torch.float8_e4m3fn)
    assert not all_finite(eight)
    with pytest.raises(LexrayError, match=r"x has 1 NaN .* out of 2, the first at \[1\]"):
        require_finite("x", eight)
    for fine in (torch.zeros(0, 3), torch.tensor([7]), torch.tensor(65504.0, dtype=torch.half)):
        require_finite("x", fine)
    with pytest.raises(LexrayError, match=r"the first at \[12, 1\]"):
        require_finite("x", torch.tensor([[0.0, 0.0], [0.0, -math.inf]]), [11])


# ---------------------------------------------------------------------- forward passes


def test_a_live_model_is_looked_at_when_its_pass_breaks() -> None:
    module = deepcopy(build("llama"))
    with torch.no_grad():
        module.get_parameter(DOWN)[3, 7] = math.nan
    model = lx.Model.from_module(module)
    with pytest.raises(LexrayError, match=rf"the tensor {DOWN} of .* first at \[3, 7\]"):
        model.trace([1, 2, 3])


def test_a_pass_that_overflows_says_what_to_try() -> None:
    module = deepcopy(build("llama"))
    with torch.no_grad():
        for layer in module.model.layers:
            layer.mlp.down_proj.weight *= 1e37
            layer.mlp.up_proj.weight *= 1e37
    with pytest.raises(LexrayError, match=r"leaves the range of torch.float32: .*dtype"):
        lx.Model.from_module(module).trace([1, 2, 3])


@pytest.mark.parametrize("shape", [(40,), (5, 8), (8, 5), (2, 4, 5), (1, 40), (40, 1)])
@pytest.mark.parametrize("turned", [False, True])
def test_large_tensors_are_looked_at_block_by_block(
    shape: tuple[int, ...], turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "AT_ONCE", 7)
    for at in range(40):
        X = torch.zeros(shape)
        assert all_finite(X.mT if turned and X.ndim > 1 else X)
        X.view(-1)[at] = math.inf
        assert not all_finite(X.mT if turned and X.ndim > 1 else X)
