"""A pass from a file is the pass that was written, and so is a model in another process."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lexray as lx
from lexray import edits
from lexray.trace.keep import ABOUT
from tests.families.test_pairs import worded_pair
from tests.families.zoo import build, find, make

MODEL = lx.Model.from_pretrained("demo")


@pytest.mark.slow
def test_a_pass_comes_back(tmp_path: Path) -> None:
    trace = MODEL.trace("This film was a", new_tokens=2, layers=[1, 3], positions=[-1, 2])
    path = trace.save(tmp_path / "film.safetensors")
    again = lx.Trace.load(path)
    assert repr(again) == repr(trace)
    assert again.parts.keys() == trace.parts.keys()
    for key, part in trace.parts.items():
        torch.testing.assert_close(again.parts[key], part, rtol=0, atol=0)
    assert again.lens(layers=[1]) == trace.lens(layers=[1])


@pytest.mark.slow
def test_all_that_can_be_asked_of_it(tmp_path: Path) -> None:
    trace = MODEL.trace("This film was a", edits=["ablate L1H2"])
    again = lx.Trace.load(trace.save(tmp_path / "film.safetensors"), MODEL)
    assert again.contributions(" good") == trace.contributions(" good")
    assert again.flow(layers=[2]) == trace.flow(layers=[2])
    assert again.effect("ablate L2H3", " good") == trace.effect("ablate L2H3", " good")


@pytest.mark.parametrize("name", ["mixtral", "bert", "gemma2"])
def test_other_families(name: str, tmp_path: Path) -> None:
    model = lx.Model.from_module(build(name))
    trace = model.trace([3, 5, 8])
    path = trace.save(tmp_path / "x.safetensors")
    again = lx.Trace.load(path, model)
    assert again.lens().to_dict() == trace.lens().to_dict()
    with pytest.raises(lx.LexrayError, match="from where its model"):
        lx.Trace.load(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "bart", "t5gemma", "t5gemma2"])
def test_both_stacks_of_a_pair(name: str, tmp_path: Path) -> None:
    model, path = worded_pair(name), tmp_path / "x.safetensors"
    changes = ["ablate L1X1", "ablate enc.L0H1"]
    trace = model.trace([5, 11, 3, 29], target=[14, 9], edits=changes)
    again = lx.Trace.load(trace.save(path), model)
    for ours, theirs in ((again, trace), (again.encoder, trace.encoder)):
        assert list(ours.parts) == list(theirs.parts)
        assert all(torch.equal(x, theirs.parts[key]) for key, x in ours.parts.items())
        assert (ours.edits, ours.positions) == (theirs.edits, theirs.positions)
        assert ours.lens().to_dict() == theirs.lens().to_dict()
    parts = zip(again.contributions(9), trace.contributions(9), strict=True)
    assert all(one.contribution == pytest.approx(two.contribution, abs=1e-5) for one, two in parts)
    effects = [run.effect("ablate enc.L1H0", 9).change for run in (again, trace)]
    assert effects[0] == pytest.approx(effects[1], abs=1e-5)
    some = model.trace([5, 11, 3, 29], target=[14, 9], positions=[-1, 1], layers=[1])
    assert lx.Trace.load(some.save(path), model).positions == (1, 2)
    trace.save(path)
    with pytest.raises(lx.LexrayError, match="trace of a source and a target"):
        lx.Trace.load(path, MODEL)
    tensors = load_file(path)
    for key in ("source/0/z", "1/cross_k"):
        save_file(tensors | {key: torch.zeros(9, 9)}, path)
        with pytest.raises(lx.LexrayError, match="has the shape"):
            lx.Trace.load(path, model)
    alone = model.encoder.trace([5, 11, 3])
    for given in (model, model.encoder):
        found = lx.Trace.load(alone.save(path), given)
        assert found.model.decoder is not None
        assert found.lens().to_dict() == alone.lens().to_dict()
    with pytest.raises(lx.LexrayError, match="no encoder beside it"):
        lx.Trace.load(path, MODEL)


def test_what_cannot_be_kept_or_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    vector = torch.randn(MODEL.d_model)
    with pytest.raises(lx.LexrayError, match="cannot be kept as text"):
        MODEL.trace("This film", edits=[edits.add("L2", vector)]).save(path)
    assert not path.exists()
    MODEL.trace("This film", what="residual").save(path)
    with pytest.raises(lx.LexrayError, match="open the model that made it"):
        lx.Trace.load(path, lx.Model.from_pretrained("demo-wide"))
    tensors = load_file(path)
    for spoil, said in (
        ({"2/mlp_write": torch.zeros(7, 9)}, "has the shape"),
        ({"x": torch.zeros(2, 2)}, "does not hold the parts"),
        ({ABOUT: torch.zeros(4)}, "no trace"),
        ({ABOUT: torch.zeros(4, dtype=torch.uint8)}, "JSON"),
    ):
        save_file(tensors | spoil, path)
        with pytest.raises(lx.LexrayError, match=said):
            lx.Trace.load(path)
    save_file({"w": torch.zeros(3)}, path)
    with pytest.raises(lx.LexrayError, match="no trace"):
        lx.Trace.load(path)


@pytest.mark.slow
def test_models_and_passes_pickle() -> None:
    model = MODEL.view("raw", folded=True)
    again = pickle.loads(pickle.dumps(model))
    assert again.options == model.options
    assert again["L2H1"].vo.top(3) == model["L2H1"].vo.top(3)
    assert len(pickle.dumps(model)) < 2000, "where it is, not what is in it"
    live = lx.Model.from_module(make(find("llama")))
    other = pickle.loads(pickle.dumps(live))
    assert other["L1N3"].top(3).to_dict() == live["L1N3"].top(3).to_dict()
    trace = pickle.loads(pickle.dumps(MODEL.trace("This film")))
    assert trace.lens() == MODEL.trace("This film").lens()
    with pytest.raises(lx.LexrayError, match="cannot be pickled"):
        pickle.dumps(model.edited(["scale L2H1 by 0"]))


def test_dtype_by_name() -> None:
    model = lx.Model.from_pretrained("demo", dtype="bf16")
    assert model["L2H1"].W_V.dtype == torch.bfloat16
    with pytest.raises(lx.LexrayError, match="no type of weights"):
        lx.Model.from_pretrained("demo", dtype="int8")
