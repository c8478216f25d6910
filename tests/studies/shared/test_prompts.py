"""Prompt files, our own prompts, and whether a model answers rightly."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

import pytest
import torch

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.studies.shared.prompts import (
    Prompt,
    answers_rightly,
    next_token,
    own_prompts,
    read_prompts,
)
from tests.cli.running import save_tiny
from tests.families.span import STAND_INS
from tests.families.zoo import build, find
from tests.vocabulary.vocabularies import worded


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
        ("a.jsonl", b'{"prompt": "x"}\n{', "line 2: this is not JSON"),
        ("a.jsonl", b'{"text": "x"}', "line 1 has no text under 'prompt'"),
        ("a.jsonl", b"[1]", "line 1 has no text"),
        ("a.jsonl", b'{"prompt": " "}', "line 1 has no text"),
        ("a.jsonl", b'{"prompt": "x", "answer": 3}', "not 3"),
        ("a.txt", b"\n \n", "no prompts"),
        ("a.txt", b"\xff\xfe\x81", "cannot be read as UTF-8"),
        ("a.txt.gz", b"plain", "cannot be read"),
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


CAUSAL = [n for n in STAND_INS if not find(n).masked and n != "gemma3-both-ways"]


@cache
def model(name: str) -> Model:
    return worded(name)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_next_token_is_transformers_own(name: str) -> None:
    ids = [3, 14, 1, 5, 9]
    with torch.no_grad():
        logits = build(name)(torch.tensor([ids])).logits[0, -1]
    assert next_token(model(name), ids) == int(logits.argmax())


def test_the_first_token_of_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the space between prompt and answer, whichever of the two has it."""
    path = save_tiny(tmp_path / "gpt2", "gpt2")
    tiny = Model.from_pretrained(path).view("raw")
    cat, bare = tiny.vocabulary.id(" cat"), tiny.vocabulary.encode("cat")[0]
    assert cat != bare
    for said, prompt, answer, right in (
        (cat, "the", "cat", True),
        (cat, "the", " cat", True),
        (cat, "the", "cat and the dog", True),
        (cat, "the", "dog", False),
        (bare, "the", "cat", False),
        (bare, "the\n", "cat", True),
    ):
        monkeypatch.setattr("lexray.studies.shared.prompts.next_token", lambda *_, said=said: said)
        tiny = Model.from_pretrained(path).view("raw")  # which has predicted nothing yet
        assert answers_rightly(tiny, Prompt(prompt, answer)) is right, (prompt, answer)


def test_what_cannot_answer() -> None:
    with pytest.raises(LexrayError, match="reads in both directions"):
        answers_rightly(model("bert"), Prompt("city", "law"))
    with pytest.raises(LexrayError, match="has no answer"):
        answers_rightly(model("gpt2"), Prompt("city"))
