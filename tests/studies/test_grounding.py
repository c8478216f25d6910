"""The default view is the one that says best what parameters do, on `demo`; and the measure itself
tells a reading that is right from one that is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

import lexray as lx
from lexray.space.area import area
from lexray.studies.grounding import VIEWS, Grounding, ground, own_text, spread
from lexray.studies.shared.grounds import Amount
from lexray.studies.shared.measures import interval
from lexray.trace.record.removal import Removal, changes


@cache
def demo() -> Grounding:
    kinds = ("key", "value", "O", "QK", "VO")
    amount = Amount(readers=24, writers=6, heads=5, places=3)
    return ground(
        lx.Model.from_pretrained("demo", dtype=torch.float32),
        kinds=kinds,
        amount=amount,
        windows=24,
    )


def test_area_is_the_share_of_pairs_in_order() -> None:
    scores = torch.tensor([3.0, 1.0, 2.0, 2.0])
    assert area(scores, torch.tensor([True, False, False, False])) == 1.0
    assert area(scores, torch.tensor([False, True, False, False])) == 0.0
    assert area(scores, torch.tensor([False, False, True, False])) == 0.5
    assert interval(torch.ones(9)) == 0
    assert interval(torch.tensor([0.0, 1.0] * 50)) == pytest.approx(0.098, abs=0.02)


@pytest.mark.slow
def test_the_default_is_the_winner_on_demo() -> None:
    """No view is better than the default by more than both intervals; it beats raw where it can."""
    found = demo()
    compared = list(found.defaults())
    assert len(compared) == 8
    for default, _ in compared:
        for other in found.of(default.kind, default.question).values():
            margin = default.interval + other.interval
            assert default.area > other.area - margin, (default, other)
        if (default.kind, default.question) != ("O", "follows"):
            assert default.area > 0.5 + default.interval, default
    for kind, question, view in (("key", "sees", "standard"), ("VO", "causes", "standard")):
        lines = found.of(kind, question)
        gain = lines[view].area - lines["raw"].area
        assert gain > lines[view].interval, (kind, question, gain)


@pytest.mark.slow
def test_what_is_kept_is_not_measured_again(tmp_path: Path) -> None:
    model = lx.Model.from_pretrained("demo", dtype=torch.float32)
    place = tmp_path / "parts.jsonl"
    options = {"amount": Amount(4, 2, 2, 1), "windows": 4, "layers": [1, 2], "place": place}
    first = ground(model, kinds=["key"], **options)
    lines = place.read_text().splitlines()
    assert len(lines) == 2
    place.write_text(lines[0] + "\n" + lines[1][:40])
    assert ground(model, kinds=["key"], **options).grounds == first.grounds
    assert len(place.read_text().splitlines()) == 2
    more = ground(model, kinds=["key", "QK"], **options)
    assert more.grounds[: len(first.grounds)] == first.grounds
    assert len(place.read_text().splitlines()) == 4
    ground(model, kinds=["key"], **options | {"seed": 1})
    assert len(place.read_text().splitlines()) == 6


@pytest.mark.slow
def test_a_table_of_thirds_and_intervals() -> None:
    found = demo()
    whole, summary = found.tables()
    assert len(whole.rows) == len(found.grounds)
    assert {row[-1] for row in summary.rows} <= {"wins", "ties"}
    (numbers,) = found.csv_tables()
    assert numbers.columns[-3:] == ("late", "late_interval", "late_n")
    line = found.of("key", "sees")["standard"]
    assert sum(third.n for third in line.thirds if third) == line.whole.n
    assert set(found.of("value", "causes")) == {"raw", "folded", "standard"}
    assert set(found.of("QK", "attends")) == set(VIEWS)


@pytest.mark.slow
def test_controls_say_nothing() -> None:
    for line in demo().grounds:
        if line.question == "sees":
            assert abs(line.control - 0.5) < 0.1


def test_a_removal_is_what_transformers_gives_without_it() -> None:
    """Everything that the last attention wrote, removed at the last position."""
    model = lx.Model.from_pretrained("demo", dtype=torch.float32)
    trace = model.trace("This movie was")
    ids = tuple(trace.ids.tolist())
    last = model.n_layers - 1
    written = trace[last].mlp_write[-1]
    ((_, before, after),) = changes(model, [Removal(ids, last, "mlp", written)])
    torch.testing.assert_close(
        before, trace.logits[-1].float().log_softmax(-1), atol=2e-2, rtol=1e-2
    )
    expected = model.logits((trace.final[-1:] - written).float())[0].log_softmax(-1)
    torch.testing.assert_close(after, expected, atol=5e-2, rtol=2e-2)


def test_layers_are_spread_and_kinds_are_known() -> None:
    assert spread(4) == (0, 1, 2, 3)
    assert spread(30)[0] == 0
    assert spread(30)[-1] == 29
    assert len(spread(30)) == 9
    assert len(own_text()) > 5000
    with pytest.raises(lx.LexrayError, match="nothing is known of bias; kinds are key"):
        ground(lx.Model.from_pretrained("demo"), kinds=["bias"])
