"""Lookup by standardised scores against dense float64 lists: every token of every parameter."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.space.effective import effective_rows
from tests.dense import Dense, Kind, dense
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

MODELS = ["gpt2-untied-wide", "llama", "gemma2", "qwen2-moe", "opt-350m"]
AMONG: dict[str, Kind] = {
    "values": "value",
    "keys": "key",
    "gates": "gate",
    "Q": "Q",
    "K": "K",
    "V": "V",
    "O": "O",
}
CENTRED = ("key", "gate")
VIEWS: list[dict[str, Any]] = [{}, {"folded": True}, {"folded": True, "reading": "input"}]


@cache
def opened(name: str) -> Model:
    return worded(name)


@cache
def reference(name: str) -> Dense:
    return dense(build(name))


def lists(X: Tensor, E: Tensor, kind: str) -> Tensor:
    """z: every vector's scores, standardised by token over all vectors of the kind."""
    mean = X.mean(0) if kind in CENTRED else torch.zeros_like(X[0])
    scores = X @ E
    spread = ((scores - mean @ E).square().mean(0)).sqrt()
    return (scores - mean @ E) / spread


def expected(name: str, kind: Kind, view: dict[str, Any], n: int = 37) -> dict[str, Tensor]:
    """By address: the list, standardised along itself over the first n tokens."""
    r = reference(name)
    vectors = r.vectors(kind, view.get("folded", False))
    z = lists(torch.stack(list(vectors.values())), r.columns(kind, **view)[:, :n], kind)
    s = (z - z.mean(1, keepdim=True)) / z.std(1, correction=0, keepdim=True)
    return dict(zip(vectors, s, strict=True))


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("among", AMONG)
@pytest.mark.parametrize("name", MODELS)
def test_scores_are_standardised_by_token_and_along_the_list(
    name: str, among: str, view: dict[str, Any]
) -> None:
    kind = AMONG[among]
    if not reference(name).vectors(kind, False):
        pytest.skip("not gated")
    lists_by_address = expected(name, kind, view)
    score = {address: float(s[[0, 5, 14]].mean()) for address, s in lists_by_address.items()}
    best = sorted(score, key=lambda address: -score[address])
    found = opened(name).view(**view).lookup(["law", " walk", 14], among)
    assert len(found.scores) == len(score)
    hits = found.top(5, tokens=3)
    assert [hit.address for hit in hits] == best[:5]
    for hit in hits:
        assert hit.score == pytest.approx(score[hit.address], rel=2e-3, abs=2e-3)
    assert found.rank(best[7]) == 7


@pytest.mark.parametrize("among", ["values", "keys", "V"])
@pytest.mark.parametrize("name", ["gpt2-untied-wide", "llama"])
def test_ranks_are_places_in_the_list_that_is_shown(name: str, among: str) -> None:
    kind = AMONG[among]
    model = opened(name).view(folded=True, standardised=True)
    listed = expected(name, kind, {"folded": True})
    for hit in model.lookup(["law", " walk"], among).top(6, tokens=37):
        order = listed[hit.address].argsort(descending=True).tolist()
        assert hit.ranks == (order.index(0) + 1, order.index(5) + 1)
        shown = [scored.token.id for scored in hit.reading.top]
        assert [shown.index(0) + 1, shown.index(5) + 1] == list(hit.ranks)


def test_ranks_follow_the_view_and_the_filter() -> None:
    """Read raw, a word's rank is its place in the raw list; filtered, among what is left."""
    from lexray.vocabulary import filters

    model, r = opened("llama"), reference("llama")
    some = filters.among(["law", " walk", "city", " cities"])
    for hit in model.lookup([5]).top(4):
        raw = (r.vectors("value", False)[hit.address] @ r.E_out).argsort(descending=True).tolist()
        assert hit.ranks == (raw.index(5) + 1,)
    for hit in model.lookup([5]).top(4, filter=some):
        shown = [scored.token.id for scored in hit.reading.top]
        assert hit.ranks == (shown.index(5) + 1,)


def test_only_listed_tokens_count() -> None:
    """Mean and spread of a list are those of the 20 tokens it may show."""
    score = {a: float(s[3]) for a, s in expected("llama", "value", {}, 20).items()}
    hits = worded("llama", 20).lookup([3]).top(3)
    best = sorted(score, key=lambda address: -score[address])
    assert [hit.address for hit in hits] == best[:3]
    assert hits[0].score == pytest.approx(score[best[0]], rel=2e-3)


