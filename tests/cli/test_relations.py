"""`lexray relations`, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import lexray


@pytest.mark.slow
def test_heads() -> None:
    ran = lexray("relations", "demo", "comparative", "man→men,woman→women,child→children", "-n", 2)
    assert (ran.code, ran.err) == (0, "")
    assert "comparative" in ran.out
    assert "standard" in ran.out
    data = lexray("relations", "demo", "comparative", "--format", "json", "--raw").json
    assert data["reading"] == "raw"
    assert len(data["relations"]["comparative"]["best"]) == 10


@pytest.mark.slow
def test_neurons() -> None:
    data = lexray("relations", "demo", "pronoun", "--neurons", "--format", "json").json
    best = data["scores"][0]
    assert best["relation"] == "pronoun"
    assert best["score"] == min(best["reads"], best["writes"])
    assert best["address"].startswith("L")


def test_a_picture_and_mistakes(tmp_path: Path) -> None:
    picture = tmp_path / "heads.svg"
    assert lexray("relations", "demo", "past", "--plot", picture).code == 0
    assert "<svg" in picture.read_text(encoding="utf-8")
    ran = lexray("relations", "demo", "capitals")
    assert ran.code == 2
    assert "there is no relation 'capitals'" in ran.err
    assert lexray("relations", "demo", "past", "--neurons", "--plot", picture).code == 2
    assert lexray("relations", "demo", "past", "-o", tmp_path / "no" / "a.csv").code == 2
