"""What a model is, counted independently and without reading a weight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from lexray.model.info import Info, info
from lexray.model.model import Model
from tests.families.zoo import VARIANTS, build
from tests.saved import save


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name in ("llama", "gpt2", "qwen2-moe"):
        save(name, root / name)
    return root


def described(folder: Path) -> Info:
    return info(Model.from_pretrained(folder).view("raw"))


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2-moe"])
def test_counts_are_those_of_the_file(folders: Path, name: str) -> None:
    found = described(folders / name)
    with safe_open(folders / name / "model.safetensors", "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert found.n_tensors == len(tensors)
    assert found.n_parameters == sum(t.numel() for t in tensors.values())
    assert found.n_parameters == build(name).num_parameters()
    assert found.bytes == sum(t.nbytes for t in tensors.values())
    for place in found.parameters:
        names = [key for key in tensors if matches(key, place["tensor"])]
        assert len(names) == place["count"], place
        assert {tuple(tensors[key].shape) for key in names} == {tuple(place["shape"])}
        assert place["dtype"] == "float32"


def matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(
        a == b or (b in ("{n}", "{e}", "{i}") and a.isdigit())
        for a, b in zip(parts, wanted, strict=True)
    )


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_tensor_has_its_place(variant: Any) -> None:
    model = Model.from_module(build(variant.name)).view("raw")
    places = [place["tensor"] for place in info(model).parameters]
    module, tied = build(variant.name), model.architecture.tied
    for name, parameter in module.named_parameters(remove_duplicate=tied):
        if variant.name == "bert-untied" and name == "cls.predictions.bias":
            continue  # its decoder has a bias of its own then
        every = module.named_parameters(remove_duplicate=False)
        names = [name, *(other for other, p in every if p is parameter and tied)]
        alike = [p for p in places if any(matches(name, p) for name in names)]
        assert len(set(alike)) == 1, f"{name} {tuple(parameter.shape)}: {alike}"


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_no_weight_is_read(folders: Path, name: str) -> None:
    model = Model.from_pretrained(folders / name).view("raw")
    found = info(model)
    assert str(found)
    assert found.to_html()
    raw = (folders / name / "model.safetensors").read_bytes()
    assert model.checkpoint.bytes_read <= 8 + int.from_bytes(raw[:8], "little")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_head_costs_what_it_says(folders: Path, name: str) -> None:
    model = Model.from_pretrained(folders / name).view("raw")
    said = info(model).head
    assert said["address"] == "L0H0"
    head = model["L0H0"]
    before = model.checkpoint.bytes_read
    parts = {"E": model.W_U, **{w: getattr(head, w) for w in ("W_Q", "W_K", "W_V", "W_O")}}
    assert model.checkpoint.bytes_read - before == said["bytes"]
    for read in said["reads"]:
        part: torch.Tensor = parts[read["parameter"]]
        assert read["bytes"] == part.numel() * part.itemsize
        assert sorted(read["shape"]) == sorted(part.shape)


def test_sizes(folders: Path) -> None:
    assert described(folders / "llama").sizes == {
        "layers": 2,
        "heads": 4,
        "key-value heads": 2,
        "d_model": 24,
        "d_head": 6,
        "d_mlp": 20,
        "experts": None,
        "d_vocab": 37,
        "tokens": 37,
        "context": 64,
    }
    assert described(folders / "qwen2-moe").sizes["experts"] == 5


TRAITS: dict[str, dict[str, str]] = {
    "gpt2": {
        "embeddings": "tied",
        "positions": "learned",
        "blocks": "sequential",
        "norms": "LayerNorm before each sub-block",
        "feed-forward": "gelu_new",
    },
    "llama": {
        "embeddings": "untied",
        "positions": "rotary, 6 of 6 dimensions as halves",
        "norms": "RMSNorm before each sub-block",
        "feed-forward": "gated silu",
    },
    "neox": {"blocks": "parallel", "positions": "rotary, 2 of 8 dimensions as halves"},
    "gptj": {"positions": "rotary, 6 of 8 dimensions as adjacent pairs", "blocks": "parallel"},
    "bloom": {"positions": "ALiBi"},
    "bert": {"norms": "LayerNorm after each sub-block", "attention": "sees both ways"},
    "gemma2": {
        "norms": "RMSNorm before and on the output of each sub-block",
        "windows": "3 in 1 of 2 layers",
    },
    "olmo2": {"norms": "RMSNorm on the output of each sub-block", "queries and keys": "normed"},
    "smollm3": {"positions": "rotary, 6 of 6 dimensions as halves, in 3 of 4 layers"},
}


@pytest.mark.parametrize("name", TRAITS)
def test_traits(name: str) -> None:
    found = info(Model.from_module(build(name)).view("raw")).traits
    assert {key: found.get(key) for key in TRAITS[name]} == TRAITS[name]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_family_can_be_described(variant: Any) -> None:
    found = info(Model.from_module(build(variant.name)).view("raw"))
    assert json.loads(found.to_json())["model_type"] == variant.model_type
    assert found.family in str(found)
    assert found.to_csv()
    assert 0 < found.head["bytes"] < found.bytes


def test_half_precision_halves_the_bytes(folders: Path, tmp_path: Path) -> None:
    save("llama", tmp_path, dtype=torch.bfloat16, n_tokens=31)
    half, whole = described(tmp_path), described(folders / "llama")
    assert half.bytes * 2 == whole.bytes
    assert half.head["bytes"] * 2 == whole.head["bytes"]
    assert {p["dtype"] for p in half.parameters} == {"bfloat16"}
    assert (half.sizes["tokens"], half.sizes["d_vocab"]) == (31, 37)
