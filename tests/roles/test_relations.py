"""Relations of heads: against dense float64 rows, and planted in models of every family."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.result.charts.series import Heat
from lexray.roles import hits
from lexray.roles.relation import Relation
from lexray.roles.scores import Relations
from lexray.space.space import space_of
from tests.dense import NAMES as DENSE
from tests.dense import Dense, dense
from tests.families.span import spanning
from tests.families.zoo import build
from tests.roles.planting import fresh, reopened, solve, write_head
from tests.vocabulary.vocabularies import worded

LETTERS = "abcdefghijklmnopqrstu"
PAIRS = tuple(zip("abcdefghijkl", "bdfhjlnprtmk", strict=True))
PLANTED = Relation("planted", PAIRS, k=3)
OTHER = Relation("other", tuple(zip("mnopqrstu", "utsrqponm", strict=True)), k=2)


@cache
def opened(name: str) -> Model:
    return worded(name)


@cache
def reference(name: str) -> Dense:
    return dense(build(name))


def ids(model: Model, words: list[str]) -> list[int]:
    return [model.vocabulary.id(word) for word in words]


def dense_hits(scores: Tensor, sources: list[int], targets: list[int], k: int) -> Tensor:
    """Which sources' own targets have fewer than k tokens above them."""
    rows = scores[sources]
    own = rows.gather(1, torch.tensor(targets)[:, None])
    return (rows > own + 1e-9 * rows.abs().max()).sum(1) < k


@pytest.mark.parametrize(
    "view", [{}, {"folded": True}, {"centred": True, "calibrated": True}], ids=str
)
@pytest.mark.parametrize("name", DENSE)
def test_hits_are_those_of_the_dense_rows(
    name: str, view: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hits, "SCREEN", 5)  # else everything would pass through it
    monkeypatch.setattr(hits, "FEW", 100 if view else 0)  # both ways of multiplying
    model = opened(name).view(**view)
    found = model.relations([PLANTED, OTHER], shuffled=100)
    for relation in (PLANTED, OTHER):
        sources, targets = (ids(model, [p[i] for p in relation.pairs]) for i in (0, 1))
        right = found.of(relation.name).right
        for h, (layer, head) in enumerate(found.places):
            scores = reference(name).vo(layer, head, **view)
            for s, sign in enumerate((1, -1)):
                expected = dense_hits(sign * scores, sources, targets, relation.k)
                assert right[s, h].tolist() == expected.tolist()


def codes(n: int, r: int) -> Tensor:
    """n directions of r dimensions, far from one another."""
    generator = torch.Generator().manual_seed(3)
    best = max(
        (torch.randn(n, r, generator=generator) for _ in range(300)),
        key=lambda U: (
            -float((U @ U.T / U.norm(dim=1).outer(U.norm(dim=1))).fill_diagonal_(-1).max())
        ),
    )
    return best / best.norm(dim=1, keepdim=True)


def plant(model: Model, layer: int, head: int) -> None:
    """A head that maps the sources of `PLANTED` to its targets, under the model's view."""
    space = space_of(model, layer)
    sources, targets = (ids(model, [p[i] for p in PAIRS]) for i in (0, 1))
    E_s, E_t = (
        torch.cat(list(space.whole(kind).only(torch.tensor(at)).columns())).double()
        for kind, at in (("V", sources), ("O", targets))
    )
    U = codes(len(PAIRS), model.head(f"L{layer}H{head}").W_V.shape[1]).double()
    O = (torch.linalg.pinv(E_t) @ U).T  # noqa: E741
    solve(model, layer, head, "V", E_s, U)
    write_head(model, layer, head, O=O * 0.5 / O.std())


