"""`lexray stitch` on tiny models, by the door that a user takes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForTokenClassification

from lexray.compare.stitch import sweep as stitch_sweep
from lexray.compare.stitch.stitch import Stitched
from tests.cli.running import answer, lexray, mistake

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def tuned(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token classifier on top of the tiny GPT-2."""
    folder = tmp_path_factory.mktemp("tuned")
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(gpt2)
    config.id2label, config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    AutoModelForTokenClassification.from_pretrained(gpt2, config=config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((gpt2 / "tokenizer.json").read_bytes())
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "texts.jsonl.gz"
    lines = [
        json.dumps({"text": "the cat and the dog " * (1 + i), "label": i % 2 if i < 6 else "good"})
        for i in range(9)
    ]
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return path


def test_a_sweep(llama: Path, tuned: Path, data: Path) -> None:
    options = ("--last", 1, "--sweep", "--data", data, "--variants", "pinv,whitened+a_norm")
    found = answer("stitch", llama, tuned, *options, "--max-tokens", 20, "--batch", 2)
    assert [(p["variant"], p["after"]) for p in found["points"]] == [
        *(("pinv", i) for i in range(2)),
        *(("whitened+a_norm", i) for i in range(2)),
    ]
    assert found["n"] == 9
    assert found["max_tokens"] == 20
    assert len(found["unstitched"]) == 1
    for point in found["points"]:
        assert point["low"] <= point["accuracy"] == point["right"] / 9 <= point["high"]


def test_a_model_and_itself(tuned: Path, data: Path) -> None:
    found = answer("stitch", tuned, tuned, "--after", 0, "--last", 1, "--data", data)
    assert found["points"][0]["right"] == found["unstitched"][0]["right"]


def test_several_models_and_a_plot(llama: Path, tuned: Path, data: Path, tmp_path: Path) -> None:
    plot, page = tmp_path / "plot.html", tmp_path / "page.html"
    ran = lexray(
        *("stitch", llama, tuned, tuned, "--last", 1, "--sweep", "--data", data),
        *("--sample", 4, "--plot", plot, "-o", page),
    )
    assert ran.code == 0, ran.err
    assert "<svg" in plot.read_text()
    assert "4 texts of" in page.read_text()
    assert "(2) by itself" in page.read_text()
    assert sorted(tmp_path.iterdir()) == [page, plot]


def test_samples_are_seeded(data: Path) -> None:
    one, same, other = (stitch_sweep.read_examples(data, 4, seed) for seed in (0, 0, 3))
    assert one == same != other
    assert len(stitch_sweep.read_examples(data)) == 9


def test_saving(llama: Path, tuned: Path, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stitched"
    options = ("--after", 1, "--last", 1, "--variants", "pinv+match=scale", "--data", data)
    assert lexray("stitch", llama, tuned, *options, "--save", folder).code == 0
    stitched = Stitched.from_pretrained(folder)
    assert stitched(torch.tensor([[5, 7, 9]])).logits.shape == (1, 2)
    assert float(stitched.scale) != 1


def test_interrupted_it_leaves_nothing(
    llama: Path, tuned: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(stitch_sweep, "_hits", stop)
    options = ("--last", 1, "--sweep", "--data", data, "-o", tmp_path / "x.json")
    ran = lexray("stitch", llama, tuned, *options, "--plot", tmp_path / "x.html")
    assert ran.code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_mistakes(llama: Path, tuned: Path, data: Path, tmp_path: Path) -> None:
    base = ("stitch", llama, tuned, "--last", 1)
    assert "--sweep for all" in mistake(*base, "--data", data)
    assert "--sweep for all" in mistake(*base, "--data", data, "--sweep", "--after", 1)
    assert "--data FILE" in mistake(*base, "--sweep")
    assert "no layer 7" in mistake(*base, "--after", 7, "--data", data)
    assert "is no way to stitch" in mistake(
        *base, "--sweep", "--data", data, "--variants", "pinv+x"
    )
    assert "plots end in" in mistake(*base, "--sweep", "--data", data, "--plot", "x.txt")
    assert "there is no folder" in mistake(*base, "--sweep", "--data", data, "-o", "/no/x.json")
    assert "cannot be read" in mistake(*base, "--sweep", "--data", tmp_path / "none.jsonl")
    assert "has no classes" in mistake("stitch", tuned, llama, *base[3:], "--sweep", "--data", data)
    assert "one TUNED" in mistake(*base[:3], tuned, "--after", 1, "--save", tmp_path / "s")
    odd = tmp_path / "odd.jsonl"
    odd.write_text('{"text": "x", "label": 0}\n{"text": "y"}\n')
    assert "line 2: this should be" in mistake(*base, "--sweep", "--data", odd)
