"""Every clause of a caption, against the graph's own numbers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

import lexray as lx
from lexray.flow.caption import SPEAKS, caption, fold, heads_clause, stream_clause
from lexray.result.theme import standing
from tests.flow import synthetic


@pytest.mark.parametrize("seed", range(6))
def test_the_stream(seed: int) -> None:
    graph = synthetic.graph((3, 4, 5), seed=seed, heads=2, neurons=(1, 1))
    before, after = (graph.place(graph[id]) for id in ("L3.in", "L6.in"))
    assert before is not None
    assert after is not None
    found = re.fullmatch(
        r"·Tokyo (climbs|falls) from rank ([\d,]+) to ([\d,]+)", stream_clause(graph)
    )
    assert found is not None
    assert [int(n.replace(",", "")) for n in found.groups()[1:]] == [before.rank, after.rank]
    assert found[1] == ("climbs" if after.rank < before.rank else "falls")


@pytest.mark.parametrize("seed", range(12))
def test_the_heads(seed: int) -> None:
    """Those named are of one layer, look at that token most, and are the best for the target."""
    graph = synthetic.speaking(seed)
    ranks = {n.id: place.rank for n in graph.of_kind("head") if (place := graph.place(n))}
    speak = {id for id, rank in ranks.items() if standing(rank, graph.d_vocab) >= SPEAKS}
    clause = heads_clause(graph)
    assert speak
    found = re.fullmatch(
        r"Heads? ([\d, and]+) of layer (\d+)(?: looks? at (\S+) and)? writes? (.+)", clause
    )
    assert found is not None
    heads = [graph[f"L{found[2]}.H{n}"] for n in re.findall(r"\d+", found[1])]
    assert heads[0].id == min(ranks, key=lambda id: ranks[id])
    assert {head.id for head in heads} <= speak
    for head in heads:
        assert head.projection is not None
        sources = [e for e in graph.into(head.id) if e.kind == "attention"]
        carried = {
            graph[e.source].position: e.score if e.value is None else e.value for e in sources
        }
        most = max(carried, key=lambda at: carried[at])
        assert most is not None
        token = graph.run.tokens[most]
        twice = graph.run.tokens.count(token) > 1
        assert found[3] == (
            token + "".join(chr(0x2080 + int(d)) for d in str(most)) if twice else token
        )
    listed = [[w.shown for w in h.projection.top] for h in heads if h.projection]
    every = {word for words in listed for word in words}
    worth = {
        w: (
            sum(own.count(w) for own in listed),
            sum(1 / (1 + at) for own in listed for at, word in enumerate(own) if word == w),
        )
        for w in every
    }
    named = found[4].split(", ")
    assert len(named) == max(2, len(heads)) == len(set(map(fold, named)))
    others = [word for word in every if fold(word) not in map(fold, named)]
    assert min(worth[word] for word in named) >= max(map(worth.get, others), default=(0, 0.0))
    assert (len(heads) > 1) == clause.startswith("Heads") == (" writes " not in clause)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", ["This movie was", "the the film the the film the"])
def test_the_heads_of_a_run(prompt: str) -> None:
    """Those that add most to the logit, by the contributions of the same pass; where they look."""
    trace = lx.Model.from_pretrained("demo", dtype=torch.float32).trace(prompt)
    graph = trace.flow(layers=[3])
    clause = heads_clause(graph)
    leaves = trace.contributions(graph.target.id).top(1000)
    heads = [leaf for leaf in leaves if leaf.kind == "head" and leaf.layer == 3]
    best = max(heads, key=lambda leaf: leaf.contribution)
    assert clause.startswith(("Head ", "Heads "))
    assert f"L3H{re.findall(r'[0-9]+', clause)[0]}" == best.component
    assert best.looked_at is not None
    assert f"at {best.looked_at.shown}" in clause
    twice = [token.shown for token in trace.tokens].count(best.looked_at.shown) > 1
    assert bool(re.search("[₀-₉] and", clause)) == twice


def test_heads_that_speak_for_nothing_are_not_named() -> None:
    assert heads_clause(synthetic.graph((3, 4), heads=6, neurons=(1, 1))) == ""


@pytest.mark.slow
def test_where_it_stands() -> None:
    """In the page, in the SVG's description, in the notebook's alternative text, in the table."""
    graph = synthetic.speaking(5)
    told = caption(graph)
    assert told.endswith(".")
    assert told.startswith("Head")
    assert stream_clause(graph) in told
    assert f"<desc>{told}</desc>" in graph.to_svg()
    assert told in graph.to_html()
    assert told in graph._repr_mimebundle_()["text/html"]
    assert told in graph.tables()[0].note


def test_nothing_is_said_of_nothing() -> None:
    graph = synthetic.graph(heads=1, neurons=(1, 0))
    bare = replace(graph, nodes=tuple(replace(n, projection=None) for n in graph.nodes))
    assert caption(bare) == ""
