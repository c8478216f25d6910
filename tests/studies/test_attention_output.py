"""attention-output against sets of tokens, and its rules both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexray.studies import attention_output, find
from lexray.studies.attention_output import AFTER, BEFORE, CHANGE, DISTANT, PREVIOUS, STYLES
from tests.studies.recorded import PROMPT, K, model, prompts_file, score, tops, traced
from tests.vocabulary.vocabularies import worded


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "neox"])
def test_a_prompt(name: str) -> None:
    found = attention_output.compare(model(name), PROMPT, K)
    trace = traced(name)
    rows = [trace[layer] for layer in trace.layers]
    attention = [tops(name, row.attn_out[-1:])[0] for row in rows]
    before = [tops(name, row.resid_pre[-1:])[0] for row in rows]
    after = [tops(name, (row.resid_pre + row.attn_out)[-1:])[0] for row in rows]
    n = len(rows)
    for i in range(n):
        assert found[BEFORE][i] == pytest.approx(score(attention[i], before[i]))
        assert found[AFTER][i] == pytest.approx(score(attention[i], after[i]))
        assert found[CHANGE][i] == pytest.approx(score(before[i], after[i]))
        last = score(attention[i], attention[i - 1]) if i else None
        assert found[PREVIOUS][i] == (None if last is None else pytest.approx(last))
        far = [score(attention[i], attention[j]) for j in range(n) if abs(i - j) > 1]
        assert found[DISTANT][i] == (pytest.approx(sum(far) / len(far)) if far else None)


def test_a_shallow_model(tmp_path: Path) -> None:
    result = find("attention-output")(worded("gpt2"), k=K, prompts=prompts_file(tmp_path))
    assert result.findings[1].verdict == "not testable"
    assert "nan" not in "".join(f.measured for f in result.findings)


def test_the_rules_both_ways() -> None:
    def verdicts(**curves: list[float]) -> list[str]:
        names = dict(zip(("before", "after", "change", "previous", "distant"), STYLES, strict=True))
        found = {names[name]: values for name, values in curves.items()}
        return [f.verdict for f in attention_output.findings(found)]

    nan = float("nan")
    good = verdicts(
        before=[0.1] * 8,
        after=[0.1, 0.1, *[0.3] * 6],
        change=[0.8] * 8,
        previous=[nan, 0.1, *[0.5] * 6],
        distant=[0.1] * 8,
    )
    assert good == ["holds"] * 3
    bad = verdicts(
        before=[0.3] * 8,
        after=[0.3] * 8,
        change=[0.8] * 8,
        previous=[nan, *[0.15] * 7],
        distant=[0.1] * 8,
    )
    assert bad == ["does not hold"] * 3
