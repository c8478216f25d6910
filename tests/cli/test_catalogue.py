"""`lexray describe` and `lexray catalogue`, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import lexray


@pytest.mark.slow
def test_describe() -> None:
    ran = lexray("describe", "demo", "L2H1", "--static")
    assert (ran.code, ran.err) == (0, "")
    assert "L2H1: roles from weights" in ran.out
    assert "What reads L2H1" in ran.out
    assert lexray("describe", "demo", "L2N7", "--format", "json").json["address"] == "L2N7"
    assert lexray("describe", "demo", "L2").code == 2


@pytest.mark.slow
def test_catalogue(tmp_path: Path) -> None:
    page = tmp_path / "heads.html"
    assert lexray("catalogue", "demo", "-o", page).code == 0
    assert "L3H4" in page.read_text(encoding="utf-8")
    pytest.importorskip("pyarrow")
    table = tmp_path / "heads.parquet"
    assert lexray("catalogue", "demo", "--static", "-o", table).code == 0
    assert table.stat().st_size > 1000
