"""A forward pass is what it is: how the model is looked at changes none of its shares."""

from __future__ import annotations

from functools import cache

import pytest

from lexray.flow.summary import summarise
from lexray.model.model import Model
from lexray.trace.trace import Trace
from lexray.view import View
from tests.families.zoo import build
from tests.trace.test_contributions import added

RAW = View(
    folded=False,
    inverse="transpose",
    centred=False,
    calibrated=False,
    reading="output",
    offset=0,
)
VIEWS = {
    "centred": {"centred": True},
    "calibrated": {"calibrated": True},
    "folded": {"folded": True},
    "pinv": {"inverse": "pinv"},
    "input": {"reading": "input"},
    "offset": {"offset": -1},
    "all": {"folded": True, "inverse": "pinv", "centred": True, "calibrated": True},
}
IDS, TARGET = [5, 11, 3, 29, 36, 7, 20], 9
SHOWN = {"heads": 0, "neurons": (0, 0), "static": False}
every_view = pytest.mark.parametrize("view", list(VIEWS))


@cache
def models(name: str) -> Model:
    made = Model.from_pretrained("demo") if name == "demo" else Model.from_module(build(name))
    return made.with_view(RAW)


def shares(trace: Trace) -> dict[str, float]:
    """What the flow graph's summary says each head and neuron added to the target's logit."""
    summary = summarise(trace, trace.flow(target=TARGET, **SHOWN), n=10_000)
    return {
        f"L{layer}{mover.name}": mover.added
        for movers in (summary.heads, summary.neurons)
        for layer, listed in movers.items()
        for mover in listed
    }


@every_view
@pytest.mark.parametrize("name", ["demo", "gpt2-untied-wide", "gemma2", "bert", "qwen2-moe"])
def test_shares_are_those_of_the_raw_model_and_of_autograd(name: str, view: str) -> None:
    model = models(name)
    raw, seen = model.trace(IDS), model.view(**VIEWS[view]).trace(IDS)  # type: ignore[arg-type]
    found, expected = shares(seen), added(raw, -1)
    assert found == pytest.approx(shares(raw), abs=1e-6)
    for component, value in found.items():
        assert value == pytest.approx(expected[component], rel=2e-3, abs=2e-5), component


@pytest.mark.slow
@every_view
def test_what_a_share_keeps_is_the_same(view: str) -> None:
    options = {"target": TARGET, "keep": 0.6, "keep_by": "target", "static": False}
    model = models("demo")
    plain = model.trace(IDS).flow(**options)  # type: ignore[arg-type]
    seen = model.view(**VIEWS[view]).trace(IDS).flow(**options)  # type: ignore[arg-type]
    assert [node.id for node in seen.nodes] == [node.id for node in plain.nodes]
    assert [edge.score for edge in seen.edges] == pytest.approx([e.score for e in plain.edges])


@every_view
def test_contributions_are_the_same(view: str) -> None:
    model = models("demo")
    plain = model.trace(IDS).contributions(TARGET)
    seen = model.view(**VIEWS[view]).trace(IDS).contributions(TARGET)  # type: ignore[arg-type]
    assert [leaf.contribution for leaf in seen] == pytest.approx(
        [leaf.contribution for leaf in plain], abs=1e-6
    )
