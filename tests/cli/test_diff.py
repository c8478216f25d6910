"""`lexray diff` as a user runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lexray.compare.diff import measure as diff_measure
from tests.cli.running import answer, lexray, mistake


@pytest.fixture(scope="module")
def tuned(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama with one neuron's value moved towards one token."""
    folder = tmp_path_factory.mktemp("tuned") / "llama"
    shutil.copytree(llama, folder)
    weights = load_file(folder / "model.safetensors")
    value = weights["model.layers.1.mlp.down_proj.weight"]
    value[:, 17] += 2 * weights["lm_head.weight"][100]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_the_planted_change(llama: Path, tuned: Path) -> None:
    found = answer("diff", llama, tuned, "-k", 4, "--raw")
    assert [change["address"] for change in found["changes"]] == ["L1N17.value"]
    change = found["changes"][0]
    assert change["group"] == "values"
    assert change["layer"] == 1
    assert change["top"][0]["token"]["id"] == 100
    assert len(change["bottom"]) == 4
    sizes = {(s["layer"], s["group"]): s for s in found["sizes"]}
    assert sizes[1, "values"]["moved"] == 1
    assert sizes[0, "values"]["absolute"] == 0
    assert found["notes"] == []


def test_options(llama: Path, tuned: Path) -> None:
    assert answer("diff", llama, tuned, "--among", "keys,Q", "--among", "VO")["changes"] == []
    found = answer("diff", llama, tuned, "--folded", "--ascii", "-n", 1, "--through", "tuned")
    assert found["view"]["folded"]
    assert found["filter"] == "ascii"
    assert found["through"] == "tuned"
    assert len(found["changes"]) == 1


@pytest.mark.parametrize("form", ["table", "csv", "html"])
def test_formats(llama: Path, tuned: Path, form: str) -> None:
    ran = lexray("diff", llama, tuned, "--format", form)
    assert ran.code == 0, ran.err
    assert "L1N17.value" in ran.out


def test_the_report(llama: Path, tuned: Path, tmp_path: Path) -> None:
    ran = lexray("diff", llama, tuned, "-o", tmp_path / "report.html")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "L1N17.value" in page


@pytest.mark.slow
def test_mistakes(llama: Path, gpt2: Path, tuned: Path, tmp_path: Path) -> None:
    assert "could be subtracted" in mistake("diff", llama, gpt2)
    assert "there are keys" in mistake("diff", llama, tuned, "--among", "nonsense")
    assert "does not exist" in mistake("diff", llama, tmp_path / "nowhere")
    assert "TUNED" in mistake("diff", llama)
    assert "cannot read the lexicon" in mistake("diff", llama, tuned, "--lexicon", "nothing.json")


def test_interrupted(
    llama: Path, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(diff_measure, "_measure_embedding", interrupt)
    ran = lexray("diff", llama, tuned, "-o", tmp_path / "report.html")
    assert ran.code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_missing_tensor(llama: Path, tmp_path: Path) -> None:
    """Without an unembedding the rest is compared; without a layer's tensor nothing is."""
    folder = tmp_path / "less"
    shutil.copytree(llama, folder)
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    weights["extra.weight"] = torch.ones(3, 24)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    found = answer("diff", llama, folder)
    assert "the tuned model has no unembedding: not compared" in found["notes"]
    assert {c["address"] for c in found["changes"]} == {f"extra.weight[{i}]" for i in range(3)}
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "the files are incomplete" in mistake("diff", llama, folder)
