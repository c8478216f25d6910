"""`lexray lens` and `lexray contributions`, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexray.model.model import Model
from lexray.trace.record.plan import RecordPlan
from lexray.trace.record.run import Runner
from tests.cli.running import answer, lexray, mistake

PROMPT = "the cat and the dog"


@pytest.mark.slow
def test_lens(llama: Path) -> None:
    """What the command says is what the library says."""
    found = answer("lens", llama, PROMPT, "--target", "·law", "-k", 3)
    model = Model.from_pretrained(llama)
    expected = model.trace(PROMPT, what="residual").lens(target=" law", k=3)
    assert found == expected.to_dict()
    assert [line["name"] for line in found["lines"]] == ["embed", "L0", "L1"]


def test_lens_of_chosen_vectors(llama: Path) -> None:
    options = ("--of", "heads", "--of", "mlp", "--layers", "1", "--positions", "0,2-3,-1")
    found = answer("lens", llama, PROMPT, *options, "--heads", "0,3", "--no-norm")
    names = [line["name"] for line in found["lines"]]
    assert names == ["L1H0 heads", "L1H3 heads", "L1 mlp"]
    n = len(found["tokens"])
    assert found["positions"] == [0, 2, 3, n - 1]
    assert found["note"] == "without the final norm"


@pytest.mark.parametrize("kind", ["values", "queries", "keys", "neurons"])
def test_lens_of_parts(kind: str, llama: Path) -> None:
    few = ["--neurons", "4"] if kind == "neurons" else []
    ran = lexray("lens", llama, PROMPT, "--of", kind, "--layers", "0", *few)
    assert (ran.code, ran.err) == (0, "")
    assert "L0N" in ran.out if kind == "neurons" else "L0H3" in ran.out


@pytest.mark.slow
def test_long_prompts_fit_the_terminal(gpt2: Path) -> None:
    ran = lexray("lens", gpt2, "law " * 14, "--target", "·law")
    assert max(map(len, ran.out.splitlines())) <= 100
    assert "left out for lack of width" in ran.out


@pytest.mark.slow
def test_contributions(gpt2: Path) -> None:
    found = answer("contributions", gpt2, PROMPT, "--target", "·law", "--against", " Law")
    total = sum(leaf["contribution"] for leaf in found["contributions"])
    assert total == pytest.approx(found["logit"], abs=1e-3)
    trace = Model.from_pretrained(gpt2).trace(PROMPT)
    law, capital = trace.model.vocabulary.ids([" law", " Law"])
    logits = trace.logits[-1]
    assert found["logit"] == pytest.approx(float(logits[law] - logits[capital]), abs=1e-3)


@pytest.mark.slow
def test_contributions_to_the_most_probable_token(gpt2: Path) -> None:
    found = answer("contributions", gpt2, PROMPT, "--position", "1", "--sources")
    best = Model.from_pretrained(gpt2).trace(PROMPT).logits[1].argmax()
    assert (found["target"]["id"], found["position"]) == (int(best), 1)
    assert any("source" in leaf for leaf in found["contributions"])


@pytest.mark.slow
def test_files(llama: Path, tmp_path: Path) -> None:
    table, picture = tmp_path / "parts.csv", tmp_path / "parts.html"
    ran = lexray("contributions", llama, PROMPT, "--target", "·law", "-o", table, "--plot", picture)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert table.read_text().startswith("component,layer,contribution\n")
    assert "<svg" in picture.read_text()
    assert "<script" not in picture.read_text()
    page = tmp_path / "lens.html"
    assert lexray("lens", llama, "<script>alert(1)", "-o", page).code == 0
    assert "rgba(" in page.read_text()
    assert "<script>" not in page.read_text()
    image = tmp_path / "lens.svg"
    assert lexray("lens", llama, PROMPT, "--target", "·law", "-o", image).code == 0
    assert image.read_text().startswith("<svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lens.html", "lens.svg", "parts.csv", "parts.html"
    ]  # fmt: skip


@pytest.mark.slow
def test_mistakes(llama: Path, tmp_path: Path) -> None:
    assert "the prompt is empty" in mistake("lens", llama, "")
    assert "PROMPT" in mistake("lens", llama)
    assert "no layer 9" in mistake("lens", llama, PROMPT, "--layers", "1,9")
    assert "no list of numbers" in mistake("lens", llama, PROMPT, "--layers", "5-2")
    assert "no position" in mistake("lens", llama, PROMPT, "--positions", "99")
    assert "cannot read 'nerves'" in mistake("lens", llama, PROMPT, "--of", "nerves")
    assert "first=True (--first)" in mistake("lens", llama, PROMPT, "--target", "judgement")
    assert lexray("lens", llama, PROMPT, "--target", "judgement", "--first").code == 0
    assert "plots end in" in mistake("lens", llama, PROMPT, "--plot", tmp_path / "x.txt")
    assert "no folder" in mistake(
        "contributions", llama, PROMPT, "--plot", tmp_path / "a" / "x.html"
    )
    assert "tokens" in mistake("contributions", llama, "law " * 100)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--query", "1"], "--query has no effect on residual; it is for --of keys"),
        (["--of", "queries", "--query", "1"], "--query has no effect on queries"),
        (["--of", "heads", "--offset", "-1"], "it is for --of queries or keys"),
        (["--heads", "1"], "--heads has no effect on residual"),
        (["--of", "mlp", "--of", "post", "--neurons", "3"], "no effect on mlp, post"),
        (["--of", "values", "--reading", "input"], "--reading has no effect on values"),
    ],
)
def test_an_option_without_effect_is_refused(llama: Path, options: list[str], said: str) -> None:
    assert said in mistake("lens", llama, PROMPT, *options)


def test_contributions_keep_one_position(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt need not fit with all of its positions."""
    kept = []
    refuse = Runner.refuse_too_large

    def seen(runner: Runner, plan: RecordPlan) -> None:
        kept.append(plan.positions)
        refuse(runner, plan)

    monkeypatch.setattr(Runner, "refuse_too_large", seen)
    at_last = answer("contributions", gpt2, "the cat and the dog", "--raw")
    before = answer("contributions", gpt2, "the cat and the dog", "--position", -2, "--raw")
    n = len(at_last["tokens"])
    assert kept == [((n - 1,),), ((n - 2,),)]
    assert (at_last["position"], before["position"]) == (n - 1, n - 2)
