"""Nearest parameters by their first words, against dense float64 lists of every token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.find import likeness, nearest
from tests.dense import Kind
from tests.find.test_prominence import AMONG, expected, opened, reference

FOLDED = {"folded": True}


def dense_likeness(x: Tensor, y: Tensor, first: int) -> float:
    """By the formula, with the end of y that is more like x."""
    found = {}
    for sign in (1, -1):
        of_x, of_y = x.topk(first).indices, (sign * y).topk(first).indices
        shared = (sign * y)[of_x].mean() + x[of_y].mean()
        found[sign] = float(shared / (x[of_x].mean() + (sign * y)[of_y].mean()))
    return found[1] if found[1] >= found[-1] else -found[-1]


@pytest.mark.parametrize("first", [4, 7])
@pytest.mark.parametrize(
    ("name", "address", "kind"),
    [
        ("gpt2-untied-wide", "L1N5.value", "value"),
        ("llama", "L0N7.gate", "gate"),
        ("gemma2", "L1H2.K3", "K"),
        ("qwen2-moe", "L0E3N2.key", "key"),
        ("opt-350m", "L0H1.O4", "O"),
    ],
)
def test_nearest_have_each_others_first_words(
    name: str, address: str, kind: Kind, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likeness, "SHARE", 37 // first)
    monkeypatch.setattr(nearest, "CANDIDATES", 9999)
    x = expected(name, kind, FOLDED)[address]
    score = {
        other: dense_likeness(x, y, first)
        for each in AMONG.values()
        if reference(name).vectors(each, False)
        for other, y in expected(name, each, FOLDED).items()
        if other != address
    }
    best = sorted(score, key=lambda other: -abs(score[other]))
    found = opened(name).view(folded=True, standardised=True).nearest(address, 6)
    assert found.score == "likeness"
    assert [hit.address for hit in found] == best[:6]
    for hit in found:
        assert hit.score == pytest.approx(score[hit.address], rel=2e-3, abs=2e-3)
        assert hit.negative == (score[hit.address] < 0)


def test_only_those_that_give_most_to_the_words_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten candidates: the lists in which the four words stand out most."""
    monkeypatch.setattr(nearest, "CANDIDATES", 10)
    lists = expected("llama", "value", FOLDED)
    words = lists["L0N3.value"].topk(4).indices
    most = sorted(lists, key=lambda address: -abs(float(lists[address][words].mean())))[:10]
    found = opened("llama").view(folded=True, standardised=True)
    hits = found.nearest("L0N3.value", 9, among=["values"])
    assert {hit.address for hit in hits} == set(most) - {"L0N3.value"}


def test_itself_is_alike_by_one_and_nothing_more() -> None:
    model: Any = opened("llama").view(folded=True, standardised=True)
    target = model.vector("L1N3.value")
    like = likeness.Likeness.to(target.space, "value", target.tensor)
    X = torch.cat([group.tensor for group in model.groups("value")])
    found = like.of(target.space, "value", X)
    assert float(found.abs().max()) == pytest.approx(1, abs=1e-5)
    assert like.of(target.space, "value", target.tensor[None]).tolist() == pytest.approx([1])


def test_what_answers_negated_shows_its_bottom() -> None:
    model = opened("llama").view(folded=True, standardised=True)
    hits = model.nearest("L0N3.value", 39, among=["values"])
    shown = {hit.address: (hit.negative, hit.tokens) for hit in hits}
    assert {negative for negative, _ in shown.values()} == {True, False}
    for address, (negative, tokens) in shown.items():
        reading = model.vector(address).top(10)
        end = reading.bottom if negative else reading.top
        assert tokens == " ".join(scored.token.shown for scored in end)
    assert "top tokens" not in str(hits)
