"""Odd terminals and disks: what stands behind stdout and stderr, and who stops a command."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from lexray.checkpoint.safetensors import SafetensorsFolder
from lexray.cli import main, progress
from lexray.cli.progress import ProgressBars
from lexray.model.model import Model
from tests.cli.running import lexray as run
from tests.cli.running import mistake, save_tiny

Streams = Callable[..., int]


class Screen(io.TextIOWrapper):
    """A terminal of some encoding."""

    def __init__(self, encoding: str, tty: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty

    def text(self) -> str:
        self.flush()
        return bytes(self.buffer.getvalue()).decode(self.encoding)  # type: ignore[attr-defined]


@pytest.fixture
def run_on(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Runs a command with these streams; its exit code."""

    def running(out: Any, err: Any, *arguments: object) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            with pytest.raises(SystemExit) as stopped:
                main([str(argument) for argument in arguments])
        assert isinstance(stopped.value.code, int)
        return stopped.value.code

    return running


def neuron(model: Path, *more: object) -> tuple[object, ...]:
    """A command that shows every token."""
    return ("neuron", model, "L0N0.value", "-k", 320, "--raw", *more)


@pytest.fixture
def named(llama: Path, tmp_path: Path) -> Path:
    """A model in a folder that ASCII has no name for."""
    folder = tmp_path / "modèle日本"
    folder.symlink_to(llama)
    return folder


# ---------------------------------------------------------------------- encodings


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize("tty", [False, True])
def test_a_table_on_a_terminal_of_few_signs(
    encoding: str, tty: bool, llama: Path, run_on: Streams
) -> None:
    out = Screen(encoding, tty)
    assert run_on(out, io.StringIO(), *neuron(llama)) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.text())
    assert "legibility" in shown
    assert ("│" in shown) == (encoding == "utf-8")
    lines = [line for line in shown.splitlines() if line.startswith(("|", "+", "│", "┏"))]
    if encoding != "utf-8":
        assert ("_the" if encoding == "ascii" else "·the") in shown
        assert len({len(line) for line in lines}) == 1, "stand-ins keep the columns straight"


@pytest.mark.parametrize("form", ["json", "html", "csv"])
def test_whole_results_where_signs_are_few(form: str, named: Path, run_on: Streams) -> None:
    few, many = Screen("ascii"), Screen("utf-8")
    for out in (few, many):
        assert run_on(out, io.StringIO(), *neuron(named, "--format", form)) == 0
    assert few.text().isascii()
    assert many.text().isascii() == (form == "csv")
    if form == "json":
        assert json.loads(few.text()) == json.loads(many.text())


def test_messages_where_signs_are_few(llama: Path, run_on: Streams) -> None:
    err = Screen("ascii")
    assert run_on(Screen("ascii"), err, "head", llama, "L9H0") == 2
    assert "layers 0-1" in err.text()


# ---------------------------------------------------------------------- closed, full, unread


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_full_disk_behind_stdout(form: str, llama: Path, run_on: Streams) -> None:
    err = io.StringIO()
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert run_on(full, err, *neuron(llama, "--format", form)) == 2
    assert err.getvalue() == "lexray: cannot write the result: No space left on device\n"


@pytest.mark.slow
def test_a_closed_stdout(llama: Path, run_on: Streams, tmp_path: Path) -> None:
    err = io.StringIO()
    assert run_on(None, err, *neuron(llama)) == 2
    assert "standard output is closed; -o FILE" in err.getvalue()
    assert run_on(None, None, *neuron(llama, "-o", tmp_path / "head.json")) == 0
    assert len(json.loads((tmp_path / "head.json").read_text())["value"]["top"]) == 320


def test_nobody_reads_on(llama: Path, run_on: Streams) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    err = io.StringIO()
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        assert run_on(pipe, err, *neuron(llama)) == 0
    assert err.getvalue() == ""


def test_nobody_reads_errors(llama: Path, run_on: Streams) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert run_on(io.StringIO(), full, "head", llama, "L9H0") == 2
    out = io.StringIO()
    assert run_on(out, None, "head", llama, "L9H0") == 2
    assert out.getvalue() == "", "an error does not pass for a result"


# ---------------------------------------------------------------------- hostile names

