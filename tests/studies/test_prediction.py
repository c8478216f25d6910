"""prediction against transformers' own probabilities, who counts as right, and its rules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexray.errors import LexrayError
from lexray.studies import find, prediction
from lexray.studies.prediction import RIGHT, WRONG
from lexray.studies.shared.prompts import answers_rightly, read_prompts
from tests.studies.recorded import NAMES, PROMPT, logits, model, prompts_file, traced
from tests.vocabulary.vocabularies import worded


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt(name: str) -> None:
    found = prediction.follow(model(name), PROMPT)
    trace = traced(name)
    last = logits(name, trace[trace.model.n_layers - 1].resid_post[-1:])
    assert found["token"] == int(last[0].argmax())
    for layer in trace.layers:
        p = logits(name, trace[layer].resid_post[-1:]).softmax(1)[0, found["token"]]
        assert found["p"][layer] == pytest.approx(float(p), rel=1e-4)
    assert found["right"] is None


def asked(folder: Path) -> Path:
    """Eight prompts answered as the model does, two of these wrongly, and one without an answer."""
    gpt2, path = model("gpt2"), folder / "asked.jsonl"
    rows = []
    for i, letter in enumerate("abcdefgh"):
        text = f"law {letter}"
        token = gpt2.trace(text).logits[-1].argmax()
        said = gpt2.space.token(int(token)).text if i > 1 else "city"
        rows.append({"prompt": text, "answer": said})
    rows.append({"prompt": "law x"})
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_right_and_wrong(tmp_path: Path) -> None:
    path = asked(tmp_path)
    known = {p.text: answers_rightly(model("gpt2"), p) for p in read_prompts(path) if p.answer}
    done = prediction.choose(worded("gpt2"), find("prediction").options.of({"prompts": path}))
    assert {d.prompt.text for d in done[RIGHT]} == {text for text, right in known.items() if right}
    assert {d.prompt.text for d in done[WRONG]} == {t for t, right in known.items() if not right}
    result = find("prediction")(worded("gpt2"), prompts=path)
    counts = result.numbers["prompts"]
    assert counts == {RIGHT: sum(known.values()), WRONG: len(known) - sum(known.values())}
    for kind, found in done.items():
        if found:
            means = [
                sum(p) / len(found) for p in zip(*(d.numbers["p"] for d in found), strict=True)
            ]
            assert result.numbers["probability"][kind] == pytest.approx(means)
        else:
            assert kind not in result.numbers["probability"]


def test_no_right_answers(tmp_path: Path) -> None:
    path = tmp_path / "wrong.jsonl"
    gpt2 = model("gpt2")
    said = {int(gpt2.trace(f"law {x}").logits[-1].argmax()) for x in "abc"}
    other = next(i for i in range(16, 37) if i not in said)
    answer = gpt2.space.token(other).text
    path.write_text("\n".join(json.dumps({"prompt": f"law {x}", "answer": answer}) for x in "abc"))
    result = find("prediction")(worded("gpt2"), prompts=path)
    assert result.numbers["prompts"][RIGHT] + result.numbers["prompts"][WRONG] == 3
    assert {f.verdict for f in result.findings} == {"not testable"}


def test_prompts_without_answers(tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match="none of the prompts has an answer"):
        find("prediction")(worded("gpt2"), prompts=prompts_file(tmp_path))


def test_the_rules_both_ways() -> None:
    def verdicts(right: list[float], wrong: list[float], n: int = 9) -> list[str]:
        found = prediction.findings({RIGHT: right, WRONG: wrong}, {RIGHT: n, WRONG: n})
        return [f.verdict for f in found]

    assert verdicts([0, 0, 0, 0.4, 0.7, 0.8], [0, 0.2, 0.3, 0.3, 0.3, 0.3]) == ["holds"] * 3
    assert verdicts([0.2] * 6, [0, 0, 0, 0, 0, 0.5]) == ["does not hold"] * 3
    assert verdicts([0, 0, 0, 0, 0, 0.9], [0, 0, 0, 0, 0, 0.5]) == [
        "holds",
        "does not hold",
        "does not hold",
    ]
    assert verdicts([0.2] * 6, [0.1] * 6, n=4) == ["not testable"] * 3
