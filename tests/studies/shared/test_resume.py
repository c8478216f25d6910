"""Interrupted runs go on where they were, and give what a whole run gives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Done, each_prompt, fingerprint, keep_in
from lexray.studies.shared.study import PromptOptions
from tests.families.zoo import GPT2, VARIANTS, Variant, make
from tests.vocabulary.vocabularies import vocabulary, worded

MODEL = worded("gpt2")
WORDS = [f"law {letter}" for letter in "abcdefg"]


@pytest.fixture
def options(tmp_path: Path) -> PromptOptions:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS))
    return PromptOptions(prompts=path)


class Counting:
    """Computes something about a prompt; stops at the m-th."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop, self.seen = stop, list[str]()

    def __call__(self, prompt: Prompt) -> dict[str, Any]:
        if len(self.seen) == self.stop:
            raise KeyboardInterrupt
        self.seen.append(prompt.text)
        return {"third": len(self.seen) / 3, "of": [1, (2.5, None)], "text": prompt.text}


def ran(options: PromptOptions, compute: Counting, place: Path | None) -> list[Done]:
    with keep_in(place):
        return each_prompt("test", MODEL, options, compute)


@pytest.mark.parametrize("m", [0, 1, 3, 6])
def test_interrupted_after_m_prompts(m: int, options: PromptOptions, tmp_path: Path) -> None:
    place = tmp_path / "out.prompts.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ran(options, Counting(m), place)
    first = len(place.read_text().splitlines()) if place.exists() else 0
    assert first == m
    rest = Counting()
    rest.seen = WORDS[:m].copy()
    resumed = ran(options, rest, place)
    assert rest.seen == WORDS, "the rest, once each"
    assert resumed == ran(options, Counting(), None)
    assert [json.loads(line)["prompt"] for line in place.read_text().splitlines()] == WORDS


def test_a_finished_run_computes_nothing(options: PromptOptions, tmp_path: Path) -> None:
    place = tmp_path / "x.jsonl"
    whole = ran(options, Counting(), place)
    again = Counting()
    assert ran(options, again, place) == whole
    assert again.seen == []
    assert ran(replace(options, limit=2), again, place) == whole[:2]
    assert again.seen == []


def test_other_options_are_computed_anew(options: PromptOptions, tmp_path: Path) -> None:
    place = tmp_path / "x.jsonl"
    ran(options, Counting(), place)
    other = Counting()
    ran(replace(options, seed=1), other, place)
    assert other.seen == WORDS
    with keep_in(place):
        each_prompt("another study", MODEL, options, other)
        each_prompt("test", MODEL.view(folded=True), options, other)
    assert len(other.seen) == 3 * len(WORDS)
    assert len(place.read_text().splitlines()) == 4 * len(WORDS), "nothing is lost"


def test_other_weights_under_the_same_name() -> None:
    module = make(Variant("gpt2", "gpt2", GPT2))
    options = PromptOptions()

    def made() -> str:
        model = Model(ModuleCheckpoint(module), vocabulary=vocabulary()).view("raw")
        return fingerprint("test", model, options)

    before = made()
    assert made() == before
    with torch.no_grad():
        module.get_parameter("transformer.h.1.mlp.c_proj.weight").mul_(1.01)
    assert made() != before


@pytest.mark.parametrize("name", [variant.name for variant in VARIANTS])
def test_every_family_has_a_fingerprint(name: str) -> None:
    assert len(fingerprint("test", worded(name), PromptOptions())) == 16


@pytest.mark.parametrize("torn", [b'{"key": "ab', b'{"key": "abc", "prompt": "x", "numbers": {}}'])
def test_a_torn_last_line_is_cut_off(torn: bytes, options: PromptOptions, tmp_path: Path) -> None:
    place = tmp_path / "x.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ran(options, Counting(2), place)
    whole = place.read_bytes()
    place.write_bytes(whole + torn)
    rest = Counting()
    ran(options, rest, place)
    assert rest.seen == WORDS[2:]
    assert place.read_bytes().startswith(whole)
    assert all(json.loads(line)["key"] for line in place.read_text().splitlines())


@pytest.mark.parametrize(
    "data",
    [b"hello", b"hello\n", b'{"prompt": "x"}\n', b"[1]\n", b"\n", b'{"key":' + b"[" * 99_999],
)
def test_a_file_of_someone_else(data: bytes, options: PromptOptions, tmp_path: Path) -> None:
    place = tmp_path / "x.jsonl"
    place.write_bytes(data)
    with pytest.raises(LexrayError, match="was not written by"):
        ran(options, Counting(), place)
    assert place.read_bytes() == data


def test_a_place_that_cannot_be_written(options: PromptOptions, tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match="cannot write"):
        ran(options, Counting(), tmp_path / "no" / "x.jsonl")


def test_only_what_is_answered_rightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.jsonl"
    rows = [
        {"prompt": "a", "answer": "right"},
        {"prompt": "b", "answer": "wrong"},
        {"prompt": "c"},
        {"prompt": "d", "answer": "right"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    asked: list[str] = []

    def rightly(_: Model, prompt: Prompt) -> bool:
        asked.append(prompt.text)
        return prompt.answer == "right"

    monkeypatch.setattr("lexray.studies.shared.resume.answers_rightly", rightly)
    options, place = PromptOptions(prompts=path), tmp_path / "kept.jsonl"

    def texts(options: PromptOptions) -> str:
        return "".join(done.prompt.text for done in ran(options, Counting(), place))

    assert texts(options) == "acd"
    assert texts(options) == "acd"
    assert asked == ["a", "b", "d"], "and not asked again"
    assert texts(replace(options, right=False)) == "abcd"
    assert texts(replace(options, limit=2)) == "ac"
    monkeypatch.setattr("lexray.studies.shared.resume.answers_rightly", lambda *_: False)
    path.write_text(json.dumps(rows[1]))
    with pytest.raises(LexrayError, match="none of 1 prompts rightly"):
        texts(options)