ESCAPE = "\x1b]0;owned\x07[/red]\u202e"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in a folder whose name is a set of commands."""
    return save_tiny(tmp_path_factory.mktemp("tiny") / f"x{ESCAPE}", "llama")


@pytest.mark.parametrize("form", ["table", "json", "csv"])
@pytest.mark.parametrize("command", ["info", "neuron", "missing"])
def test_names_do_not_command_the_terminal(
    form: str, command: str, hostile: Path, run_on: Streams
) -> None:
    out, err = Screen("utf-8", tty=form != "table"), Screen("utf-8")
    where = {
        "info": ("info", hostile),
        "neuron": neuron(hostile),
        "missing": neuron(hostile / "no"),
    }
    code = run_on(out, err, *where[command], "--format", form)
    assert code == (2 if command == "missing" else 0)
    for told in (out.text(), err.text()):
        assert not set("\x1b\x07\u202e\x9b") & set(told)
    assert "\\x1b" in out.text() + err.text() or "\\u001b" in out.text() or form == "csv"


def test_a_name_does_not_break_the_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    err = Screen("utf-8", tty=True)
    monkeypatch.setattr(sys, "stderr", err)
    bars = ProgressBars()
    assert list(bars(range(3), 3, f"reading {ESCAPE}")) == [0, 1, 2]
    bars.stop()
    assert "\x07" not in err.text()
    assert "\u202e" not in err.text()


def test_the_time_left_is_not_guessed_from_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand items that come together every minute: ten such bursts take ten minutes."""
    now = [0.0]

    def bursts() -> Iterator[int]:
        for i in range(10_000):
            now[0] += 60.0 if i % 1000 == 0 else 1e-6
            yield i

    monkeypatch.setattr(sys, "stderr", Screen("utf-8", tty=True))
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    display = Progress(get_time=lambda: now[0], speed_estimate_period=3600, disable=True)
    monkeypatch.setattr(progress, "_display", lambda: display)
    left = [
        display.tasks[0].time_remaining
        for i in ProgressBars()(bursts(), 10_000, "reading")
        if i % 1000 == 999 and i > 2000
    ]
    assert left == [pytest.approx(60 * (10 - n), abs=61) for n in range(3, 11)]


# ---------------------------------------------------------------------- spreadsheets


@pytest.mark.slow
def test_csv_without_formulas_and_raw(llama: Path) -> None:
    """Tokens of a byte-level vocabulary: =, +, - and @ are among them."""
    ran = [
        run("neuron", llama, "L0N0", "-k", 320, "--format", "csv", *raw)
        for raw in ([], ["--csv-raw"])
    ]
    safe, raw = ([row["token"] for row in csv.DictReader(io.StringIO(r.out))] for r in ran)
    changed = {a: b for a, b in zip(raw, safe, strict=True) if a != b}
    assert changed == {sign: f"'{sign}" for sign in "=+-@"}
    scores = [row["score"] for row in csv.DictReader(io.StringIO(ran[0].out))]
    assert any(score.startswith("-") for score in scores), "numbers stay numbers"


# ---------------------------------------------------------------------- stopping, panicking


@pytest.mark.parametrize(
    ("name", "code", "why"),
    [
        ("SIGINT", 130, "interrupted"),
        ("SIGTERM", 143, "terminated"),
        ("SIGHUP", 129, "the terminal was closed"),
    ],
)
def test_who_stops_a_command(
    name: str, code: int, why: str, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = getattr(signal, name)
    usual = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    given = signal.signal(number, usual)  # a shell lets what runs behind it ignore SIGINT
    cleaned = []

    def stopped(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            cleaned.append(name)

    monkeypatch.setattr(Model, "related", stopped)
    try:
        ran = run("related", llama)
        after = signal.getsignal(number)
    finally:
        signal.signal(number, given)
    assert (ran.code, ran.out, ran.err) == (code, "", f"lexray: {why}\n")
    assert cleaned == [name]
    assert after is usual


def test_a_panic_in_a_library_is_one_line(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As libraries in Rust raise it: no `Exception`."""

    def panics(*_: object, **__: object) -> None:
        raise PanicException("index out of bounds\x1b[2J")

    monkeypatch.setattr(Model, "related", panics)
    told = mistake("related", llama)
    assert "index out of bounds\\x1b[2J" in told


def test_notes_on_which_files_were_taken_are_clean(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SafetensorsFolder, "notes", (f"the model under it is {ESCAPE}",))
    ran = run("info", llama)
    assert ran.code == 0
    assert ran.err == "lexray: the model under it is \\x1b]0;owned\\x07[/red]\\u202e\n"
