"""Lookup, related neurons and nearest parameters against plain float64 loops and Python sets."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.space.side import Side
from tests.dense import Dense, Kind, dense
from tests.families.zoo import build
from tests.vocabulary.vocabularies import vocabulary, worded

AMONG: dict[str, Kind] = {
    "values": "value",
    "keys": "key",
    "gates": "gate",
    "Q": "Q",
    "K": "K",
    "V": "V",
    "O": "O",
}
MODELS = ["gpt2-untied-wide", "llama", "gemma2", "qwen2-moe", "opt-350m"]
VIEWS: list[dict[str, Any]] = [
    {},
    {"folded": True},
    {"calibrated": True},
    {"folded": True, "inverse": "pinv", "reading": "input"},
]


@cache
def opened(name: str) -> Model:
    return worded(name)


@cache
def reference(name: str) -> Dense:
    return dense(build(name))


# ---------------------------------------------------------------------- lookup


def expected_scores(name: str, kind: Kind, ids: list[int], by: str, view: dict[str, Any]) -> Any:
    """By address: the product with the mean of the seeds' centred embeddings."""
    r = reference(name)
    seed = r.columns(kind, **(view | {"centred": True}))[:, ids].mean(1)
    scores = {}
    for address, x in r.vectors(kind, view.get("folded", False)).items():
        score = float(x @ seed)
        scores[address] = score / float(x.norm() * seed.norm()) if by == "cosine" else score
    return scores


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("by", ["dot", "cosine"])
@pytest.mark.parametrize("name", MODELS)
def test_lookup_ranks_by_the_mean_centred_embedding(
    name: str, by: Any, view: dict[str, Any]
) -> None:
    model = opened(name).view(**view)
    for among in ("values", "keys" if by == "dot" else "V"):
        expected = expected_scores(name, AMONG[among], [0, 5, 14], by, view)
        best = sorted(expected, key=lambda address: -expected[address])
        answer = model.lookup(["law", " walk", 14], among, by=by)
        hits = answer.top(4, tokens=3)
        assert [hit.address for hit in hits] == best[:4]
        for hit in hits:
            assert hit.score == pytest.approx(expected[hit.address], rel=1e-3, abs=1e-5)
            alone = model[hit.address].top(3)
            assert hit.reading.tokens == alone.tokens
            assert hit.reading.source == alone.source
    assert answer.rank(best[3]) == 3
    assert answer.rank(best[-1]) == len(best) - 1 == len(answer.scores) - 1


def test_lookup_in_every_group() -> None:
    for among in AMONG:
        hits = opened("llama").lookup(["law"], among, by="dot").top(2)
        expected = expected_scores("llama", AMONG[among], [0], "dot", {})
        assert hits[0].address == max(expected, key=lambda a: expected[a])


def test_ranks_by_the_short_address() -> None:
    model = opened("llama")
    answer = model.lookup(["law"], "keys", by="dot")
    assert answer.rank("L1N0") == answer.rank("L1N0.key") == answer.rank("l1n0")
    assert len({answer.rank(f"L0N{i}") for i in range(9)}) == 9
    heads = model.lookup(["law"], "K", by="dot")
    assert heads.rank("L0H1.K3") == heads.rank("L0H0.K3"), "two queries share these keys"
    assert heads.rank("L0H2.K3") != heads.rank("L0H0.K3")
    for wrong in ("L1N99", "L1N0.value"):
        with pytest.raises(LexrayError, match=f"{wrong} is not among the keys"):
            answer.rank(wrong)
    with pytest.raises(LexrayError, match="not among the K"):
        heads.rank("L0H1")


def test_seeds_fall_back_to_the_start_of_a_word() -> None:
    model = opened("gpt2-untied-wide")
    (word,) = model.lookup(["walk"]).words
    assert (word.id, word.shown) == (5, "·walk")
    (word,) = model.lookup(["law"]).words
    assert word.id == 0, "the token itself comes first"
    assert [w.id for w in model.lookup("city").words] == [14], "one word need not be a list"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["law", "bad"], r"'bad' is 3 tokens, b \(\d+\) \+ a \(\d+\) \+ d"),
        (["·cab"], "'·cab' is 4 tokens"),
        (["WALK"], r"'WALK' is not a token.*near it: ·walk"),
        ([99], "no token 99"),
        ([], "at least one word"),
    ],
)
def test_words_that_are_no_token_are_explained(words: list[Any], message: str) -> None:
    with pytest.raises(LexrayError, match=message):
        opened("llama").lookup(words)


def test_other_mistakes_of_lookup() -> None:
    model: Any = opened("gpt2-untied-wide")
    with pytest.raises(
        LexrayError, match="no group 'neurons' of parameters; there are values, keys"
    ):
        model.lookup(["law"], "neurons")
    with pytest.raises(LexrayError, match="has no gates"):
        model.lookup(["law"], "gates")
    for k in (0, -1):
        with pytest.raises(LexrayError, match=f"top {k} parameters"):
            model.lookup(["law"]).top(k)
    larger = worded("gpt2", extra=("Ġadded",))
    with pytest.raises(LexrayError, match="no row in the embedding"):
        larger.lookup([" added"])
    assert len(model.lookup(["law"]).top(9999, tokens=1)) == 2 * 31


