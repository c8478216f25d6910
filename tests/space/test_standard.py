"""The standard reading against dense float64: what the first block makes of a lone token, what is
usual for a kind, and which tokens are set aside."""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import lexray as lx
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.model import kept as keeping
from lexray.model.model import Model
from lexray.space import effective
from lexray.space.effective import effective_rows
from lexray.space.space import space_of
from lexray.space.untrained import far_end, is_untouched, untrained
from lexray.trace.record.lone import _one_block
from lexray.view import STANDARD
from tests.families.zoo import build
from tests.saved import save
from tests.vocabulary.vocabularies import vocabulary, worded


def standard(name: str, n: int = 37) -> Model:
    return Model(ModuleCheckpoint(build(name)), vocabulary=vocabulary(n))


def lone(module: PreTrainedModel, layer: int) -> Tensor:
    """transformers' own hidden state of every token alone, at the mean position if there is one."""
    module = deepcopy(module)
    for name, parameter in module.named_parameters():
        if name.rpartition(".")[0].endswith(("wpe", "embed_positions", "position_embeddings")):
            offset = 2 if name.startswith("roberta") or "embed_positions" in name else 0
            parameter.data[:] = parameter.data[offset:].mean(0)
    n = module.get_input_embeddings().weight.shape[0]
    out = module(torch.arange(n)[:, None], output_hidden_states=True)
    return out.hidden_states[layer][:, 0].detach().double()


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("gpt2", "layer"),
        ("llama", "rms"),
        ("gemma2", "rms"),
        ("gptj", "layer"),
        ("falcon-7b", "layer"),
        ("qwen2-moe", "rms"),
        ("opt-350m", None),
        ("bert", None),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_effective_rows_are_the_first_blocks_of_transformers(
    name: str, norm: str | None, first: bool
) -> None:
    model = standard(name)
    states = lone(build(name), 0 if first else 1)
    if norm == "layer":
        states = states - states.mean(1, keepdim=True)
    if norm is not None:
        states = states / (states.square().mean(1, keepdim=True) + 1e-5).sqrt()
    rows, note = effective_rows(model, first=first)
    assert rows is not None
    assert not note
    torch.testing.assert_close(rows.double(), states, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "opt-350m", "bert", "roberta", "granite"])
