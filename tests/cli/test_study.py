"""`lexray study`: one study, its files, all of them in a report, and what can go wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexray import studies
from lexray.result.table import Table
from lexray.studies.shared.study import StudyResult
from tests.cli.running import answer, lexray, mistake
from tests.studies import counting


def test_the_list() -> None:
    ran = lexray("study", "--list", "--format", "json")
    assert [row["study"] for row in ran.json["studies"]] == list(studies.MODULES)
    assert "keep-k" in lexray("study", "--list").out


@pytest.mark.slow
def test_help() -> None:
    assert "Usage: lexray study" in lexray("study").out
    assert "related-pairs" in lexray("study", "--help").out
    told = lexray("study", "sim-k", "--help").out
    assert "--absolute" in told
    assert "--seed" in told


def test_one_study(gpt2: Path) -> None:
    found = answer("study", "sim-k", gpt2, "--k", 7, "-n", 5, "--seed", 3, "--absolute")
    assert found["options"] == {"seed": 3, "k": 7, "n": 5, "absolute": True}
    assert found == answer("study", "sim-k", gpt2, "-k", 7, "--n", 5, "--seed", 3, "--absolute")
    assert "corresponding vectors" in lexray("study", "sim-k", gpt2, "-k", 7, "-n", 5).out


@pytest.mark.slow
def test_files(llama: Path, tmp_path: Path) -> None:
    for ending, start in ((".json", "{"), (".html", "<!doctype html>"), (".csv", "layer,")):
        path = tmp_path / f"x{ending}"
        ran = lexray("study", "related-pairs", llama, "--k", 9, "--read", "gate", "-o", path)
        assert (ran.code, ran.out, ran.err) == (0, "", "")
        assert path.read_text().startswith(start)
    assert len(list(tmp_path.iterdir())) == 3


def test_an_image(gpt2: Path, tmp_path: Path) -> None:
    assert lexray("study", "isotropy", gpt2, "-o", tmp_path / "x.png").code == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_going_on(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C leaves whole lines, and the same command does the rest."""
    counting.register(monkeypatch)
    prompts, out = tmp_path / "p.txt", tmp_path / "out.json"
    prompts.write_text("law a\nlaw b\nlaw c\nlaw d\n")
    command = ("study", "letters", gpt2, "--prompts", prompts, "-o", out)
    steps = iter([None, None, KeyboardInterrupt])

    class Interrupting(list[str]):
        def append(self, text: str) -> None:
            if stop := next(steps, None):
                raise stop
            super().append(text)

    with monkeypatch.context() as patch:
        patch.setattr(counting, "counted", Interrupting())
        assert lexray(*command).code == 130
    assert not out.exists()
    kept = tmp_path / "out.prompts.jsonl"
    assert len(kept.read_text().splitlines()) == 2
    assert lexray(*command).code == 0
    assert counting.counted == ["law c", "law d"]
    whole = json.loads(out.read_text())["numbers"]
    fresh = answer("study", "letters", gpt2, "--prompts", prompts)["numbers"]
    assert whole == fresh
    assert whole["total"] == 5
    assert lexray(*command).code == 0
    assert len(counting.counted) == 6, "the finished run computed nothing again"


def test_right_and_all(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting.register(monkeypatch)
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "law a", "answer": "zebra"}\n{"prompt": "law b"}\n')
    monkeypatch.setattr("lexray.studies.shared.resume.answers_rightly", lambda *_: False)
    command = ("study", "letters", gpt2, "--prompts", prompts)
    assert len(answer(*command)["numbers"]["rows"]) == 1
    assert len(answer(*command, "--all")["numbers"]["rows"]) == 2
    assert len(answer(*command, "--all", "--limit", 1)["numbers"]["rows"]) == 1


def test_a_report(gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All studies run; two cannot, for a vocabulary of 90 tokens, and say so."""
    static = ("keep-k", "isotropy", "sim-k", "related-pairs")
    monkeypatch.setattr(studies, "MODULES", {name: studies.MODULES[name] for name in static})
    counting.register(monkeypatch)
    monkeypatch.setattr("lexray.studies.shared.measures.n_tokens", lambda _: 90)
    ran = lexray(
        "study", "all", gpt2, "-o", tmp_path / "a" / "b", "--seed", 5, "--limit", 3, "--all"
    )
    assert ran.code == 0
    folder = tmp_path / "a" / "b"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("index.html", "keep-k.json", "keep-k.csv", "isotropy.json", "isotropy.csv"),
        *("letters.json", "letters.csv", "letters.prompts.jsonl"),
    }
    report = (folder / "index.html").read_text()
    assert report.count("too small a vocabulary") == 4
    for name in studies.MODULES:
        assert f'<section id="{name}">' in report
    assert json.loads((folder / "keep-k.json").read_text())["options"]["seed"] == 5
    assert len(json.loads((folder / "letters.json").read_text())["numbers"]["rows"]) == 3
    assert str(folder / "index.html") in ran.err


@pytest.mark.parametrize("raw", [False, True])
def test_a_report_with_raw_cells(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    monkeypatch.setattr(studies, "MODULES", {"isotropy": studies.MODULES["isotropy"]})
    monkeypatch.setattr(StudyResult, "csv_tables", lambda self: [Table(("a",), (("=1+1",),))])
    ran = lexray("study", "all", gpt2, "-o", tmp_path, *["--csv-raw"] * raw)
    assert ran.code == 0
    cell = (tmp_path / "isotropy.csv").read_text().splitlines()[1]
    assert cell == ("=1+1" if raw else "'=1+1")


@pytest.mark.slow
def test_mistakes(gpt2: Path, tmp_path: Path) -> None:
    assert "no study 'x'; there are keep-k" in mistake("study", "x", gpt2)
    assert "--output" in mistake("study", "all", gpt2)
    assert "--n" in mistake("study", "keep-k", gpt2, "-n", 1)
    assert "there is no folder" in mistake("study", "keep-k", gpt2, "-o", tmp_path / "n" / "x.json")
    assert "MODEL" in mistake("study", "keep-k")
    assert "No such option" in mistake("study", "keep-k", gpt2, "--absolute")
    assert "has no gates" in mistake("study", "related-pairs", gpt2, "-k", 5, "--read", "gate")
    (tmp_path / "file").write_text("x")
    assert "cannot make the folder" in mistake("study", "all", gpt2, "-o", tmp_path / "file")
