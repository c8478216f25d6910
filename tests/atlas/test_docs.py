"""The page about the atlas names every table, every column and every option."""

from __future__ import annotations

import re
from pathlib import Path

from lexray.atlas.schema import TABLES
from tests.cli.running import lexray

PAGE = (Path(__file__).parents[2] / "docs/atlas.md").read_text(encoding="utf-8")


def test_tables_and_columns() -> None:
    lines = {
        line.split("|")[1].strip(" `"): set(re.findall(r"`(\w+)`", line.split("|")[3]))
        for line in PAGE.splitlines()
        if line.startswith("| `") and line.count("|") == 4
    }
    for name, schema in TABLES.items():
        assert set(schema.names) - lines[name] == set(), name


def test_options() -> None:
    said = lexray("atlas", "--help").out
    for option in ("--views", "--kinds", "--layers", "--text", "--workers", "--ray", "--plan"):
        assert option in said
        assert option in PAGE
