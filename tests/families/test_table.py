"""The table of families in docs/opens.md is the one that the suite makes."""

from __future__ import annotations

from pathlib import Path

import pytest

import lexray
from tests.families.table import BEGIN, END, table

PAGE = Path(lexray.__file__).parents[2] / "docs" / "opens.md"


@pytest.mark.slow
def test_the_readme_has_this_table() -> None:
    found = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    assert found.strip() == table().strip(), "python -m tests.families.table prints the new one"
