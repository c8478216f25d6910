"""Isotropy against dense float64 arithmetic, and its rules both ways."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from typing import Any

import pytest
import torch

from lexray.studies import find, isotropy
from lexray.studies.isotropy import CENTRED, EMBEDDING, GAUSSIAN
from tests.dense import dense
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt2-untied-wide"])
def test_a_model_against_its_own_tensors(name: str) -> None:
    E = dense(build(name)).E_out
    found = find("isotropy")(worded(name)).numbers
    d, N = E.shape
    assert (found["d_model"], found["n_tokens"]) == (d, N)
    for which, M in ((EMBEDDING, E), (CENTRED, E - E.mean(1, keepdim=True))):
        G = M @ M.T * d / (M @ M.T).trace()
        shape, eye = found["matrices"][which], torch.eye(d, dtype=torch.float64)
        values = torch.linalg.eigvalsh(G)
        assert shape["deviation"] == pytest.approx(float((G - eye).norm()) / sqrt(d), rel=1e-5)
        cosine = torch.cosine_similarity(G.flatten(), eye.flatten(), dim=0)
        assert shape["cosine"] == pytest.approx(float(cosine), rel=1e-5)
        assert shape["largest"] == pytest.approx(float(values[-1]), rel=1e-5)
        assert shape["smallest"] == pytest.approx(float(values[0]), abs=1e-5)
        assert shape["eigenvalues"] == pytest.approx(values.flip(0).tolist(), abs=1e-5)


def test_tokens_without_a_name_do_not_count() -> None:
    E = dense(build("gpt2")).E_out[:, :30]
    found = find("isotropy")(worded("gpt2", 30)).numbers
    G = E @ E.T * len(E) / (E @ E.T).trace()
    deviation = float((G - torch.eye(len(E))).norm()) / sqrt(len(E))
    assert found["n_tokens"] == 30
    assert found["matrices"][EMBEDDING]["deviation"] == pytest.approx(deviation, rel=1e-5)


def test_a_gaussian_is_what_theory_says() -> None:
    generator = torch.Generator().manual_seed(0)

    def rows(at: torch.Tensor) -> torch.Tensor:
        return torch.randn(len(at), 40, generator=generator).double()

    shape = isotropy.measure(rows, torch.arange(20_000))
    assert shape["deviation"] == pytest.approx(isotropy.expected_deviation(40, 20_000), rel=0.1)
    path = shape["by_tokens"]
    assert [p["n"] for p in path] == [312, 1250, 5000, 20_000]
    assert path[-1]["deviation"] == shape["deviation"]
    for fewer, more in pairwise(path):
        assert fewer["deviation"] / more["deviation"] == pytest.approx(2, rel=0.15)


def test_the_seed_decides() -> None:
    study, model = find("isotropy"), worded("gpt2")
    one, other = (study(model, seed=seed).numbers["matrices"] for seed in (1, 2))
    assert study(model, seed=1).numbers["matrices"] == one
    assert one[GAUSSIAN] != other[GAUSSIAN]
    assert one[EMBEDDING]["deviation"] == pytest.approx(other[EMBEDDING]["deviation"])


def shapes(embedding: float, centred: float, gaussian: list[float]) -> dict[str, Any]:
    path = [{"n": 1000 * 4**i, "deviation": value} for i, value in enumerate(gaussian)]
    ends = {"smallest": 0.1, "largest": 10.0}
    return {
        EMBEDDING: {"deviation": embedding, **ends},
        CENTRED: {"deviation": centred, **ends},
        GAUSSIAN: {"deviation": gaussian[-1], "by_tokens": path, **ends},
    }


def verdicts(found: dict[str, Any], d: int, N: int) -> list[str]:
    return [f.verdict for f in isotropy.findings(found, d, N)]


def test_rules_both_ways() -> None:
    yes, no = "holds", "does not hold"
    fall = [0.2, 0.1, 0.05]
    assert verdicts(shapes(0.5, 0.06, fall), 39, 16_000) == [yes, yes, no]
    assert verdicts(shapes(0.06, 0.5, fall), 39, 16_000) == [yes, no, yes]
    assert verdicts(shapes(0.5, 0.5, [0.05, 0.05, 0.05]), 39, 16_000) == [no, yes, yes]
    assert verdicts(shapes(0.5, 0.5, fall), 39, 160)[0] == no
    assert verdicts(shapes(0.5, 0.5, [0.05]), 39, 16_000)[0] == "not testable"