def test_the_standard_view_searches_what_readers_see() -> None:
    """Layer 0 through tokens as they enter, the other through what block 0 makes of them."""
    model = opened("llama").view("standard", trained=False)
    vectors = reference("llama").vectors("gate", True)
    parts = {}
    for layer in (0, 1):
        rows, note = effective_rows(model, first=layer == 0)
        assert rows is not None
        assert not note
        mine = {a: x for a, x in vectors.items() if a.startswith(f"L{layer}")}
        X = torch.stack(list((mine if layer == 0 else vectors).values()))
        z = lists(X, rows.double().T, "gate")
        z = z if layer == 0 else z[len(vectors) - len(mine) :]
        s = (z - z.mean(1, keepdim=True)) / z.std(1, correction=0, keepdim=True)
        parts |= {a: float(row[5]) for a, row in zip(mine, s, strict=True)}
    best = sorted(parts, key=lambda address: -parts[address])
    hits = model.lookup([5], "gates").top(6)
    assert [hit.address for hit in hits] == best[:6]
    assert hits[0].score == pytest.approx(parts[best[0]], rel=5e-3)


@pytest.mark.parametrize("name", ["gpt2-untied-wide", "gemma2"])
def test_what_promotes_and_what_suppresses(name: str) -> None:
    view = {"folded": True}
    model = opened(name).view(**view, standardised=True)
    both = expected(name, "value", view) | expected(name, "O", view)
    score = {address: float(s[5]) for address, s in both.items()}
    order = sorted(score, key=lambda address: -score[address])
    up, down = model.promotes(" walk"), model.suppresses(" walk")
    assert [hit.address for hit in up.top(5)] == order[:5]
    assert [hit.address for hit in down.top(5)] == order[::-1][:5]
    assert down.rank(order[-1]) == 0
    assert up.rank(order[-1]) == len(order) - 1
    worst = down.top(1, tokens=37)[0]
    listed = both[worst.address].argsort().tolist()
    assert worst.ranks == (listed.index(5) + 1,)
    assert worst.tokens.split() == [model.space.token(i).shown for i in listed]
    assert "push down ·walk" in str(down.top(1))
    assert "bottom tokens" in str(down.top(1))
    assert [hit.address for hit in model.promotes([5, 0], "values").top(3)] == sorted(
        (a for a in score if a.endswith("value")), key=lambda a: -float(both[a][[5, 0]].mean())
    )[:3]


def test_a_vector_that_is_the_usual_one_stands_nowhere() -> None:
    """A list without spread has no outliers: 0, not an infinite score."""
    module = deepcopy(build("gpt2"))
    with torch.no_grad():
        for n in range(2):
            W = module.get_parameter(f"transformer.h.{n}.mlp.c_proj.weight")
            W[:] = torch.cat([W[:1], -W[:1], torch.zeros_like(W[2:])])
    model = Model.from_module(module).view("raw")
    found = model.lookup([3])
    scores = dict(zip([f"L0N{i}" for i in range(31)], found.scores.tolist(), strict=False))
    assert scores["L0N5"] == 0
    assert found.scores.isfinite().all()
    assert scores["L0N0"] == pytest.approx(-scores["L0N1"], rel=1e-3) != 0


def test_results_tell_the_ranks() -> None:
    hits = opened("llama").lookup(["law", " walk"]).top(2)
    (table,) = hits.tables()
    assert table.columns == (
        "address",
        "standard score",
        "rank of law ·walk",
        "top tokens",
        "legibility",
    )
    assert hits.to_dict()["hits"][0]["ranks"] == list(hits[0].ranks)
    assert hits.to_dict()["by"] == "standard"
    assert "rank of ·walk" in hits.to_csv().splitlines()[0]


def test_mistakes() -> None:
    model: Any = opened("gpt2-untied-wide")
    with pytest.raises(LexrayError, match="lookup among nothing"):
        model.lookup(["law"], ())
    with pytest.raises(LexrayError, match="no gates"):
        model.lookup(["law"], "gates")
    assert {hit.reading.name for hit in model.lookup(["law"], ["values", "gates"]).top(99)} == {
        "value"
    }
