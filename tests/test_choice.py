"""Layers and positions are said in one way, everywhere."""

from __future__ import annotations

import pytest

import lexray as lx
from lexray.choice import choose
from lexray.errors import LexrayError

SAME = (3, -1, [3], (-1,), slice(3, None), range(3, 4))
"""The last of four layers."""


def test_what_is_meant() -> None:
    for some in SAME:
        assert choose(some, 4, "layer") == (3,)
    assert choose([-1, 0, 3], 4, "layer") == (0, 3)
    assert choose(None, 2, "layer") == (0, 1)
    for wrong, said in ((4, "0–3"), (slice(9, None), "none of the 4")):
        with pytest.raises(LexrayError, match=said):
            choose(wrong, 4, "layer")


@pytest.mark.slow
def test_the_same_in_every_call() -> None:
    model = lx.Model.from_pretrained("demo")
    trace = model.trace("This movie was")
    calls = {
        "trace": lambda some: model.trace("This", layers=some).layers,
        "lens": lambda some: trace.lens(layers=some).to_dict(),
        "attention": lambda some: trace.attention(layers=some).to_dict(),
        "flow": lambda some: trace.flow(layers=some, heads=1, neurons=(1, 0)).to_dict(),
        "lookup": lambda some: model.lookup([" good"]).top(3, layers=some).to_dict(),
        "overview": lambda some: lx.overview(model, "norm", layers=some).to_dict(),
        "partners": lambda some: lx.partners(model, "L2N3", model, 2, layers=some).to_dict(),
    }
    for name, call in calls.items():
        expected = call([3])
        for some in (3, -1, slice(3, 4)):
            assert call(some) == expected, f"{name} with layers={some}"
        with pytest.raises(LexrayError, match="0–3"):
            call(7)


@pytest.mark.slow
def test_positions_likewise() -> None:
    trace = lx.Model.from_pretrained("demo").trace("This movie was")
    expected = trace.lens(positions=[2]).to_dict()
    for some in (2, -1, slice(2, 3)):
        assert trace.lens(positions=some).to_dict() == expected