def test_tokens_without_embedding_and_embeddings_without_token() -> None:
    """μ is the mean over the tokens, whatever else lies in the embedding."""
    model = worded("llama", 20)
    E = reference("llama").E_out
    seed = E[:, 3] - E[:, :20].mean(1)
    values = reference("llama").vectors("value", False)
    best = max(values, key=lambda address: float(values[address] @ seed))
    assert model.lookup([3], by="dot").top(1)[0].address == best


def test_zero_vectors_have_no_cosine() -> None:
    module = deepcopy(build("gpt2"))
    with torch.no_grad():
        module.get_parameter("transformer.h.0.mlp.c_proj.weight")[3] = 0
    hits = Model.from_module(module).view("raw").lookup([3], by="cosine").top(9999, tokens=1)
    scores = {hit.address: hit.score for hit in hits}
    assert scores["L0N3.value"] == 0
    assert all(abs(score) <= 1.001 for score in scores.values())


# ---------------------------------------------------------------------- related


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize(
    ("name", "read"), [("gpt2-untied-wide", "key"), ("llama", "gate"), ("qwen2-moe", "key")]
)
def test_related_neurons_share_tokens(name: str, read: Any, view: dict[str, Any]) -> None:
    r, k = reference(name), 6
    folded = view.get("folded", False)
    keys, values = r.vectors(read, folded), r.vectors("value", folded)
    reading, writing = r.columns(read, **view), r.columns("value", **view)
    expected = {}
    for (address, x), y in zip(keys.items(), values.values(), strict=True):
        a = (x @ reading).argsort(descending=True)[:k].tolist()
        b = set((y @ writing).argsort(descending=True)[:k].tolist())
        if len(set(a) & b) / k >= 1 / 3:
            expected[address.rpartition(".")[0]] = [t for t in a if t in b]
    found = opened(name).view(**view).related(k, 1 / 3, read=read)
    assert {n.address: [t.id for t in n.tokens] for n in found.neurons} == expected
    assert found.n_neurons == len(keys)
    assert found.share == pytest.approx(len(expected) / len(keys))
    for n in found.neurons:
        assert (n.shared, n.overlap) == (len(n.tokens), len(n.tokens) / k)
        assert n.jaccard == pytest.approx(n.shared / (2 * k - n.shared))
    shared = [n.shared for n in found.neurons]
    assert shared == sorted(shared, reverse=True)


def test_the_standard_view_relates_what_neurons_read_as() -> None:
    """Less the mean of their kind, and in the first layer through the embedding that it reads."""
    model, k = worded("llama").view("standard"), 6
    found = {n.address: [t.id for t in n.tokens] for n in model.related(k, 1 / k).neurons}
    expected = {}
    for layer in model.layers:
        for key, value in zip(layer.groups("key")[0], layer.groups("value")[0], strict=True):
            a, b = ([scored.token.id for scored in x.top(k).top] for x in (key, value))
            if common := [t for t in a if t in b]:
                expected[key.address.rpartition(".")[0]] = common
    assert {address[:2] for address in expected} == {"L0", "L1"}
    assert found == expected


def test_an_overlap_that_floats_cannot_hold() -> None:
    """0.07 · 100 is more than 7 in floats: 7 of 100 must count as 7 %."""
    assert 0.07 * 100 > 7
    model = worded("gpt2-untied-wide")
    everything = model.related(10, 0.0)
    assert len(everything) == everything.n_neurons
    for tenths in range(1, 10):
        found = model.related(10, tenths / 10)
        assert len(found) == sum(n.shared >= tenths for n in everything.neurons)
        found = model.related(10, tenths * 0.1)  # 3 · 0.1 is more than 0.3
        assert len(found) <= sum(n.shared >= tenths for n in everything.neurons)


def test_lists_longer_than_the_vocabulary_share_everything() -> None:
    found = opened("llama").related(1000, 1.0)
    assert len(found) == 40
    assert {n.overlap for n in found.neurons} == {n.jaccard for n in found.neurons} == {1.0}


def test_mistakes_of_related() -> None:
    model: Any = opened("gpt2-untied-wide")
    with pytest.raises(LexrayError, match="has no gates"):
        model.related(read="gate")
    with pytest.raises(LexrayError, match="at least 1"):
        model.related(0)


# ---------------------------------------------------------------------- nearest


def correlations(name: str, address: str, kind: Kind, view: dict[str, Any]) -> dict[str, float]:
    """np.corrcoef of dense projections with every vector of the model."""
    r, folded = reference(name), view.get("folded", False)
    x = (r.vectors(kind, folded)[address] @ r.columns(kind, **view)).numpy()
    found = {}
    for each in AMONG.values():
        if vectors := r.vectors(each, folded):
            projected = (torch.stack(list(vectors.values())) @ r.columns(each, **view)).numpy()
            found |= dict(zip(vectors, np.corrcoef(x, projected)[0, 1:], strict=True))
    return {other: value for other, value in found.items() if other != address}


