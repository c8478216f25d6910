"""What addends bring to logits: against the contributions, and against the sums themselves."""

from __future__ import annotations

from collections import defaultdict

import pytest

from lexray.flow.flow import Flow
from lexray.flow.graph import NodeKind
from tests.vocabulary.vocabularies import worded

FAMILIES = ["gpt2", "llama", "gptj", "gemma2", "gemma3n", "gemma3n-even"]
IDS = [5, 9, 7, 9, 11]


def graph(family: str) -> Flow:
    return worded(family).trace(IDS).flow(target=8, heads=3, neurons=(3, 2))


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_and_neurons_bring_what_contributions_say(family: str) -> None:
    drawn = graph(family)
    parts = worded(family).trace(IDS).contributions(8)
    known = {leaf.component: leaf.contribution for leaf in parts}
    seen = 0
    for node in drawn.nodes:
        if node.kind in (NodeKind.HEAD, NodeKind.FF_VALUE):
            name = (node.address or "").removesuffix(".value")
            assert drawn.contribution(node) == pytest.approx(known[name], rel=1e-3, abs=1e-4)
            seen += 1
    assert seen >= 2 * 3


@pytest.mark.parametrize("family", FAMILIES)
def test_what_flows_in_is_what_flows_on(family: str) -> None:
    """The addends' shares make up the sum's, sub-block by sub-block, for every word."""
    drawn = graph(family)
    into: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    out: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for edge in drawn.edges:
        if edge.added is not None:
            into[edge.target].append(edge.added)
            out[edge.source].append(edge.added)
    checked = 0
    for node in drawn.nodes:
        inside = node.kind in (NodeKind.HEAD, NodeKind.ATTN_OUT, NodeKind.FF_OUT)
        inside = inside or node.kind == NodeKind.RESIDUAL
        if inside and into[node.id] and out[node.id]:
            total = [sum(column) for column in zip(*into[node.id], strict=True)]
            onward = [sum(column) for column in zip(*out[node.id], strict=True)]
            assert total == pytest.approx(onward, rel=2e-3, abs=2e-3)
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize("family", ["llama", "gemma3n", "gemma3n-even"])
def test_the_stream_keeps_the_whole_logit(family: str) -> None:
    """What enters a block and what it adds make up the logit of the last step, biases aside."""
    drawn = graph(family)
    parts = worded(family).trace(IDS).contributions(8)
    last = max(drawn.layers) + 1
    entering = [e.added for e in drawn.edges if e.target == f"L{last}.in" and e.added is not None]
    index = [word.id for word in drawn.candidates].index(8)
    assert sum(shares[index] for shares in entering) == pytest.approx(parts.logit, abs=1e-3)


@pytest.mark.slow
def test_shares_survive_json() -> None:
    drawn = graph("gpt2")
    assert Flow.from_json(drawn.to_json()) == drawn
    assert any(edge.added is not None for edge in drawn.edges)
