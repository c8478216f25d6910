"""Prompt files, our own prompts, and whether a model answers rightly."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest
import torch

from lexray.errors import LexrayError
from lexray.model import Model
from lexray.studies.prompts import Prompt, answers_rightly, own_prompts, read_prompts
from tests.families.zoo import VARIANTS, build
from tests.vocabularies import worded


def test_our_own() -> None:
    prompts = read_prompts(None)
    assert prompts == own_prompts()
    assert sum(p.answer is not None for p in prompts) >= 60
    assert sum(p.answer is None for p in prompts) >= 5
    assert len({p.text for p in prompts}) == len(prompts)
    assert all(p.text == p.text.strip() for p in prompts)


def test_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\ufeffOne two \n\n  \nThree\r\n", encoding="utf-8")
    assert read_prompts(path) == [Prompt("One two"), Prompt("Three")]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".JSONL"])
def test_lines_of_json(tmp_path: Path, ending: str) -> None:
    rows = [
        {"prompt": "A\u2028 b", "answer": " c"},
        {"prompt": "D", "attribute": "E", "subject": "x"},
        {"prompt": "F", "answer": None},
        {"prompt": "G", "answer": " "},
    ]
    data = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()
    path = tmp_path / f"a{ending}"
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    expected = [Prompt("A\u2028 b", " c"), Prompt("D", "E"), Prompt("F"), Prompt("G")]
    assert read_prompts(path) == expected


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.jsonl", b'{"prompt": "x"}\n{', "line 2 is no JSON"),
        ("a.jsonl", b'{"text": "x"}', "line 1 has no text under 'prompt'"),
        ("a.jsonl", b"[1]", "line 1 has no text"),
        ("a.jsonl", b'{"prompt": " "}', "line 1 has no text"),
        ("a.jsonl", b'{"prompt": "x", "answer": 3}', "not 3"),
        ("a.txt", b"\n \n", "no prompts"),
        ("a.txt", b"\xff\xfe\x81", "not UTF-8"),
        ("a.txt.gz", b"plain", "cannot read"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, name: str, data: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(LexrayError, match=told):
        read_prompts(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match="No such file"):
        read_prompts(tmp_path / "a.txt")
    with pytest.raises(LexrayError, match="directory"):
        read_prompts(tmp_path)


CAUSAL = [variant.name for variant in VARIANTS if not variant.masked]


@cache
def model(name: str) -> Model:
    return worded(name)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_right_answer_is_the_most_probable_token(name: str) -> None:
    """Exactly one of all tokens is right, and it is transformers' own argmax."""
    vocabulary = model(name).vocabulary
    ids = vocabulary.encode("city", special=True)
    with torch.no_grad():
        best = int(build(name)(torch.tensor([ids])).logits[0, -1].argmax())
    words = {vocabulary.encode(f" {letter}")[0]: letter for letter in ("law", "LAW", "walk", "z")}
    right = [i for i, word in words.items() if answers_rightly(model(name), Prompt("city", word))]
    assert right == [i for i in words if i == best]


def test_a_model_that_is_made_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    law = model("gpt2").vocabulary.encode(" law")[0]
    monkeypatch.setattr("lexray.studies.prompts.next_token", lambda *_: law)
    assert answers_rightly(model("gpt2"), Prompt("city", "law"))
    assert answers_rightly(model("gpt2"), Prompt("city", " law"))
    assert not answers_rightly(model("gpt2"), Prompt("city", "walk"))


def test_what_cannot_answer() -> None:
    with pytest.raises(LexrayError, match="is an encoder"):
        answers_rightly(model("bert"), Prompt("city", "law"))
    with pytest.raises(LexrayError, match="has no answer"):
        answers_rightly(model("gpt2"), Prompt("city"))
