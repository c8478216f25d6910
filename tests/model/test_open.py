"""From a name to a model: which one was taken, where two could be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexray.model.model import Model
from tests.cli.running import lexray
from tests.saved import save


@pytest.mark.slow
def test_a_folder_with_the_name_of_a_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is taken, as before, but no longer without a word."""
    assert Model.from_pretrained("demo").checkpoint.notes == ()
    save("llama", tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    (note,) = Model.from_pretrained("demo").checkpoint.notes
    assert note.startswith(f"demo is taken from {tmp_path / 'demo'};")
    assert note in lexray("info", "demo").err


def test_an_empty_name() -> None:
    found = lexray("info", "")
    assert found.code == 2
    assert "the model's name is empty" in found.err
