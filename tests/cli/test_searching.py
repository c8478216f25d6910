"""A long search on the terminal: shown as it stands, taken as it stands."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lexray.cli.searching import describe, searching
from lexray.cli.signals import INTERRUPTED
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.progress import watch
from lexray.result.pairs import Pairs
from lexray.space.topk import scan
from tests.cli.running import answer, lexray, mistake


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches are asked before every tile whether to go on."""
    monkeypatch.setattr(scan, "_LOOK_EVERY", 0.0)


@pytest.fixture
def found(llama: Path) -> Pairs:
    return Model.from_pretrained(llama)["L1H0"].vo.top(5)


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_a_budget_is_kept_and_said(llama: Path) -> None:
    early = answer("head", llama, "L1H0", "-k", 5, "--budget", 0)
    exact = answer("head", llama, "L1H0", "-k", 5)
    assert early["limit"] >= exact["pairs"][0]["score"]
    assert early["sure"] == 0
    assert "limit" not in exact
    table = lexray("head", llama, "L1H0", "-k", 5, "--budget", 0, "--format", "table").out
    assert "ended early: no other pair is above" in " ".join(table.split())


def test_enough_time_is_exact(llama: Path) -> None:
    assert answer("head", llama, "L1H0", "--budget", 600) == answer("head", llama, "L1H0")


def test_what_makes_no_sense(llama: Path) -> None:
    assert "--budget is for pairs" in mistake("head", llama, "L1H0", "--of", "law", "--budget", 1)
    assert "greater than or equal to 0" in mistake("head", llama, "L1H0", "--budget", "-1")
    with pytest.raises(LexrayError, match="must be 0 or more"):
        Model.from_pretrained(llama)["L1H0"].vo.top(5, budget=float("nan"))


def test_control_c_takes_the_list_as_it_stands(found: Pairs) -> None:
    before = signal.getsignal(signal.SIGINT)
    with searching() as search:
        assert watch(0.1, lambda: found)
        signal.raise_signal(signal.SIGINT)
        assert search.interrupted
        assert not watch(0.2, lambda: found)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert watch(0.3, lambda: found)


@pytest.mark.usefixtures("often")
def test_an_interrupted_command_prints_and_says_so(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(done: float, standing: object) -> bool:
        signal.raise_signal(signal.SIGINT)
        return real(done, standing)  # type: ignore[arg-type]

    from lexray.model import circuits

    real = circuits.watch
    monkeypatch.setattr(circuits, "watch", interrupt)
    ran = lexray("head", llama, "L1H0", "-k", 3, "--format", "json")
    assert ran.code == INTERRUPTED
    assert ran.json["sure"] == 0
    assert len(ran.json["pairs"]) == 3


def test_what_is_shown(found: Pairs) -> None:
    text = describe(0.25, 10.0, found)
    assert text.startswith("L1H0.VO: 25% searched, at most 30 s left; 5 of 5 sure")
    assert text.count("\n") == 5
    assert found.pairs[0].row.shown in text
