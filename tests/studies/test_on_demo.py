"""The studies over prompts from the command line, on the demo model and our own prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import lexray

pytestmark = pytest.mark.slow

STUDIES = [
    *("hidden-vs-parameters", "heads", "memories", "prediction", "attention-output", "own-token"),
    *("queries-keys", "norm-filters", "regularisation-neurons"),
]


@pytest.mark.parametrize("name", STUDIES)
def test_from_the_command_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    ran = lexray("study", name, "demo", "--all", "--limit", 2, "-o", path)
    assert (ran.code, ran.out) == (0, "")
    data = json.loads(path.read_text())
    assert data["study"] == name
    assert all(f["measured"] and f["rule"] for f in data["findings"])
