"""Models whose layers mix several residual streams (Gemma 3n): weights are read, runs refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lexray as lx
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests.families.oracles import ORACLES
from tests.families.streams import STREAMS, build_streams
from tests.families.zoo import Variant


@pytest.mark.parametrize("variant", STREAMS, ids=str)
def test_weights_are_the_models(
    variant: Variant, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    module = build_streams(variant.name)
    module.save_pretrained(tmp_path)
    live = Model.from_module(module).view("raw")
    disk = Model.from_pretrained(tmp_path).view("raw")
    for source, model in {"live": live, "disk": disk}.items():
        for name, oracle in ORACLES.items():
            with subtests.test(oracle=name, source=source):
                oracle(module, live, model)
        assert {p["parameter"] for p in model.info().parameters} >= {"W_Q", "W_K", "W_mixer, out"}
        described = {p["tensor"] for p in model.info().parameters}
        assert len(described) > 20


def test_runs_are_refused_in_words(tmp_path: Path) -> None:
    build_streams("gemma3n").save_pretrained(tmp_path)
    model = Model.from_pretrained(tmp_path)
    for run in (
        lambda: model.trace([5, 11, 3]),
        lambda: model.lone_states(entering=True),
        lambda: lx.stitch(model, model, after=1),
    ):
        with pytest.raises(LexrayError, match="3 residual streams"):
            run()


def test_lists_are_read_without_a_run() -> None:
    """The standard view has no effective embedding here, and says why."""
    model = Model.from_module(build_streams("gemma3n"))
    assert len(model["L1N3"].value.top(5).tokens) == 5
    reading = model["L1N3"].key.top(5)
    assert "residual streams" in str(reading)
    assert len(model["L4H1"].vo.top(5)) == 5
    assert torch.equal(model["L4H1"].W_K, model["L1H1"].W_K)
