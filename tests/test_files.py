"""Where lexray keeps its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexray.checkpoint.hub.ranges import RangeCache
from lexray.files import cache_root
from lexray.vocabulary import filters
from lexray.vocabulary.vocabulary import Vocabulary


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "LEXRAY_CACHE"])
def test_one_cache_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """Ranges and counts of a corpus lie in the same folder, wherever the user wants it."""
    monkeypatch.delenv("LEXRAY_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv(variable, str(tmp_path / "here"))
    root = tmp_path / "here" / ("lexray" if variable == "XDG_CACHE_HOME" else "")
    assert cache_root() == root
    text = tmp_path / "corpus.txt"
    text.write_text("#1")
    filters.corpus(text).mask(Vocabulary.numbered(9), 9)
    assert [path.suffix for path in root.rglob("*") if path.is_file()] == [".npz"]
    assert RangeCache("org/name", "commit", "file").folder.is_relative_to(root)


def test_cache_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEXRAY_CACHE", "~/somewhere")
    assert cache_root() == Path.home() / "somewhere"
