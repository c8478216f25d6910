"""What an atlas is said to cost, before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

import lexray as lx
from lexray.atlas import cost
from lexray.atlas.cost import BEGIN, EACH, plan_atlas, plan_noticed
from lexray.atlas.options import AtlasOptions
from lexray.model.plan import Speed
from tests.cli.running import lexray


def test_seconds_are_those_of_the_jobs(model: lx.Model) -> None:
    speed = Speed(multiply=1e9, search=1e9)
    one, two = (plan_atlas(model, AtlasOptions(), workers=n, speed=speed) for n in (1, 2))
    each = [one.flop[job] / 1e9 + EACH.get(job, 0.02) * n for job, n in one.chunks.items()]
    assert one.seconds == pytest.approx(BEGIN + sum(each))
    assert two.seconds == pytest.approx(BEGIN + sum(each) / 2)
    assert one.to_dict()["seconds"] == one.seconds


def test_a_long_run_says_what_was_planned(
    llama: Path, model: lx.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lexray.model.plan.CALIBRATION", 0.001)
    assert plan_noticed(model, AtlasOptions(), 1) is None
    monkeypatch.setattr(cost, "NOTICED", 0.0)
    command = ("atlas", llama, "-o", tmp_path / "atlas", "--kinds", "values", "--layers", "0")
    assert "(planned: " in lexray(*command).err
    assert "planned" not in lexray(*command).err  # all of it is there
