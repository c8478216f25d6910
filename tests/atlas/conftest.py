"""A tiny model with a tokenizer, and its atlas in both views."""

from pathlib import Path

import pytest

import lexray as lx
from tests.cli.running import save_tiny

VIEWS = ("standard", "raw")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("atlas") / "llama", "llama")


@pytest.fixture(scope="session")
def model(llama: Path) -> lx.Model:
    return lx.Model.from_pretrained(llama)


@pytest.fixture(scope="session")
def folder(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("atlas") / "whole"
    lx.Atlas.write(str(llama), where, views=VIEWS, k=12)
    return where


@pytest.fixture(scope="session")
def atlas(folder: Path) -> lx.Atlas:
    return lx.Atlas(folder)
