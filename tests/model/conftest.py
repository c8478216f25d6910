"""Two models on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexray.model.model import Model
from tests.saved import save


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`llama` and `gpt2` on disk, with tokenizers."""
    root = tmp_path_factory.mktemp("saved")
    for name in ("llama", "gpt2"):
        save(name, root / name)
    return root


@pytest.fixture
def llama(saved: Path) -> Model:
    return Model.from_pretrained(saved / "llama").view("raw")


@pytest.fixture
def gpt2(saved: Path) -> Model:
    return Model.from_pretrained(str(saved / "gpt2")).view("raw")
