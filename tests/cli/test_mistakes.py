"""What a user may get wrong: exit code 2 and one clear line."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import lexray.cli
from tests.cli.running import lexray as run
from tests.cli.running import mistake

MISTAKES = {
    "L1H2 -k 0": ("head", "-k"),
    "L1H2 -k many": ("head", "-k"),
    "L1H2 --nonsense": ("head", "--nonsense"),
    "L1H2 --format pdf": ("head", "pdf"),
    "L1H2 --inverse inverse": ("head", "transpose"),
    "L1H99": ("head", "heads 0–3"),
    "L9H0": ("head", "layers 0–1"),
    "hello": ("head", "addresses look like"),
    "L1N2": ("head", "is no head"),
    "L1H2.V3": ("head", "is no head"),
    "L1H2.VO --qk": ("head", "L1H2.VO is VO"),
    "L1H2.QK --vo": ("head", "L1H2.QK is QK"),
    "L1H2.QK --of x": ("head", "L1H2.QK is QK"),
    "L1H2 --qk --of x": ("head", "--of reads VO"),
    "L1H2 --vo --attends-to x": ("head", "--attends-to reads QK"),
    "L1H2 --of x --attended-by y": ("head", "--of and --attended-by"),
    "L1H2 --of x --smallest": ("head", "--smallest"),
    "L1H2 --of xylophone": ("head", "'xylophone' is"),
    "L1H2 --smallest --absolute": ("head", "contradict"),
    "L1H2 --min-count 3": ("head", "--corpus"),
    "L1H2 --corpus /no/such.txt": ("head", "/no/such.txt"),
    "L1H2 --only xylophone": ("head", "'xylophone' is"),
    "L1H2 --only no-such.txt": ("head", "no-such.txt"),
    "L1H2 --only=": ("head", "--only names no words"),
    "L1H2 --dtype int8": ("head", "unknown dtype 'int8'"),
    "L1H2 --dtype float8_e4m3fn": ("head", "unknown dtype 'float8_e4m3fn'"),
    "L1H2 --device nowhere": ("head", "no device 'nowhere'"),
    "L1H2 --family nobody": ("head", "nobody"),
    "L1H2 -o /no/such/file.json": ("head", "/no/such/file.json"),
    "L1H2 -k 1 -o head.JPG": ("head", "written as text, not as .jpg"),
    "L1H0.V1": ("svd", "is no head"),
    "L1H0 -n 0": ("svd", "-n"),
    "L1H1": ("neuron", "is no neuron"),
    "L1N999": ("neuron", "neurons 0–19"),
    "L0H0": ("subhead", "is no subhead"),
    "L0H0.V77": ("subhead", "0–5"),
    "L1N3": ("vector", "is no single vector"),
    "L1.b_out": ("vector", "has no b_out"),
    "xylophone": ("lookup", "'xylophone' is"),
    "law --among things": ("lookup", "values, keys, gates"),
    "law --by luck": ("lookup", "cosine"),
    "--overlap 2": ("related", "--overlap"),
    "--read mind": ("related", "gate"),
    "L1N5": ("nearest", "is no single vector"),
    "L1N5.key --among things": ("nearest", "values, keys, gates"),
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line(arguments: str, llama: Path) -> None:
    command, told = MISTAKES[arguments]
    assert told in mistake(command, llama, *arguments.split(" "))


def test_a_gate_that_is_not_there(gpt2: Path) -> None:
    assert "no gate" in mistake("neuron", gpt2, "L1N3.gate")
    assert "no gates" in mistake("lookup", gpt2, " law", "--among", "gates")


def test_how_it_is_called() -> None:
    assert "Missing argument 'MODEL'; see `lexray head --help`" in mistake("head")
    assert "No such command 'heed'" in mistake("heed")
    assert "No such option" in mistake("--heed")


def test_a_corpus_that_is_no_text(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00\x81")
    assert "a.txt" in mistake("head", llama, "L0H0", "--corpus", tmp_path / "a.txt")
    (tmp_path / "a.jsonl").write_text("{")
    assert "line 1" in mistake("head", llama, "L0H0", "--corpus", tmp_path / "a.jsonl")


def test_an_interruption(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lexray.model.model.Model.related", interrupted)
    ran = run("related", llama)
    assert (ran.code, ran.out, ran.err) == (130, "", "lexray: interrupted\n")


def test_a_mistake_of_ours_is_not_hidden(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("lexray.model.model.Model.related", broken)
    with pytest.raises(ZeroDivisionError) as crash:
        lexray.cli.main(["related", str(llama)])
    (note,) = crash.value.__notes__
    for package in ("lexray", "torch", "transformers"):
        assert f"{package} {version(package)}" in note
    assert "report" in note


@pytest.mark.slow
def test_what_a_crash_prints(llama: Path) -> None:
    """The versions stand at the end, after the lines that say where; a mistake has none."""
    code = (
        "import sys, lexray.cli, lexray.model.model\n"
        "lexray.model.model.Model.related = lambda *_, **__: 1 / 0\n"
        "lexray.cli.main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "related", str(llama)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert f"torch {version('torch')}" in done.stderr.splitlines()[-1]
    assert "torch" not in mistake("head", llama, "L9H9")
