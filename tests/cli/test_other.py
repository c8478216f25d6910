"""The second model of a command: opened as the first one is, with options of its own."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from lexray.cli import app
from lexray.cli.options import CircuitOptions, PlacedOptions
from lexray.cli.other import OtherOptions
from lexray.model.model import Model
from tests.cli.running import lexray

TWO: dict[str, list[object]] = {
    "diff": [],
    "align": [],
    "stitch": ["--sweep", "--data", "none.jsonl"],
    "flow": [],
}


def test_every_option_has_a_twin() -> None:
    first = {field.name for field in fields(PlacedOptions)} - {"model"}
    assert {field.name for field in fields(OtherOptions)} == {f"other_{name}" for name in first}


def test_every_command_of_two_models_has_them() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    twins = {field.name for field in fields(OtherOptions)}
    having = {
        name for name, command in commands.items() if twins <= {p.name for p in command.params}
    }
    assert having == set(TWO)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What every command opened, and how."""
    found: list[tuple[str, dict[str, Any]]] = []
    really = Model.from_pretrained

    def watched(source: str, **options: Any) -> Model:
        found.append((source, options))
        kept = {name: options[name] for name in ("device", "dtype") if name in options}
        return really(source, **kept)

    monkeypatch.setattr(Model, "from_pretrained", watched)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("command", TWO)
def test_it_is_opened_like_the_first(
    command: str, llama: Path, opened: list[tuple[str, dict[str, Any]]]
) -> None:
    second = ["a prompt", "--other", llama] if command == "flow" else [llama]
    own = ["--other-revision", "v2", "--other-family", "mistral", "--other-adapter", "lora"]
    shared = ["--revision", "v1", "--family", "llama", "--remote", "--dtype", "float64"]
    lexray(command, llama, *second, *TWO[command], *shared, *own)
    (_, first), (_, other) = opened[:2]
    assert (first["revision"], first["family"], first["adapter"]) == ("v1", "llama", None)
    assert (other["revision"], other["family"], other["adapter"]) == ("v2", "mistral", "lora")
    assert first["remote"] is other["remote"] is True
    assert first["dtype"] == other["dtype"]
    opened.clear()
    far = ["--no-other-remote", "--other-dtype", "float32"]
    lexray(command, llama, *second, *TWO[command], *shared, *far)
    (_, first), (_, other) = opened[:2]
    assert (other["revision"], other["family"]) == (None, None)
    assert (first["remote"], other["remote"]) == (True, False)
    assert (str(first["dtype"]), str(other["dtype"])) == ("torch.float64", "torch.float32")


def test_it_is_read_as_the_first_is(llama: Path, gpt2: Path) -> None:
    like = CircuitOptions(str(llama), folded=True, centred=True, offset=-2)
    first = like.open()
    assert OtherOptions().open(str(gpt2), like, first).options == first.options
