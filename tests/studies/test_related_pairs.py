"""related-pairs against sets of tokens made from transformers' own tensors."""

from __future__ import annotations

import pytest

from lexray.errors import LexrayError
from lexray.result.charts.series import Level, StandingBars
from lexray.studies import find, related_pairs
from lexray.studies.related_pairs import RelatedPairs
from tests.dense import dense
from tests.families.zoo import build
from tests.vocabulary.vocabularies import worded


@pytest.mark.parametrize(("name", "read"), [("gpt2", "key"), ("llama", "key"), ("llama", "gate")])
def test_a_model_against_its_own_tensors(name: str, read: str) -> None:
    reference = dense(build(name))
    shares, by_jaccard, total = [], 0, 0
    for block in reference.blocks:
        X, Y = (
            getattr(block.units[0], read).T @ reference.E_out,
            block.units[0].value @ reference.E_out,
        )
        tops = [[set(row.argsort(descending=True)[:8].tolist()) for row in M] for M in (X, Y)]
        common = [len(a & b) for a, b in zip(*tops, strict=True)]
        shares.append(sum(n / 8 >= 0.3 for n in common) / len(common))
        by_jaccard += sum(n / (16 - n) >= 0.3 for n in common)
        total += len(common)
    found = find("related-pairs")(worded(name), k=8, overlap=0.3, read=read).numbers
    assert [layer["share"] for layer in found["layers"]] == pytest.approx(shares)
    assert found["n_neurons"] == total
    assert found["share"] == pytest.approx(sum(shares) / len(shares))
    assert found["share_by_jaccard"] == pytest.approx(by_jaccard / total)
    assert len(found["neurons"]) == sum(layer["related"] for layer in found["layers"])


def test_what_is_not_there() -> None:
    with pytest.raises(LexrayError, match="has no gates"):
        find("related-pairs")(worded("gpt2"), k=5, read="gate")
    with pytest.raises(LexrayError, match="too small a vocabulary"):
        find("related-pairs")(worded("gpt2"))


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.05, "holds"), (0.025, "holds"), (0.02, "does not hold"), (0.2, "does not hold")],
)
def test_the_rule_both_ways(share: float, verdict: str) -> None:
    shares = {"share": share, "share_by_jaccard": share / 2, "expected_shared": 0.2}
    assert related_pairs.judge(shares, RelatedPairs()).verdict == verdict
    assert related_pairs.judge(shares, RelatedPairs(k=50)).verdict == "not testable"


def test_the_figure_marks_what_was_published() -> None:
    result = find("related-pairs")(worded("gpt2"), k=5)
    columns, level = result.plot().panels[0].series
    assert isinstance(level, Level)
    assert level.y == 0.05
    assert isinstance(columns, StandingBars)
    assert list(columns.y) == [layer["share"] for layer in result.numbers["layers"]]
