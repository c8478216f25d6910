"""Means over a batch are the means of its prompts' own figures."""

from __future__ import annotations

from statistics import mean, stdev

import pytest

import lexray as lx
from lexray.trace.traces import Traces

MODEL = lx.Model.from_pretrained("demo")
PROMPTS = ["This film was a", "The acting is", "I think this movie"]


@pytest.fixture(scope="module")
def traces() -> Traces:
    return MODEL.trace(PROMPTS)


@pytest.mark.slow
def test_contributions(traces: Traces) -> None:
    targets = [" good", " bad", " was"]
    found = traces.contributions(targets, against=" the")
    own = [t.contributions(w, against=" the") for t, w in zip(traces, targets, strict=True)]
    for name in ("L2H1", "L3N17", "embedding.token"):
        values = [one[name] for one in own]
        assert found[name].mean == pytest.approx(mean(values), abs=1e-6)
        assert found[name].error == pytest.approx(stdev(values) / 3**0.5, abs=1e-6)
        assert found[name].positive == pytest.approx(sum(v > 0 for v in values) / 3)
    means = [c.mean for c in found.components]
    assert means == sorted(means, reverse=True)
    assert all(c.kind == "head" for c in found.top(3, kind="head"))
    assert found.top(1, negative=True)[0] == found.components[-1]
    assert "mean of 3 prompts" in str(found)
    assert found.plot().to_svg().startswith("<svg")
    with pytest.raises(lx.LexrayError, match="no component"):
        found["L99H0"]


def test_lens(traces: Traces) -> None:
    found = traces.lens(" good")
    own = [trace.lens(target=" good", positions=-1) for trace in traces]
    for i in range(len(found.lines)):
        cells = [(one.target_probs, one.target_ranks) for one in own]
        assert found.probability[i] == pytest.approx(mean(float(p[i, 0]) for p, _ in cells))  # type: ignore[index]
    assert traces.lens().first[-1] == 1.0, "its own prediction is first at the end"
    assert len(found.tables()[0].rows) == len(found.lines)


def test_one_target_each(traces: Traces) -> None:
    with pytest.raises(lx.LexrayError, match="2 targets for 3 prompts"):
        traces.contributions([" good", " bad"])
    with pytest.raises(lx.LexrayError, match="no trace"):
        Traces().lens()
    assert isinstance(traces, list)
