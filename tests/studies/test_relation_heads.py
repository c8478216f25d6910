"""relation-heads against transformers' own module, and its rules both ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lexray.roles.relation import Relation
from lexray.roles.tokens import TokenPairs, tasks_of
from lexray.studies import find, relation_heads
from lexray.studies.relation_heads import (
    ALONE,
    FREE,
    PUT,
    accuracy,
    among_best,
    correlation,
    measure_written,
    questions,
)
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded

PAIRS = (("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"), ("i", "j"), ("k", "l"))


def task() -> TokenPairs:
    (found,) = tasks_of(worded("llama"), [Relation("letters", PAIRS, k=6)])
    return found


def test_what_heads_write() -> None:
    """From the hidden states of transformers' own pass: head by head, the long way round."""
    model, module = worded("llama"), build("llama")
    found = measure_written(model, task(), "b d {}")
    n_heads, n_kv, r = 4, 2, 6
    expected = {PUT: torch.zeros(len(PAIRS), 8), FREE: torch.zeros(len(PAIRS), 8)}
    E = module.lm_head.weight.double()
    gain = module.model.norm.weight.double()
    for p, (source, target) in enumerate(PAIRS):
        ids = [*model.vocabulary.encode("b d"), model.vocabulary.id(source)]
        with torch.no_grad():
            out = module(torch.tensor([ids]), output_hidden_states=True, output_attentions=True)
        for n, layer in enumerate(module.model.layers):
            with torch.no_grad():
                x = layer.input_layernorm(out.hidden_states[n][0])
                v = layer.self_attn.v_proj(x).view(len(ids), n_kv, r)
            W = layer.self_attn.o_proj.weight.T.double().view(n_heads, r, -1)
            for h in range(n_heads):
                values = v[:, h * n_kv // n_heads].double()
                free = out.attentions[n][0, h, -1].double() @ values
                for mode, z in ((PUT, values[-1]), (FREE, free)):
                    scores = ((z @ W[h]) * gain) @ E.T
                    rank = int((scores > scores[model.vocabulary.id(target)]).sum())
                    expected[mode][p, n * n_heads + h] = rank < 6
    for mode, hits in expected.items():
        np.testing.assert_allclose(found[mode], hits.double().mean(0), atol=0.17)
        assert np.abs(found[mode] - hits.double().mean(0).numpy()).mean() < 0.03


@pytest.mark.parametrize("k", [1, 4])
def test_who_is_among_the_best(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a screen of a few tokens, as by all scores of all rows."""
    monkeypatch.setattr(relation_heads, "SCREEN", 8)
    model = worded("llama").view(folded=True)
    rows = torch.randn(60, model.d_model, generator=torch.Generator().manual_seed(0))
    scores = model.space.whole("O").project(rows)
    targets = scores.topk(5).indices[torch.arange(60), torch.arange(60) % 5]
    expected = (scores > scores.gather(1, targets[:, None])).sum(1) < k
    assert torch.equal(among_best(model, rows, targets, k), expected)
    assert 0 < int(expected.sum()) < 60


def test_questions_and_answers() -> None:
    from random import Random

    model = worded("llama")
    asked = questions(model, task(), Random(0))
    assert len(asked) == len(PAIRS)
    best = [
        int(model.trace(ids, what="logits", special=False).logits[-1].argmax()) for ids, _ in asked
    ]
    right = [(ids, token) for (ids, _), token in zip(asked, best, strict=True)]
    assert accuracy(model, right, []) == 1
    heads = [str(head.address) for layer in model.layers for head in layer.heads]
    assert accuracy(model, right, heads) < 1


def test_the_whole_study() -> None:
    typed = ",".join(f"{a}→{b}" for a, b in PAIRS)
    found = find("relation-heads")(worded("llama"), relations=typed, templates=1, remove=2, draws=1)
    (by_view,) = found.numbers["correlation"].values()
    assert set(by_view) == {"raw", "folded", "effective", "standard"}
    assert found.plot().to_svg()


def test_correlation() -> None:
    assert correlation(np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 4.0])) == pytest.approx(1)
    assert np.isnan(correlation(np.zeros(3), np.arange(3.0)))


def test_the_rules_both_ways() -> None:
    def verdicts(r: float, whole: float, best: float, others: float) -> list[str]:
        views = {view: {ALONE: r, PUT: r, FREE: r} for view in relation_heads.VIEWS}
        removed = {"whole": whole, "without the best": best, "without others": others}
        found = relation_heads.findings({"capital": views}, {"capital": removed})
        return [each.verdict for each in found]

    assert verdicts(0.8, 0.9, 0.2, 0.8) == ["holds"] * 3
    assert verdicts(0.3, 0.9, 0.8, 0.2) == ["does not hold"] * 3
    assert verdicts(float("nan"), 0.1, 0.0, 0.1) == ["not testable"] * 3
