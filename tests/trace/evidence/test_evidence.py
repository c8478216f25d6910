"""Evidence against activations that are worked out by hand from transformers' own model."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from scipy.stats import rankdata
from torch import Tensor

import lexray as lx
from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.model.weights import Weights
from lexray.space.area import area
from lexray.space.space import space_of
from lexray.trace.evidence.result import Evidence
from lexray.trace.read.usual import cut
from tests.families.zoo import build
from tests.vocabulary.vocabularies import vocabulary


def standard(name: str) -> Model:
    return Model(ModuleCheckpoint(build(name)), vocabulary=vocabulary(37))


def auc(scores: Tensor, wanted: Tensor) -> float:
    """By ranks, with scipy."""
    ranks = torch.tensor(rankdata(scores.numpy()))
    n, m = int(wanted.sum()), int((~wanted).sum())
    return float((ranks[wanted].sum() - n * (n + 1) / 2) / (n * m))


def gates(name: str, pieces: list[list[int]], layer: int, neuron: int) -> Tensor:
    """What transformers' own gate_proj gives, at all positions but each piece's first."""
    module, seen = build(name), []
    part = module.model.layers[layer].mlp.gate_proj
    hook = part.register_forward_hook(lambda _, __, out: seen.append(out[0, 1:, neuron].detach()))
    for ids in pieces:
        module(torch.tensor([ids]))
    hook.remove()  # the module is everybody's
    return torch.cat(seen)


def test_a_gates_evidence_is_where_transformers_own_gate_is_strongest() -> None:
    model = standard("llama")
    pieces = cut(model, tokens=None)
    active = gates("llama", pieces, 1, 3)
    found = model["L1N3.gate"].evidence(n=5)
    strengths = active.sort(descending=True)[0][:5]
    assert [s.activation for s in found.snippets] == pytest.approx(strengths.tolist(), rel=1e-4)
    here = torch.tensor([i for ids in pieces for i in ids[1:]])
    best = int(active.argmax())
    assert found.snippets[0].token.id == int(here[best])
    assert found.tokens == sum(map(len, pieces))
    X = space_of(model, 1).shift(model["L1N3.gate"].tensor[None], "gate")
    scores = space_of(model, 1).whole("gate").project(X)[0]
    wanted = torch.zeros(len(active), dtype=torch.bool)
    wanted[active.topk(20).indices] = True
    (sees, expects) = found.agreements
    assert sees.reading == "gate sees"
    assert sees.area == pytest.approx(auc(scores[here], wanted), abs=1e-6)
    assert expects.reading == "gate expects"
    assert 0 <= sees.below <= 1
    assert sees.n == 40 or sees.n == model.d_mlp - 1
    assert found.agreement == max(sees.area, expects.area)


@pytest.mark.parametrize(
    ("name", "address", "readings"),
    [
        ("llama", "L1N3", ["key sees", "key expects", "gate sees", "gate expects", "value writes"]),
        ("llama", "L1N3.value", ["value writes"]),
        ("gpt2", "L0N5", ["key sees", "key expects", "value writes"]),
        ("mixtral", "L1E2N5", ["key sees", "key expects", "gate sees", "gate expects"]),
        ("qwen2-moe", "L0SN4", ["key sees", "key expects", "gate sees", "gate expects"]),
        ("bert", "L1N5", ["key sees", "value writes"]),
        ("gemma2", "L1N5.key", ["key sees", "key expects"]),
        ("llama", "L1H1", ["VO moves"]),
        ("gptj", "L1H1.VO", ["VO moves"]),
        ("llama", "L1H1.QK", ["QK attends"]),
        ("gpt2", "L1H1.QK", ["QK attends"]),
        ("llama", "L1H1.Q2", ["Q sees", "Q expects"]),
        ("gpt2", "L1H1.K2", ["K sees"]),
        ("olmo2", "L1H1.V2", ["V sees"]),
        ("falcon-new", "L1H1.O2", ["O writes"]),
    ],
)
def test_every_kind_has_evidence(name: str, address: str, readings: list[str]) -> None:
    found = standard(name)[address].evidence(n=3)
    assert isinstance(found, Evidence)
    assert [a.reading for a in found.agreements][: len(readings)] == readings
    assert len(found.snippets) == 3
    sizes = [abs(s.activation) for s in found.snippets]
    assert sizes == sorted(sizes, reverse=True)
    for agreement in found.agreements:
        assert 0 <= agreement.area <= 1
        assert 0 <= agreement.layer <= 1
    data = json.loads(found.to_json())
    assert data["address"] == address
    assert data["snippets"][0]["token"]["id"] == found.snippets[0].token.id
    assert f"[{found.snippets[0].token.shown}]" in found.snippets[0].marked
    assert found.to_csv().count("\n") >= 4
    for form in (str(found), found.to_html(), found._repr_html_()):
        assert "strongest" in form


@pytest.mark.slow
def test_a_heads_snippet_says_where_it_looked() -> None:
    """What it took is the attention times the value through W_O, by transformers' own attention."""
    model = standard("gpt2")
    pieces = cut(model, tokens=None)
    best = (0.0, 0, 0, 0)
    for n, ids in enumerate(pieces):
        layer = model.view("raw").trace(ids)[1]
        weights = layer.pattern[1].tril(-1)
        weights[:, 0] = 0
        size = weights * (layer.v[:, 1] @ model.view("raw")["L1H1"].W_O).norm(dim=1)
        q, k = divmod(int(size.argmax()), len(ids))
        best = max(best, (float(size[q, k]), n, q, k))
    (first,) = model["L1H1"].evidence(n=1).snippets
    strength, n, q, k = best
    assert first.activation == pytest.approx(strength, rel=1e-4)
    assert first.token.id == pieces[n][q]
    assert first.looked_at is not None
    assert first.looked_at.id == pieces[n][k]
    assert first.wrote


@pytest.mark.slow
def test_a_text_of_the_users() -> None:
    model = lx.Model.from_pretrained("demo")
    text = "The film was great. " * 30
    found = model["L2N77"].evidence(text, 4)
    assert found.text == "the text that was given"
    assert {s.token.text.strip() for s in found.snippets} <= {"The", "film", "was", "great", "."}
    assert all(s.followed for s in found.snippets)


def test_what_has_no_evidence_is_refused() -> None:
    model = standard("llama")
    with pytest.raises(LexrayError, match=r"no evidence of L1: it is for neurons"):
        model.evidence("L1")
    with pytest.raises(LexrayError, match=r"the text is empty"):
        model["L1N3"].evidence("  ")
    with pytest.raises(LexrayError, match=r"at least 1"):
        model["L1N3"].evidence(n=0)
    with pytest.raises(LexrayError, match=r"there is no neuron"):
        model.evidence("L1N99999")
    alone = Weights(model.checkpoint, vocabulary=model.vocabulary)
    with pytest.raises(LexrayError, match=r"no text can be run"):
        alone.evidence("L1N3")


def test_areas_are_scipys() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 9, (200,), generator=generator).float()
    wanted: Any = torch.rand(200, generator=generator) < 0.2
    assert area(scores, wanted) == pytest.approx(auc(scores, wanted))
