"""Where heads look by their weights alone, against a recorded pass."""

from __future__ import annotations

import pytest

from lexray.roles.card import salient
from lexray.roles.patterns import pattern
from tests.families.oracles import close
from tests.families.pairs import PAIRS
from tests.families.test_pairs import worded_pair

SOURCE, TARGET = [5, 11, 3, 29, 36, 7, 20, 8], [14, 9, 31, 6, 12, 30, 4]


@pytest.mark.parametrize("name", [v.name for v in PAIRS])
def test_looks_at_a_source_are_those_of_the_pass(name: str) -> None:
    """On what the pass read; of one softmax over target and source, the source's part."""
    model = worded_pair(name).view("raw")
    trace = model.trace(SOURCE, target=TARGET)
    given = trace.encoder.normed
    for layer in model.layers:
        recorded = trace[layer.index].cross
        for head in layer.cross_heads:
            theirs = recorded.pattern[head.index].double()
            ours = pattern(head, recorded.read, given, causal=False)
            close(ours, theirs / theirs.sum(1, keepdim=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flan-t5", "t5gemma", "t5gemma2"])
def test_tokens_that_move_a_cross_head_are_the_source_s(name: str) -> None:
    model = worded_pair(name).view("raw")
    head = model.head("L1X2")
    sizes = (model.encoder.W_U.T.double() @ head.W_V.double() @ head.W_O.double()).norm(dim=1)
    best = sizes.topk(3).indices.tolist()
    assert [word for word, *_ in salient(head, 3)] == [model.vocabulary.shown(i) for i in best]
    assert "L1X2" in str(head.describe())
    assert len(head.vo.svd(2)) == 2
