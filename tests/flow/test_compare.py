"""Difference graphs: what is the same is the same, what differs is shown of both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lexray.errors import LexrayError
from lexray.flow import Flow, NodeKind
from lexray.flow.caption import caption
from lexray.flow.compare import compare, subtract
from lexray.flow.story import tell
from tests.flow.runs import IDS, KINDS, SOME, graphed, traced
from tests.vocabulary.vocabularies import worded

LONGER = [1, 2, *IDS[:3], 14, *IDS[4:]]


@pytest.mark.parametrize("name", KINDS[::2])
def test_a_run_is_no_different_from_itself(name: str) -> None:
    trace = traced(name)
    graph = compare(trace, trace, **vars(SOME))
    alone = graphed(name)
    assert [node.id for node in graph.nodes] == [node.id for node in alone.nodes]
    assert all(node.other == node.projection for node in graph.nodes)
    assert all(node.other_norm == node.norm for node in graph.nodes)
    assert all(edge.other_score == edge.sign * edge.score for edge in graph.edges)
    assert graph.is_difference


def label_at(tokens: Sequence[str], at: int) -> str:
    """A token, with its position where the prompt has it more than once."""
    below = str(at).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    return tokens[at] + below * (tokens.count(tokens[at]) > 1)


@pytest.mark.slow
def test_prompts_of_different_lengths_meet_at_their_ends() -> None:
    one, two = traced("llama"), worded("llama").trace(LONGER)
    graph = compare(one, two, target=3, heads=2, memories=3, neurons=(2, 1), layers=[0, 1])
    assert graph.other is not None
    assert (graph.run.position, graph.other.position) == (6, 8)
    for node in graph.of_kind(NodeKind.VALUE):
        if node.projection is not None and node.other is not None:
            assert node.position is not None
            here = label_at(graph.run.tokens, node.position)
            there = label_at(graph.other.tokens, node.position + 2)
            assert node.label == (here if here == there else f"{here} / {there}")
    far = [n for n in graph.nodes if n.projection is None]
    assert far
    assert {n.position for n in far} <= {0, 1}
    assert graph.to_json() == Flow.from_json(graph.to_json()).to_json()


def test_both_runs_show_what_either_would() -> None:
    one, two = traced("gpt2"), worded("gpt2").trace(LONGER)
    graph = compare(one, two, target=3, **vars(SOME))
    for run in (one, two):
        alone = run.flow(target=3, **vars(SOME))
        mine = {n.id for n in alone.nodes if n.kind in ("ff_value", "o_neuron", "head")}
        assert mine <= {n.id for n in graph.nodes}
    neurons = graph.of_kind(NodeKind.FF_VALUE)
    assert all(n.projection is not None and n.other is not None for n in neurons)
    words = {word.id for word in graph.candidates}
    assert words >= {w.id for w in alone.candidates}


def test_scores_of_both_runs_are_on_the_edges() -> None:
    one, two = traced("gpt2"), worded("gpt2").trace(LONGER)
    full = {"heads": 9, "memories": 9, "neurons": (999, 999), "layers": [1], "static": False}
    graph = compare(one, two, target=3, **full)
    alone = two.flow(target=3, **full)
    theirs = {(e.source, e.target): e.sign * e.score for e in alone.edges}
    for edge in graph.edges:
        if "@" not in edge.source + edge.target:
            assert edge.other_score == pytest.approx(theirs.get((edge.source, edge.target), 0.0))


@pytest.mark.slow
def test_differences_of_shares_add_up() -> None:
    """Each sum's difference is the sum of its addends' differences, down to the whole logit's."""
    one, two = traced("llama"), worded("llama").trace(LONGER)
    graph = compare(one, two, target=3, heads=2, memories=2, neurons=(3, 2))
    alone = [run.flow(target=3, heads=2, memories=2, neurons=(3, 2)) for run in (one, two)]
    shares = [edge for edge in graph.edges if edge.added is not None]
    assert shares
    assert all(edge.other_added is not None for edge in shares)
    assert any(edge.score == 0.0 and edge.other_score for edge in shares), "of the other run alone"
    for id in ("L0.mid", "L1.in", "L1.mid"):
        mine, theirs = (
            sum(e.added[0] for e in flow.edges if e.target == id and e.added) for flow in alone
        )
        found = sum(e.brings(0) or 0.0 for e in graph.edges if e.target == id)
        assert found == pytest.approx(mine - theirs, abs=2e-3)
    for sum_of in ("L0.concat", "L1.concat"):
        parts = sum(e.brings(0) or 0.0 for e in graph.into(sum_of))
        whole = [sum(e.added[0] for e in flow.into(sum_of) if e.added) for flow in alone]
        assert parts == pytest.approx(whole[0] - whole[1], abs=2e-3)
    assert graph == Flow.from_json(graph.to_json())
    story, logits = tell(graph), [run.contributions(3).logit for run in (one, two)]
    assert story.start is not None
    told = story.start + story.rest + sum(part.weight for part in story.parts)
    assert told == pytest.approx(logits[0] - logits[1], abs=5e-3)


def test_the_caption_speaks_of_both_runs() -> None:
    one, two = traced("gpt2"), worded("gpt2").trace(LONGER)
    graph = compare(one, two, target=3, **vars(SOME))
    last = graph.place(graph["L2.in"], other=True)
    assert last is not None
    assert caption(graph).endswith(f"in the other run it ends at rank {last.rank:,}.")


@pytest.mark.slow
def test_two_models_on_one_prompt() -> None:
    one, two = traced("gpt2"), traced("gpt2-untied-wide")
    graph = compare(one, two, **vars(SOME))
    assert graph.target == graphed("gpt2").target
    theirs = two.flow(**vars(SOME))
    seen, alone = graph["L1.mid"].other, theirs["L1.mid"].projection
    assert seen is not None
    assert alone is not None
    assert seen.top[:4] == alone.top[:4]
    assert seen != graph["L1.mid"].projection
    deeper = compare(traced("llama"), traced("smollm3"), **vars(SOME))
    assert deeper.layers == (0, 1, 2, 3)
    assert deeper["L3.mid"].projection is None
    assert deeper["L3.mid"].other is not None


def test_experts_that_were_not_chosen_are_missing() -> None:
    one, two = traced("mixtral"), worded("mixtral").trace([9, 8, 7, 30, 31, 2])
    graph = compare(one, two, **vars(SOME))
    for node in graph.of_kind(NodeKind.FF_VALUE):
        assert node.address is not None
        owner = node.address.split("N")[0]
        for trace, seen in ((one, node.projection), (two, node.other)):
            active = {str(a.ff.address) for a in trace[node.layer].active(-1)}
            assert (seen is not None) == (owner in active)


def test_strangers_are_refused() -> None:
    with pytest.raises(LexrayError, match="different vocabularies"):
        compare(traced("gpt2"), worded("gpt2", 36).trace(IDS[:3]))
    one, two = (traced("gpt2").flow(target=t, **vars(SOME)) for t in (3, 4))
    with pytest.raises(LexrayError, match="different targets"):
        subtract(one, two)