@spanning
def test_a_planted_relation_comes_first(name: str) -> None:
    model = fresh(name)
    before = model.relations([PLANTED, OTHER], shuffled=200)
    assert min(float(tested.q.min()) for tested in before.tested) > 0.01
    layer, head = model.architecture.own_layers[-1], 1
    if layer == 0 and model.architecture.projects_last:
        pytest.skip("what enters its one layer is as narrow as the embedding: too narrow for all")
    plant(model, layer, head)
    found = reopened(model).relations([PLANTED, OTHER], shuffled=200)
    best, second = found.best("planted", 2)
    assert (best.address, best.sign) == (f"L{layer}H{head}", 1)
    assert best.q < 0.01 < second.q
    assert best.share > 0.5 > second.share
    assert best.chance < 0.3
    assert {*best.right, *best.wrong} == {*PAIRS}
    assert [score.address for score in found.at(best.address)] == [best.address]
    assert float(found.of("other").q.min()) > 0.01


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "qwen2-moe", "phi", "bert", "olmo2"])
def test_suppression_is_the_other_sign(name: str) -> None:
    model = fresh(name)
    layer = model.n_layers - 1
    plant(model, layer, 0)
    write_head(model, layer, 0, O=-model.head(f"L{layer}H0").W_O)
    (best,) = reopened(model).relations(PLANTED, shuffled=200).best("planted", 1)
    assert (best.address, best.sign) == (f"L{layer}H0", -1)
    assert best.q < 0.01


@pytest.mark.parametrize("name", ["llama", "gemma", "olmo"])
def test_planted_for_what_the_first_block_makes_of_tokens(name: str) -> None:
    """Through the effective embedding it is found, through the stored one it is not."""
    model = fresh(name).view(reading="effective")
    layer = model.n_layers - 1
    plant(model, layer, 2)
    again = reopened(model)
    (best,) = again.relations(PLANTED, shuffled=200).best("planted", 1)
    assert (best.address, best.sign) == (f"L{layer}H2", 1)
    assert best.q < 0.01
    through_E = again.view(reading="output").relations(PLANTED, shuffled=200)
    assert float(through_E.of("planted").q.min()) > 0.01


def test_words_in_pieces_are_counted_by_themselves() -> None:
    model = opened("llama")
    pairs = (*PAIRS[:4], ("cab", "ad"), ("bad", "fa"), ("a", "bb"))
    found = model.relations(Relation("mixed", pairs, k=2), shuffled=100)
    tested = found.of("mixed")
    assert tested.words == PAIRS[:4]
    assert tested.n_pieces == 3
    assert tested.pieces is not None
    direct = model.relations(
        Relation("pieces", (("b", "a"), ("d", "f"), ("a", "b")), k=2), shuffled=100
    ).of("pieces")
    np.testing.assert_allclose(tested.pieces, direct.share)
    only = model.relations(Relation("only", (("cab", "ad"), ("bad", "fa"))), shuffled=100)
    assert not only.of("only").whole
    assert "pieces of words only: only" in str(only)


def test_what_cannot_be_tested_is_said() -> None:
    model = opened("llama")
    odd = Relation("odd", (("日本", "東京"), ("中国", "北京")))
    found = model.relations([PLANTED, odd], shuffled=100)
    assert found.left_out == ("odd",)
    assert "odd" in str(found)
    with pytest.raises(LexrayError, match="no two pairs"):
        model.relations(odd, shuffled=100)
    with pytest.raises(LexrayError, match="planted"):
        found.of("capital")
    with pytest.raises(LexrayError, match="at least 100"):
        model.relations(PLANTED, shuffled=10)


def shown() -> Relations:
    model = fresh("llama")
    plant(model, 1, 1)
    return reopened(model).relations([PLANTED, OTHER], shuffled=100)


def test_how_it_is_shown() -> None:
    found = shown()
    assert "a→b" in str(found)
    assert "L1H1" in found._repr_html_()
    frame = found.to_pandas()
    assert len(frame) == 2 * 2 * 8
    assert frame.sort_values("share").iloc[-1]["address"] == "L1H1"
    data = found.to_dict()
    assert data["relations"]["planted"]["best"][0]["address"] == "L1H1"
    assert found.share("planted").shape == (2, 4)
    drawn = found.plot()
    assert [panel.title for panel in drawn.panels] == ["planted", "other"]
    (heat,) = drawn.panels[0].series
    assert isinstance(heat, Heat)
    assert heat.z[1][1] == found.best("planted", 1)[0].share
    assert "planted" in drawn.to_svg()
