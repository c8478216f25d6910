"""`lexray ground`: a folder with a page and tables, or a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import lexray


@pytest.mark.slow
def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    asked = ("ground", "demo", "--kinds", "key,QK", "--windows", "3")
    ran = lexray(*asked, "-o", folder)
    assert (ran.code, ran.out) == (0, "")
    names = {path.name for path in folder.iterdir()}
    assert names == {"index.html", "ground.json", "ground.csv", "ground.parts.jsonl"}
    data = json.loads((folder / "ground.json").read_text())
    assert {(g["kind"], g["question"]) for g in data["grounds"]} == {
        ("key", "sees"),
        ("key", "expects"),
        ("QK", "attends"),
    }
    page = (folder / "index.html").read_text()
    assert "Does a reading say what the parameter does?" in page
    assert "Is the default the winner?" in page
    kept = (folder / "ground.parts.jsonl").read_bytes()
    assert lexray(*asked, "-o", folder).code == 0
    assert (folder / "ground.parts.jsonl").read_bytes() == kept
    assert json.loads((folder / "ground.json").read_text()) == data


@pytest.mark.slow
def test_a_file_and_an_unknown_kind(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    ran = lexray("ground", "demo", "--kinds", "QK", "--windows", "2", "-o", path)
    assert ran.code == 0
    assert path.read_text().startswith("kind,question,view,default,area")
    assert "kinds are key" in lexray("ground", "demo", "--kinds", "bias").err
