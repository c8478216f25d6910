"""own-token against transformers' own probabilities, and its rules both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from lexray.studies import find, own_token
from lexray.studies.own_token import OTHER, OWN, OwnToken, another
from lexray.studies.shared.prompts import Prompt
from tests.studies.recorded import (
    NAMES,
    PROMPT,
    K,
    logits,
    model,
    prompts_file,
    traced,
    written,
)
from tests.vocabulary.vocabularies import worded


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt(name: str) -> None:
    found = own_token.read(model(name), PROMPT, OwnToken(k=K, positions=0))
    trace = traced(name)
    ids, n = trace.ids.tolist(), len(trace)
    others = another(ids, tuple(range(n)), 0)
    for layer in trace.layers:
        recorded = trace[layer]
        n_heads, n_kv = recorded.z.shape[1], recorded.v.shape[1]
        for kind, tokens in ((OWN, ids), (OTHER, others)):
            probabilities, listed = [], []
            for h in range(n_heads):
                X = written(name, layer, h, recorded.v[:, h * n_kv // n_heads])
                for i, scores in enumerate(logits(name, X)):
                    probabilities.append(float(scores.softmax(0)[tokens[i]]))
                    listed.append(int((scores > scores[tokens[i]]).sum()) < K)
            p, share = (sum(x) / len(x) for x in (probabilities, listed))
            assert found["probability"][kind][layer] == pytest.approx(p, rel=1e-3)
            assert found["listed"][kind][layer] == pytest.approx(share)


def test_another_token() -> None:
    for at, token in enumerate(another([3, 3, 5, 7], (0, 1, 2, 3), 1)):
        assert token in {3, 5, 7} - {[3, 3, 5, 7][at]}


def test_a_prompt_of_one_token() -> None:
    found = own_token.read(model("gpt2"), Prompt("a"), OwnToken(k=K))
    assert found["probability"][OTHER] == [None, None]
    assert all(0 < p < 1 for p in found["probability"][OWN])


def test_positions_are_sampled_by_seed(tmp_path: Path) -> None:
    def run(seed: int) -> object:
        options = {"k": K, "positions": 2, "prompts": prompts_file(tmp_path)}
        return find("own-token")(worded("gpt2"), seed=seed, **options).numbers

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_the_rules_both_ways() -> None:
    def verdicts(own: list[float], other: list[float]) -> list[str]:
        return [f.verdict for f in own_token.findings({OWN: own, OTHER: other}, 0.001)]

    assert verdicts([0.01, 0.02, 0.03, 0.04], [0.01] * 4) == ["holds"] * 3
    assert verdicts([0.002, 0.002, 0.001, 0.001], [0.01] * 4) == ["does not hold"] * 3
    assert verdicts([0.02], [float("nan")]) == ["holds", "not testable", "not testable"]
