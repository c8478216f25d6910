"""Partners of single heads and neurons: against dense matrices, and on twins."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import lexray as lx
from lexray import filters
from lexray.compare.align import partners as module
from lexray.compare.align.partners import partners
from lexray.errors import LexrayError
from lexray.model.model import Model
from tests import dense
from tests.compare.twins import LAYERS, distinct, opened, twin
from tests.families.zoo import build
from tests.space.test_correlation import pearson

NORMED = ("qwen3", "olmo2", "gemma3")
"""Their queries and keys are normed, which a product of matrices does not know."""


@cache
def model(name: str) -> Model:
    return opened(build(name))


@cache
def reference(name: str) -> dense.Dense:
    return dense.dense(build(name))


def alike(M: Tensor, N: Tensor) -> float:
    """The cosine of two e×e matrices after the mean of every row and column is taken away."""
    both = [X - X.mean(0, keepdim=True) - X.mean(1, keepdim=True) + X.mean() for X in (M, N)]
    return float((both[0] * both[1]).sum() / (both[0].norm() * both[1].norm()))


@pytest.mark.parametrize(
    ("a", "b", "view"),
    [
        ("gpt2", "llama", {"folded": True}),
        ("llama", "cohere2", {"offset": -3}),
        ("bert", "qwen3", {}),
        ("opt-350m", "mixtral", {"offset": -1, "folded": True}),
    ],
)
def test_heads_against_dense_matrices(a: str, b: str, view: dict[str, Any]) -> None:
    one, other = model(a).view(**view), model(b).view(**view)
    for matrix in ("VO", "QK"):
        if matrix == "QK" and {a, b} & set(NORMED):
            continue
        found = partners(one, f"L1H2.{matrix}", other, 1000, tokens=1)
        M = getattr(reference(a), matrix.lower())(1, 2, **view)
        assert len(found) == sum(len(layer.heads) for layer in other.layers)
        for partner in found:
            at = lx.Address.parse(partner.address)
            N = getattr(reference(b), matrix.lower())(at.layer, at.head, **view)
            (part,) = partner.parts
            assert part.similarity == pytest.approx(alike(M, N), abs=1e-5)
            assert partner.score == abs(part.similarity)
        assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)


def test_a_whole_head_is_the_mean_of_its_parts() -> None:
    found = partners(model("gpt2"), "L0H1", model("llama"), 3, tokens=2)
    assert found.measure == "cosine"
    for partner in found:
        assert [part.name for part in partner.parts] == ["VO", "QK"]
        assert partner.score == pytest.approx(
            np.mean([abs(part.similarity) for part in partner.parts])
        )


@pytest.mark.parametrize("view", [{}, {"folded": True, "centred": True}], ids=str)
@pytest.mark.parametrize("address", ["L1E2N3.value", "L1E2N3.gate", "L0H2.O1", "L1H3.V2"])
def test_vectors_against_dense_projections(address: str, view: dict[str, Any]) -> None:
    a, b = "mixtral", "gemma2"
    found = partners(model(a).view(**view), address, model(b).view(**view), 10_000, tokens=1)
    at = lx.Address.parse(address)
    kind: Any = at.vector or at.subhead
    folded = view.get("folded", False)
    vectors = reference(b).vectors(kind, folded)
    own = {"L1H3.V2": "L1H2.V2"}.get(address, address)  # heads 2 and 3 share their values
    x = reference(a).vectors(kind, folded)[own] @ reference(a).columns(kind, **view)
    Y = torch.stack(list(vectors.values())) @ reference(b).columns(kind, **view)
    expected = dict(zip(vectors, pearson(x[None], Y)[0].tolist(), strict=True))
    assert {p.address: p.parts[0].similarity for p in found} == pytest.approx(expected, abs=1e-5)
    assert found.to_dict()["of"] == own


@pytest.mark.parametrize(("family", "one_to_one"), [("gpt2", True), ("llama", False)])
def test_every_neuron_and_head_finds_its_twin(family: str, one_to_one: bool) -> None:
    original = distinct(family)
    copied = twin(original, family)
    a, b = opened(original), opened(copied.module)
    for layer in range(LAYERS):
        i = 19 - 3 * layer
        (best,) = partners(a, f"L{layer}N{i}", b, 1, one_to_one=one_to_one, tokens=1)
        assert best.address == f"L{copied.layers[layer]}N{copied.neurons[i]}"
        assert best.score == pytest.approx(1, abs=1e-5)
        head = layer % a.n_heads
        (best,) = partners(a, f"L{layer}H{head}", b, 1, one_to_one=one_to_one, tokens=1)
        assert best.address == f"L{copied.layers[layer]}H{head}"
        assert best.score == pytest.approx(1, abs=1e-5)


def test_one_to_one_is_the_best_matching_of_two_layers() -> None:
    a, b = "llama", "gemma2"
    found = partners(model(a), "L1N4.key", model(b), one_to_one=True, tokens=1)
    assert [lx.Address.parse(p.address).layer for p in found] in ([0, 1], [1, 0])
    for partner in found:
        layer = lx.Address.parse(partner.address).layer
        X, Y = (
            torch.stack([x for n, x in r.vectors("key", False).items() if n.startswith(at)])
            @ r.columns("key")
            for r, at in ((reference(a), "L1"), (reference(b), f"L{layer}"))
        )
        _, cols = linear_sum_assignment(pearson(X, Y).abs().numpy(), maximize=True)
        assert partner.address == f"L{layer}N{cols[4]}.key"


def test_where_one_side_is_smaller_some_have_no_partner() -> None:
    a, b = model("gpt2"), model("llama")  # 96 neurons a layer, and 20
    counts = [len(partners(a, f"L0N{i}.key", b, one_to_one=True, tokens=1)) for i in range(12)]
    assert min(counts) == 0
    alone = partners(a, f"L0N{counts.index(0)}.key", b, one_to_one=True)
    assert "left without a partner" in str(alone)
    assert max(counts) <= 2


def test_layers_may_be_chosen() -> None:
    found = partners(model("llama"), "L0N3", model("cohere2"), 100, layers=[2, -1], tokens=1)
    assert {lx.Address.parse(p.address).layer for p in found} == {2, 3}
    with pytest.raises(LexrayError, match="there is no layer 9"):
        partners(model("llama"), "L0N3", model("cohere2"), layers=[9])


def test_a_negated_twin_reads_as_its_negation() -> None:
    copied = copy.deepcopy(build("llama"))
    W = copied.state_dict()["model.layers.0.mlp.down_proj.weight"]
    W[:, 5] = -W[:, 5]
    found = partners(model("llama"), "L0N5.value", opened(copied), 1, tokens=4)
    (part,) = found[0].parts
    assert found[0].address == "L0N5.value"
    assert part.similarity == pytest.approx(-1, abs=1e-5)
    assert part.tokens == f"− {found.target[0].tokens}"
    assert found.to_dict()["partners"][0]["parts"][0]["correlation"] < 0
    V = copied.state_dict()["model.layers.0.self_attn.o_proj.weight"]
    V[:, :6] = -V[:, :6]
    head = partners(model("llama"), "L0H0.VO", opened(copied), 1, tokens=4)
    assert head[0].address == "L0H0.VO"
    assert head[0].parts[0].tokens == f"− {head.target[0].tokens}"


def test_neurons_of_gated_and_plain_models() -> None:
    found = partners(model("llama"), "L0N3", model("gpt2"), 2)
    assert [part.name for part in found[0].parts] == ["key", "value"]
    found = partners(model("llama"), "L0N3", model("mixtral"), 2)
    assert [part.name for part in found[0].parts] == ["key", "gate", "value"]
    assert "E" in found[0].address
    text = str(found)
    assert "L0N3 of LlamaForCausalLM, and its partners in MixtralForCausalLM" in text
    assert text.count("gate") == 3, "the target's and two partners'"
    assert len(found.to_pandas()) == 6


def test_a_dead_head_or_vector_is_like_nothing() -> None:
    copied = copy.deepcopy(build("llama"))
    copied.state_dict()["model.layers.0.self_attn.o_proj.weight"].zero_()
    found = partners(opened(copied), "L0H0.VO", model("gpt2"), 2)
    assert [p.score for p in found] == [0, 0]
    copied.state_dict()["model.layers.0.self_attn.o_proj.weight"].fill_(float("nan"))
    with pytest.raises(LexrayError, match=r"layers\.0\.self_attn\.o_proj\.weight .* NaN"):
        partners(opened(copied), "L0H0.VO", model("gpt2"))


def test_a_filter_restricts_what_counts_and_what_is_shown() -> None:
    some = filters.among([f"word{i}" for i in range(9, 20)])
    found = partners(model("llama"), "L0N3.key", model("gpt2"), 1, filter=some)
    assert len(found.shared) == 11
    shown = {word for part in (*found.target, *found[0].parts) for word in part.tokens.split()}
    assert shown - {"−"} <= {f"·word{i}" for i in range(9, 20)} | {f"word{i}" for i in range(9, 20)}


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = model("llama"), model("gpt2")
    for address in ("L1", "L0.mlp_norm"):
        with pytest.raises(LexrayError, match=f"{address} is no head, neuron or subhead"):
            partners(a, address, b)
    with pytest.raises(LexrayError, match=r"has no gate vectors to compare L0N3\.gate with"):
        partners(a, "L0N3.gate", b)
    with pytest.raises(LexrayError, match="at least 1"):
        partners(a, "L0N3", b, 0)
    with pytest.raises(LexrayError, match="no neuron 99"):
        partners(a, "L0N99", b)
    monkeypatch.setattr(module, "LARGEST_MATCHING", 10)
    with pytest.raises(LexrayError, match="one-to-one matching of 20 with 96 vectors needs"):
        partners(a, "L0N3.key", b, one_to_one=True)


@pytest.mark.slow
def test_words_are_those_of_the_models_own_views() -> None:
    """Compared raw, as the papers do; shown as everywhere else."""
    a, b = Model.from_pretrained("demo"), Model.from_pretrained("demo-b")
    for address, vector in (("L3N17.value", "L3N17.value"), ("L2H1.VO", None)):
        made, raw = partners(a, address, b, 3), partners(a.view("raw"), address, b.view("raw"), 3)
        assert [(p.address, p.score) for p in made] == [(p.address, p.score) for p in raw]
        assert (str(made.words), str(raw.words)) == ("standard", "raw")
        assert "words: standard" in made.tables()[0].note
        assert "words" not in raw.tables()[0].note
        if vector is not None:
            assert made.target[0].reading == a.vector(vector).top(10)
            assert raw.target[0].reading == a.view("raw").vector(vector).top(10)
