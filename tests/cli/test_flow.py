"""`lexray flow`: files by their endings, a summary without one, and mistakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lexray.cli import flow as command
from lexray.flow import Flow
from lexray.flow.caption import caption
from lexray.model.model import Model
from tests.cli.running import lexray, mistake

PROMPT = "the cat and the dog"
ODD = ["a/b\\c \"quoted\" 'twice'", "🦊 naïve café 日本", "<script>alert(1)</script>", "[b]x"]
FEW = ("--heads", "2", "--neurons", "3,2", "-k", "3")


@pytest.mark.slow
def test_a_file_by_its_ending(llama: Path, tmp_path: Path) -> None:
    for ending in ("html", "svg", "json", "png"):
        path = tmp_path / f"flow.{ending}"
        ran = lexray("flow", llama, PROMPT, *FEW, "--layers", "1", "-o", path)
        assert (ran.code, ran.out, ran.err) == (0, "", "")
        assert path.stat().st_size > 1000
    graph = Flow.from_json((tmp_path / "flow.json").read_text())
    model = Model.from_pretrained(llama)
    options = {"layers": [1], "heads": 2, "neurons": (3, 2), "k": 3}
    assert graph == Flow.from_json(model.trace(PROMPT).flow(**options).to_json())
    assert (tmp_path / "flow.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_summary_without_a_file(gpt2: Path) -> None:
    ran = lexray("flow", gpt2, PROMPT, "--target", " dog")
    assert (ran.code, ran.err) == (0, "")
    trace = Model.from_pretrained(gpt2).trace(PROMPT)
    target = trace.model.vocabulary.id(" dog")
    assert "P(·dog) after 'the cat and the dog'" in ran.out
    rank = int((trace.logits[-1] > trace.logits[-1][target]).sum())
    last = next(line for line in ran.out.splitlines() if "L1" in line)
    assert last.split("│")[5].strip() == str(rank + 1)
    heads = [x for x in trace.contributions(" dog").top(9, kind="head") if x.layer == 1]
    best = max(heads, key=lambda leaf: abs(leaf.contribution))
    assert f"{best.component[2:]} {best.contribution:+.2f}" in ran.out
    said = caption(trace.flow(target=" dog"))
    assert said.startswith("Head"), "the page's caption names heads, and so does the terminal's"
    assert " ".join(said.split()) in " ".join(ran.out.split())
    assert lexray("flow", gpt2, PROMPT, "--format", "csv").out.startswith("block,in,mid,out")


@pytest.mark.slow
@pytest.mark.parametrize(
    "prompt",
    ["a/b\\c \"quoted\" 'twice'", "🦊 naïve café 日本", "<script>alert(1)</script>", "[b]x"],
)
def test_prompts_of_all_sorts(llama: Path, tmp_path: Path, prompt: str) -> None:
    path = tmp_path / "flow.html"
    assert lexray("flow", llama, prompt, *FEW, "--layers", "0", "-o", path).code == 0
    assert "<script>alert(1)" not in path.read_text()


def test_a_prompt_that_begins_with_a_dash(llama: Path) -> None:
    assert lexray("flow", llama, "--layers", "0", "--", "-5 degrees").code == 0


def test_long_prompts_keep_one_position(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []
    trace = Model.trace

    def watched(self: Model, prompt: str, **options: object) -> object:
        kept.append(trace(self, prompt, **options))
        return kept[-1]

    monkeypatch.setattr(Model, "trace", watched)
    prompt = " ".join(["the cat and the dog"] * 10)
    assert lexray("flow", llama, prompt, "--layers", "1", "--position", "-2").code == 0
    (only,) = kept
    assert len(only.tokens) > 40
    assert only.positions == (len(only) - 2,)
    assert only.layers == (1,)


@pytest.mark.slow
def test_two_prompts_and_two_models(llama: Path, gpt2: Path, tmp_path: Path) -> None:
    path = tmp_path / "flow.json"
    ran = lexray("flow", llama, PROMPT, *FEW, "--compare", "the dog and the law", "-o", path)
    assert ran.code == 0, ran.err
    graph = Flow.from_json(path.read_text())
    assert graph.other is not None
    assert graph.other.prompt == "the dog and the law"
    ran = lexray("flow", llama, PROMPT, "--other", gpt2)
    assert ran.code == 0, ran.err
    assert "rank, other" in ran.out.replace("\n", " ") or "other" in ran.out


@pytest.mark.slow
def test_a_prompt_that_is_a_models_name_is_told(llama: Path) -> None:
    ran = lexray("flow", llama, PROMPT, *FEW, "--compare", "demo-b")
    assert ran.code == 0, ran.err
    assert "--other" in ran.err


@pytest.mark.slow
def test_opening_shows_the_page(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path))
    assert lexray("flow", llama, PROMPT, *FEW, "--layers", "0", "--open").out == ""
    (page,) = tmp_path.glob("*/flow.html")
    assert opened == [page.as_uri()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--layers", "x"], "no list of numbers"),
        (["--layers", "7"], "no layer 7"),
        (["--position", "99"], "99"),
        (["--neurons", "5"], "no pair of numbers such as 18,7"),
        (["--keep", "2"], "keep"),
        (["--other-revision", "main"], "say which with --other"),
        (["--by", "size"], "by"),
        (["-o", "nowhere/flow.html"], "no folder"),
        (["-o", "flow.pdf", "--format", "x"], "format"),
        (["-o", "flow.gif"], "not as .gif"),
        (["--paper"], "add -o flow.svg"),
        (["--pin", "L0H0"], "--pin chooses what --paper shows"),
    ],
)
def test_mistakes(llama: Path, options: list[str], said: str) -> None:
    assert said in mistake("flow", llama, PROMPT, *options)


@pytest.mark.slow
def test_a_saved_graph_is_drawn_without_its_model(llama: Path, tmp_path: Path) -> None:
    saved = tmp_path / "flow.json"
    assert lexray("flow", llama, PROMPT, *FEW, "--layers", "1", "-o", saved).code == 0
    for ending in ("svg", "html", "attribution.json"):
        path = tmp_path / f"drawn.{ending}"
        assert lexray("draw", saved, "-o", path).code == 0
        assert path.stat().st_size > 1000
    graph = Flow.from_json(saved.read_text())
    head = next(node.address for node in graph.nodes if node.kind == "head")
    figure = tmp_path / "figure.svg"
    ran = lexray("draw", saved, "--paper", "--pin", f"my head={head}", "-o", figure)
    assert (ran.code, ran.err) == (0, "")
    assert figure.read_text() == graph.pin(**{"my head": [str(head)]}).to_svg(paper=True)
    assert "say where to draw it" in mistake("draw", saved)
    assert "cannot read" in mistake("draw", tmp_path / "none.json", "-o", figure)
    os.mkfifo(tmp_path / "pipe.json")
    assert "it is a pipe" in mistake("draw", tmp_path / "pipe.json", "-o", figure)
    figure.write_text("{}")
    assert "no flow graph" in mistake("draw", figure, "-o", tmp_path / "x.svg")
