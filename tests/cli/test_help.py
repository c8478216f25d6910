"""Every command and option is documented, the help is quick, and bars stay out of pipes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from lexray.cli import app
from lexray.cli.progress import ProgressBars
from tests.cli.running import lexray

EXPECTED = {
    *("info", "head", "heads", "neuron", "subhead", "vector", "feature", "svd"),
    *("overview", "layer", "token"),
    *("lookup", "related", "nearest", "relations", "wires", "path"),
    *("describe", "catalogue", "atlas", "demo"),
    *("diff", "align", "stitch", "lens", "contributions", "flow", "study", "ground"),
    *("ablate", "patch", "steer", "edit", "check", "attention", "evidence", "draw", "serve"),
}


def commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{path} {name}")

    return walk(typer.main.get_command(app), "lexray")


def test_the_commands() -> None:
    assert {path.split()[-1] for path, _ in commands()} == EXPECTED | {"lexray"}


def test_everything_is_documented() -> None:
    for path, command in commands():
        assert command.help, path
        assert command.help.strip(), path
        for parameter in command.params:
            assert (parameter.help or "").strip(), f"{path}: {parameter.name}"


def test_shared_options_are_the_same_everywhere() -> None:
    shared = {"format", "output", "revision", "remote", "adapter", "family", "device", "dtype"}
    for path, command in commands():
        if path.split()[-1] not in ("lexray", "info", "demo", "study", "draw", "serve"):
            assert shared <= {parameter.name for parameter in command.params}, path


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_help(name: str) -> None:
    ran = lexray(name, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert f"Usage: lexray {name}" in ran.out


@pytest.mark.slow
def test_nothing_asked_is_help() -> None:
    assert lexray() == lexray("--help")
    assert lexray().code == 0
    assert "smollm2" in lexray().out


@pytest.mark.slow
def test_it_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "lexray", "head", "--help"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("L19H4")
    wrong = subprocess.run([*command[:3], "nonsense"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "nonsense" in wrong.stderr) == (2, True)


@pytest.mark.slow
def test_help_imports_no_torch() -> None:
    code = f"""
import sys
from lexray.cli import main
for name in {sorted(EXPECTED)}:
    try:
        main([name, "--help"])
    except SystemExit as stopped:
        assert stopped.code == 0
assert not {{"torch", "numpy", "transformers", "huggingface_hub"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    bars, terminal = ProgressBars(), Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    seen = [(a, b) for a in bars("xy", 2, "outer work") for b in bars([1, 2], 2, "inner work")]
    assert seen == [("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    assert "outer work" in terminal.getvalue()
    assert "inner work" in terminal.getvalue()


def test_a_bar_that_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    bars, terminal = ProgressBars(), Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    items = iter(bars([1, 2, 3], 3, "work"))
    assert next(items) == 1
    bars.stop()
    assert list(items) == [2, 3]
    assert list(bars([4], 1, "more")) == [4]


def test_no_bars_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    items = [1, 2, 3]
    assert ProgressBars()(items, 3, "work") is items
    assert pipe.getvalue() == ""