@pytest.mark.parametrize("layer", [0, 1])
def test_the_block_of_a_file_is_given_its_embedding_some_rows_at_a_time(
    name: str, layer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no whole embedding in full precision lies beside the one that is stored; a scaled
    embedding's scale is not rounded, and no row's neighbours or padding matter."""
    module = save(name, tmp_path, dtype=torch.bfloat16)
    exact = type(module).from_pretrained(tmp_path, dtype=torch.float32)
    monkeypatch.setattr("lexray.trace.record.lone.TOKENS_AT_ONCE", 7)
    found = Model.from_pretrained(tmp_path).lone_states(entering=layer == 0)
    torch.testing.assert_close(found.double(), lone(exact, layer), rtol=1e-4, atol=1e-4)


def test_the_block_of_a_file_holds_no_embedding(tmp_path: Path) -> None:
    """Neither the one it looks tokens up in nor the one that it never reaches: a number each."""
    save("llama", tmp_path, dtype=torch.bfloat16)
    first, module = _one_block(Model.from_pretrained(tmp_path))
    assert isinstance(module, PreTrainedModel)
    for embedding in (module.get_input_embeddings(), module.get_output_embeddings()):
        assert embedding.weight.shape == (37, first.d_model)
        assert embedding.weight.untyped_storage().nbytes() == 4


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", ["key", "value", "V"])
@pytest.mark.parametrize("layer", [0, 1])
def test_standard_scores_are_standardised_by_the_kind(name: str, kind: Any, layer: int) -> None:
    model = standard(name).view(trained=False)
    assert model.options.standardised
    space, folded = space_of(model, layer), model.view("raw", folded=True)
    writes = kind == "value"
    rows, _ = effective_rows(model, first=layer == 0)
    assert rows is not None
    columns = folded.W_U.T.double() if writes else rows.double()
    groups = [g.tensor.double() for g in folded.groups(kind)]
    own = [g.tensor.double() for g in folded.layers[0].groups(kind)]
    X = torch.cat(own if layer == 0 and not writes else groups)
    mean = X.mean(0) if kind == "key" else torch.zeros_like(X[0])
    spread = (X - mean).T @ (X - mean) / len(X)
    sigma = ((columns @ spread) * columns).sum(1).sqrt()
    vectors = folded.layers[layer].groups(kind)[0].tensor
    expected = (vectors.double() - mean) @ columns.T / sigma
    found = space.readings(vectors, kind, ["x"] * len(vectors), 5)
    for reading, scores in zip(found, expected, strict=True):
        assert [s.token.id for s in reading.top] == scores.argsort(descending=True)[:5].tolist()
        values = torch.tensor([s.score for s in reading.top]).double()
        torch.testing.assert_close(
            values, scores.sort(descending=True)[0][:5], rtol=1e-3, atol=1e-4
        )


def test_keys_gates_and_queries_see_and_expect() -> None:
    model = standard("llama")
    neuron = model["L1N3"].top(4)
    names = [reading.name for reading in neuron.readings]
    assert names == ["key", "key expects", "gate", "gate expects", "value"]
    assert neuron["gate expects"] == model["L1N3"].gate.expects(4)
    assert neuron["gate"].top == model["L1N3"].gate.sees(4).top == model["L1N3"].gate.top(4).top
    assert neuron["gate expects"].top == model.view(reading="output")["L1N3"].gate.top(4).top
    assert "L1N3.gate expects" in str(neuron)
    assert "L1N3.gate sees" in str(neuron)
    assert model["L1H0.Q2"].readings == ("sees", "expects")
    assert model["L1H0.K2"].readings == ("top",)
    assert model.view("raw")["L1N3"].key.readings == ("top",)
    with pytest.raises(LexrayError, match=r"L1N3.value writes: it does not see"):
        model["L1N3"].value.sees()


def test_a_model_that_cannot_be_run_is_read_through_its_input_embedding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("llama", tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise LexrayError("no such architecture here")

    monkeypatch.setattr(effective, "_norm_rows", refuse)
    reading = lx.Model.from_pretrained(tmp_path)["L1N3"].key.top(3)
    assert "no such architecture here" in " ".join(str(reading).split())
    assert reading.to_dict()["note"].startswith("no effective embedding")


def test_what_is_made_once_is_kept_by_the_models_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(keeping, "WORTH_KEEPING", 1)
    save("llama", tmp_path / "a")
    first = lx.Model.from_pretrained(tmp_path / "a")
    made = keeping.keep(first, "x", lambda: {"x": torch.arange(3)})
    again = keeping.keep(lx.Model.from_pretrained(tmp_path / "a"), "x", dict)
    assert torch.equal(made["x"], again["x"])
    module = deepcopy(save("llama", tmp_path / "b"))  # the zoo's own stays as it is
    module.model.layers[1].mlp.down_proj.weight.data[:, 0] += 1
    module.save_pretrained(tmp_path / "b")
    other = lx.Model.from_pretrained(tmp_path / "b")
    assert keeping.identity(other) != keeping.identity(first)
    assert keeping.keep(other, "x", dict) == {}


def test_a_file_that_is_written_again_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One number inside the first block is enough, wherever it is and whatever the file's time."""
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(keeping, "WORTH_KEEPING", 1)
    module, path = deepcopy(save("llama", tmp_path / "a")), tmp_path / "a" / "model.safetensors"
    before = lx.Model.from_pretrained(tmp_path / "a")
    rows, _ = effective_rows(before, first=False)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    module.model.layers[0].mlp.up_proj.weight.data[3, 5] += 3
    module.save_pretrained(tmp_path / "a")
    os.utime(path, ns=times)
    after = lx.Model.from_pretrained(tmp_path / "a")
    assert keeping.identity(after) != keeping.identity(before)
    found, _ = effective_rows(after, first=False)
    assert found is not None
    assert rows is not None
    assert not torch.equal(found, rows)
    assert len([*(tmp_path / "cache" / "models").iterdir()]) == 2


def test_a_later_layer_that_was_changed_in_place_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "WORTH_KEEPING", 1)
    module, path = deepcopy(save("llama", tmp_path)), tmp_path / "model.safetensors"
    first = keeping.identity(lx.Model.from_pretrained(tmp_path))
    assert keeping.identity(lx.Model.from_pretrained(tmp_path)) == first
    module.model.layers[1].self_attn.q_proj.weight.data[3, 5] += 3
    module.save_pretrained(tmp_path)
    later = path.stat().st_mtime_ns + 1
    os.utime(path, ns=(later, later))
    assert keeping.identity(lx.Model.from_pretrained(tmp_path)) != first