@pytest.mark.parametrize("view", [*VIEWS, {"centred": True, "inverse": "pinv"}], ids=str)
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
def test_nearest_by_correlation_of_projections(
    name: str, address: str, kind: Kind, view: dict[str, Any]
) -> None:
    expected = correlations(name, address, kind, view)
    found = opened(name).view(**view).nearest(address, 6)
    order = sorted(expected, key=lambda a: -abs(expected[a]))
    assert [hit.address for hit in found] == order[:6]
    for hit in found:
        assert hit.score == pytest.approx(expected[hit.address], abs=2e-4)
    assert found.source.address == address


def test_nearest_among_some_groups() -> None:
    found = opened("llama").nearest("L0N7.gate", 3, among=["values", "O"])
    assert all(hit.reading.name in ("value", "O") for hit in found)
    assert found.facts["among"] == ["values", "O"]
    assert len(opened("llama").nearest("L0N7.gate", 999, among=["gates"])) == 39
    assert found.to_dict()["gate"]["top"]


def test_a_shared_key_is_not_its_own_neighbour() -> None:
    """Heads 0 and 1 of this model have the same keys, listed under head 0."""
    found = opened("llama").nearest("L0H1.K3", 5)
    assert "L0H0.K3" not in [hit.address for hit in found]
    again = opened("llama").nearest("L0H0.K3", 5)
    assert [hit.address for hit in found] == [hit.address for hit in again]


def test_biases_and_norms_have_neighbours() -> None:
    found = opened("gpt2-untied-wide").nearest("L0.b_out", 3)
    r = reference("gpt2-untied-wide")
    bias = build("gpt2-untied-wide").get_parameter("transformer.h.0.mlp.c_proj.bias")
    x = (bias.detach().double() @ r.E_out).numpy()
    best = found[0]
    kind: Any = best.reading.name
    y: Tensor = r.vectors(kind, False)[best.address]
    assert best.score == pytest.approx(np.corrcoef(x, (y @ r.E_out).numpy())[0, 1], abs=1e-4)


def test_only_tokens_count() -> None:
    """Rows of the embedding without a token (20–36 here) play no part in correlations."""
    model = worded("llama", 20)
    r = reference("llama")
    E, values = r.E_out[:, :20], r.vectors("value", False)
    x = (values["L0N3.value"] @ E).numpy()
    expected = {a: np.corrcoef(x, (y @ E).numpy())[0, 1] for a, y in values.items()}
    found = model.nearest("L0N3.value", 4, among=["values"])
    order = sorted(expected, key=lambda a: -abs(expected[a]))
    assert [hit.address for hit in found] == order[1:5]


def test_mistakes_of_nearest() -> None:
    model = opened("gpt2-untied-wide")
    for address in ("L0N3", "L0H1", "L0H1.VO", "L0"):
        with pytest.raises(LexrayError, match=f"{address} is no single vector; try"):
            model.nearest(address)
    with pytest.raises(LexrayError, match="is no address"):
        model.nearest("value 3")
    with pytest.raises(LexrayError, match="no group 'heads'"):
        model.nearest("L0N3.key", among=["heads"])
    with pytest.raises(LexrayError, match="has no gates"):
        model.nearest("L0N3.key", among=["gates"])
    with pytest.raises(LexrayError, match="at least 1"):
        model.nearest("L0N3.key", 0)


def test_nothing_is_near_a_vector_of_zeros() -> None:
    module = deepcopy(build("gpt2"))
    with torch.no_grad():
        module.get_parameter("transformer.h.0.attn.c_proj.bias").zero_()
    model = Model.from_module(module).view("raw")
    with pytest.raises(LexrayError, match=r"L0\.b_O is zero everywhere"):
        model.nearest("L0.b_O")
    assert model["L0.b_O"].top(3).top[0].score == 0


def test_the_vocabulary_of_these_tests() -> None:
    assert [vocabulary().shown(i) for i in (1, 8, 11, 13)] == ["·law", "<script>", "↵", "\\xf0"]


def test_many_hits_are_read_group_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one by one; the embedding is gone through once, not once for each hit."""
    found = opened("llama").lookup([3], "values", by="dot")
    asked: list[int] = []
    plain = Side.top

    def counted(side: Side, X: Tensor, *rest: Any) -> Any:
        asked.append(len(X))
        return plain(side, X, *rest)

    monkeypatch.setattr(Side, "top", counted)
    hits = found.top(40, tokens=3)
    assert sum(asked) == 40
    assert len(asked) == 1, "both layers are read with one side"
    for hit in list(hits)[::7]:
        alone = opened("llama").vector(hit.address).top(3)
        assert hit.reading.tokens == alone.tokens
        assert hit.reading.top[0].score == pytest.approx(alone.top[0].score, rel=1e-5)
