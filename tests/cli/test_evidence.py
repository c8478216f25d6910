"""`lexray evidence`, and `--raw` and `--text` of the commands that read a pass."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lexray.model.model import Model
from tests.cli.running import TEXT, answer, lexray, mistake

PROMPT = "the cat and the dog"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT * 6, encoding="utf-8")
    return path


@pytest.mark.parametrize("address", ["L1N3", "L1H0", "L1H0.QK", "L1H0.V2"])
def test_evidence_is_the_librarys(address: str, llama: Path, text: Path) -> None:
    found = answer("evidence", llama, address, "--text", text, "-n", 3)
    model = Model.from_pretrained(llama, dtype=torch.float32)
    expected = model.evidence(address, text.read_text(encoding="utf-8"), 3)
    assert found == expected.to_dict()
    assert len(found["snippets"]) == 3
    assert found["text"] == "the text that was given"


def test_evidence_as_a_table(llama: Path) -> None:
    ran = lexray("evidence", llama, "L1N3.value", "-n", 2)
    assert (ran.code, ran.err) == (0, "")
    assert "Where L1N3.value is strongest" in ran.out
    assert "value writes" in ran.out


def test_what_has_no_evidence(llama: Path) -> None:
    assert "no evidence of L1" in mistake("evidence", llama, "L1")
    assert "feature" in mistake("evidence", llama, "L1F3")


@pytest.mark.slow
def test_words_by_probability_and_by_a_text_of_the_users(llama: Path, text: Path) -> None:
    raw, own, given = (
        answer("lens", llama, PROMPT, "--positions", "-1", *options)
        for options in (("--raw",), (), ("--text", text))
    )
    assert {line["how"] for line in raw["lines"]} == {"as it is"}
    assert raw["reading"] == "raw"
    assert [line["how"] for line in own["lines"]] == ["standardised", "standardised", "as it is"]
    scores = [found["lines"][1]["cells"][0]["top"][0]["score"] for found in (own, given)]
    assert scores[0] != scores[1]
    assert "the text that was given" in given["note"]
    assert "leave --text out" in mistake("lens", llama, PROMPT, "--raw", "--text", text)