def test_live_modules_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path))
    monkeypatch.setattr(keeping, "WORTH_KEEPING", 1)
    assert effective_rows(standard("llama"), first=False)[0] is not None
    assert not [*tmp_path.iterdir()]


def test_rows_like_those_that_cannot_occur_are_untouched() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 32, generator=generator)
    planted = torch.tensor([3, 50, 51, 120, 199])
    rows[planted] = torch.randn(32, generator=generator) + 0.05 * torch.randn(
        5, 32, generator=generator
    )
    found = is_untouched(rows, torch.tensor([3, 50, 51]))
    assert found.nonzero()[:, 0].tolist() == planted.tolist()
    assert not is_untouched(rows, torch.tensor([4, 5, 6])).any(), "references that are not alike"
    assert not is_untouched(rows, torch.tensor([3])).any()


def test_tokens_pushed_out_along_the_mean_are_never_predicted() -> None:
    generator = torch.Generator().manual_seed(0)
    direction = torch.eye(16)[0]
    rarity = torch.linspace(1, 2, 500)[:, None]
    rows = rarity * direction + 0.3 * torch.randn(500, 16, generator=generator)
    rows[[400, 477]] += 8 * direction
    there = torch.ones(500, dtype=torch.bool)
    assert far_end(rows, there).nonzero()[:, 0].tolist() == [400, 477]
    assert not far_end(rows.flip(0), there).any(), "the far end is that of frequent tokens"


@pytest.mark.slow
def test_demo_sets_bytes_aside_and_keeps_words() -> None:
    model = lx.Model.from_pretrained("demo")
    aside = untrained(model)
    assert 100 < len(aside) < 250
    assert not {model.vocabulary.id(word) for word in (" the", " film", " bad", "ing")} & set(aside)
    listed = {s.token.id for reading in model.layers[3].values.top(20) for s in reading.top}
    assert not listed & set(aside)
    everything = model.view(trained=False).layers[3].values.top(20)
    assert {s.token.id for reading in everything for s in reading.top} & set(aside)
    assert model.options == STANDARD


def test_names_that_are_kept_for_later_are_set_aside() -> None:
    model = worded("llama", 34, ("[unused7]", "<|reserved_1|>", "unused"))
    assert {i: why for i, why in untrained(model).items() if why == "reserved"} == {
        34: "reserved",
        35: "reserved",
    }


def test_what_is_set_aside_is_named_and_counted() -> None:
    model = lx.Model.from_pretrained("demo")
    found = model.untrained("This film is a film.")
    assert len(found) == len(untrained(model)) == sum(found.counts.values())
    assert {token.id for token, _, _ in found.tokens} == set(untrained(model))
    assert all(count == 0 for _, _, count in found.tokens), "none occurs in plain English"
    assert found.to_dict()["tokens"][0]["token"].keys() == {"id", "text"}
    assert f"{len(found)} tokens that standard lists set aside" in str(found)


@pytest.mark.parametrize("entering", [True, False])
def test_a_module_that_is_there_is_used(entering: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No second copy of the embedding; the same states as from the first block alone."""
    alone = Model.from_pretrained("demo").lone_states(entering=entering)
    model = Model.from_pretrained("demo", dtype=torch.float32)
    model.module()
    path = "lexray.trace.record.lone.build_first_block"
    monkeypatch.setattr(path, lambda _: pytest.fail("loaded twice"))
    torch.testing.assert_close(model.lone_states(entering=entering), alone)
    half = model.lone_states(entering=entering, finish=lambda states: states.half())
    torch.testing.assert_close(half, alone.half())
