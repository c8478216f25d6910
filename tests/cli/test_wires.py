"""`lexray wires` and `lexray path`, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import lexray


@pytest.mark.slow
def test_wires(tmp_path: Path) -> None:
    ran = lexray("wires", "demo", "--from", "L0N5", "--top", 3)
    assert (ran.code, ran.err) == (0, "")
    assert "What reads L0N5" in ran.out
    data = lexray("wires", "demo", "--to", "L3H1", "--via", "K", "-n", 4, "--format", "json").json
    assert {link["reader"] for link in data["links"]} == {"L3H1.K"}
    picture = tmp_path / "heads.svg"
    ran = lexray("wires", "demo", "--heads", "--via", "Q", "-n", 3, "--plot", picture)
    assert ran.code == 0
    assert "L1H" in ran.out
    assert "<svg" in picture.read_text(encoding="utf-8")
    assert lexray("wires", "demo", "--heads", "--from", "L0N5").code == 2
    assert "neither a head nor a neuron" in lexray("wires", "demo", "--from", "L0").err


def test_path() -> None:
    data = lexray("path", "demo", "L0H1", "L2H2.K", " film", "--format", "json").json
    assert [step["address"] for step in data["steps"]] == ["L0H1", "L2H2.K"]
    assert data["token"] == "·film"
    assert lexray("path", "demo", "L0H1").code == 2
