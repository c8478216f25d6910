"""`lexray ablate`, `patch`, `steer`, `check` and `edit`, as a user runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lexray.effects.patching import patching
from lexray.model.model import Model
from tests.cli.running import answer, lexray, mistake

PROMPT, OTHER = "the cat and the dog", "the law and the dog"


@pytest.mark.slow
def test_everything_in_turn(llama: Path) -> None:
    found = answer("ablate", llama, PROMPT, "--target", "·law", "--against", " Law")
    trace = Model.from_pretrained(llama).trace(PROMPT)
    assert found == trace.effects("heads", " law", against=" Law").to_dict()
    layers = answer("ablate", llama, PROMPT, "layers", "--layers", "1", "--to", "mean")
    assert [r["component"] for r in layers["removed"]] == ["L1"]
    ran = lexray("ablate", llama, PROMPT, "-n", "2")
    assert ran.out.count("│ L") == 2


@pytest.mark.slow
def test_some_together(llama: Path, tmp_path: Path) -> None:
    found = answer("ablate", llama, PROMPT, "L0H1", "L1.mlp", "--target", "·law")
    trace = Model.from_pretrained(llama).trace(PROMPT)
    assert found == trace.effect("ablate L0H1; ablate L1.mlp", " law").to_dict()
    assert "each in turn" in mistake("ablate", llama, PROMPT, "heads", "L0H1")
    there = answer("ablate", llama, PROMPT, "L0H1[-1]", "L1.mlp[0,1]", "--target", "·law")
    assert there == trace.effect("ablate L0H1[-1]; ablate L1.mlp[0,1]", " law").to_dict()
    for what, said in (
        (["souls"], "or one of heads, neurons"),
        (["L0H1[99]"], "no position 99"),
        (["L7H1"], "no layer 7"),
        (["L0H1[x]"], "a position is missing"),
        (["L0H1[0]", "--positions", "1"], "choose one"),
    ):
        assert said in mistake("ablate", llama, PROMPT, *what)
    assert "for maps" in mistake("ablate", llama, PROMPT, "L0H1", "--plot", tmp_path / "a.html")


def test_a_map_is_drawn(llama: Path, tmp_path: Path) -> None:
    ran = lexray("ablate", llama, PROMPT, "--plot", tmp_path / "map.svg")
    assert ran.code == 0, ran.err
    assert "<svg" in (tmp_path / "map.svg").read_text()
    cut = answer("ablate", llama, PROMPT, "positions", "--window", "1")
    assert cut["window"] == 1
    assert "for positions" in mistake("ablate", llama, PROMPT, "heads", "--window", "1")


@pytest.mark.slow
def test_patch(llama: Path) -> None:
    found = answer("patch", llama, PROMPT, OTHER, "--of", "heads", "--target", "·law")
    model = Model.from_pretrained(llama)
    traces = [model.trace(text) for text in (PROMPT, OTHER)]
    assert found == patching(*traces, " law", of="heads").to_dict()
    noised = answer("patch", llama, PROMPT, OTHER, "--noising", "--no-gradient")
    assert noised["way"] == "noising"
    assert noised["approximate"] is None
    assert "same length" in mistake("patch", llama, PROMPT, "the law")


@pytest.mark.slow
def test_steer(llama: Path) -> None:
    found = answer("steer", llama, PROMPT, "--add", "9*L1N3.value@L1", "-n", "3")
    expected = Model.from_pretrained(llama).generate(PROMPT, 3, ["add 9*L1N3.value@L1"])
    assert found == expected.to_dict()
    assert "nothing is changed" in mistake("steer", llama, PROMPT)
    assert "is no edit" in mistake("steer", llama, PROMPT, "--add", "nonsense")


def test_check(llama: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat and the dog walk; the court and the judge " * 4)
    found = answer("check", llama, "L1N3", "L0H1", "--text", text, "--others", "1", "-k", "4")
    assert [c["address"] for c in found["checked"]] == ["L1N3", "L0H1"]
    assert "has no effect" in mistake("check", llama, "L1N3", "--edits", "ablate L0H1")


@pytest.mark.slow
def test_edit(llama: Path, tmp_path: Path) -> None:
    edits = ("scale L1N3 by 0", "ablate L0H1")
    found = answer("edit", llama, *edits, "-o", tmp_path / "edited", "--prompt", PROMPT)
    assert found["edits"] == list(edits)
    assert len(found["tensors"]) == 2
    assert len(found["followed"]) == 1
    model = Model.from_pretrained(llama)
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "edited")
    ids = torch.tensor([model.trace(PROMPT, what="logits").ids.tolist()])
    ours = model.trace(PROMPT, edits=edits).logits
    torch.testing.assert_close(theirs(ids).logits[0].detach(), ours, rtol=1e-3, atol=1e-3)
    assert lexray("edit", llama, *edits, "--lora", "-o", tmp_path / "adapter").code == 0
    adapted = Model.from_pretrained(llama, adapter=tmp_path / "adapter")
    torch.testing.assert_close(adapted.trace(PROMPT).logits, ours, rtol=1e-3, atol=1e-3)
    assert "-o FOLDER" in mistake("edit", llama, *edits, "--lora")
    assert "changes a run" in mistake("edit", llama, "cut [0]->[-1]")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["lens", "contributions"])
def test_edits_of_a_run(command: str, llama: Path) -> None:
    edits = ("--edits", "ablate L0H1; scale L1.mlp by 2")
    plain, changed = answer(command, llama, PROMPT), answer(command, llama, PROMPT, *edits)
    assert plain != changed
    trace = Model.from_pretrained(llama).trace(PROMPT, edits=[edits[1]])
    if command == "contributions":
        assert changed["logit"] == pytest.approx(float(trace.logits[-1].max()), abs=1e-4)
    assert "is no edit" in mistake(command, llama, PROMPT, "--edits", "nonsense")


@pytest.mark.slow
def test_flow_of_an_edited_run(llama: Path, tmp_path: Path) -> None:
    page = tmp_path / "flow.json"
    ran = lexray("flow", llama, PROMPT, "--edits", "ablate L0H1", "--compare", PROMPT, "-o", page)
    assert ran.code == 0, ran.err
    assert page.stat().st_size > 100
