"""An unknown type: the family whose rules fit its tensors best is named, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexray.errors import LexrayError
from lexray.families import Architecture
from lexray.families.resemble import explain, find_nearest
from lexray.model.model import Model
from tests.families.zoo import build

BUILT_ALIKE = {"gpt2", "olmo2", "deepseek-v3", "mixtral", "qwen3", "gemma2", "falcon-new", "bert"}
BUILT_ALIKE |= {"qwen3-next", "jamba", "nemotron-h", "lfm2", "falcon-h1", "mistral4"}


def attention_tensors(a: Architecture) -> list[tuple[str, ...]]:
    """Which tensors are queries, keys, values and outputs, block by block."""
    parts = (b.attention for b in a.blocks)
    return [(p.q.linear.weight, p.k.linear.weight, p.v.linear.weight, p.o.weight) for p in parts]


@pytest.mark.parametrize("name", sorted(BUILT_ALIKE))
def test_a_renamed_model_is_known_again(name: str) -> None:
    """Its own rules, or those of a family that names and lays out the same tensors, fit best."""
    module = build(name)
    config = module.config.to_dict() | {"model_type": "brand_new"}
    names = list(module.state_dict())
    nearest = find_nearest(config, names)
    assert nearest is not None
    described = nearest.family.architecture(config, names)
    assert attention_tensors(described) == attention_tensors(Model.from_module(module).architecture)
    assert nearest.share > 0.9
    assert not nearest.missing


def test_the_error_says_how_to_go_on(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "brand_new"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LexrayError) as error:
        Model.from_pretrained(tmp_path)
    said = str(error.value)
    assert "unknown model type 'brand_new'" in said
    assert "It resembles " in said
    assert " of its 21 tensors" in said
    family = said.rpartition("Try family='")[2].partition("'")[0]
    assert Model.from_pretrained(tmp_path, family=family).n_layers == 2


@pytest.mark.slow
def test_what_is_missing_and_left_is_named() -> None:
    module = build("llama")
    names = [n for n in module.state_dict() if "1.mlp.up" not in n] + ["model.odd.weight"]
    nearest = find_nearest(module.config.to_dict() | {"model_type": "odd"}, names)
    assert nearest is not None
    assert "miss 1 (model.layers.1.mlp.up_proj.weight)" in str(nearest)
    assert "leave 1 (model.odd.weight)" in str(nearest)


def test_nothing_is_near() -> None:
    assert explain({"model_type": "odd"}, ["a.weight", "b.weight"]) == ""
    assert explain({"model_type": "odd"}, []) == ""


def test_what_is_near_is_said_before_the_long_list(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    rename(tmp_path, "brand_new")
    with pytest.raises(LexrayError, match=r"'brand_new'\. It resembles .*Try family=.*; known: af"):
        Model.from_pretrained(tmp_path)


def test_what_a_family_leaves_out_is_not_run_without(tmp_path: Path) -> None:
    """Read by Qwen3's relative without norms of queries and keys, which take part in its passes."""
    build("qwen3").save_pretrained(tmp_path)
    rename(tmp_path, "brand_new")
    model = Model.from_pretrained(tmp_path, family="llama")
    assert model["L0H1"].W_Q.shape == (24, 10)
    with pytest.raises(LexrayError, match=r"no place for model\.layers\.0\.self_attn\.k_norm"):
        model.trace([5, 11, 3])


def test_what_is_refused_by_name_is_not_said_to_resemble(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    rename(tmp_path, "diffllama")
    with pytest.raises(LexrayError, match="difference of two softmaxes") as error:
        Model.from_pretrained(tmp_path)
    assert "resembles" not in str(error.value)


def rename(folder: Path, model_type: str) -> None:
    """The checkpoint there, said to be of another type."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": model_type}))
