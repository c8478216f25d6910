"""Pruning keeps what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lexray.flow.build.build import find_pulls
from lexray.flow.build.prune import Shown, choose, fewest, largest
from lexray.flow.options import BlockOptions
from lexray.flow.summary import summarise
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step
from lexray.trace.attribute.walk import pulls
from lexray.trace.trace import Trace
from tests.families.span import spanning
from tests.flow.runs import ALL, IDS, drafted, traced

LAST = len(IDS) - 1


def choose_all(
    trace: Trace, layers: Sequence[int], position: int, target: int, options: BlockOptions
) -> dict[int, Shown]:
    """What is shown of each block."""
    moment = Moment.of(trace, position)
    pull = find_pulls(moment, layers, target, options)
    return {i: choose(Step.of(moment, i), options, pull.get(i)) for i in layers}


sizes = st.lists(st.floats(-1e3, 1e3, width=32), max_size=30)


@given(sizes, st.floats(0, 1))
def test_the_fewest_parts_carry_the_share(parts: list[float], share: float) -> None:
    kept = fewest(torch.tensor(parts), share)
    absolute = sorted((abs(part) for part in parts), reverse=True)
    carried = [abs(parts[i]) for i in kept]
    assert len(set(kept)) == len(kept)
    assert carried == absolute[: len(kept)]
    wanted = share * sum(absolute)
    assert sum(carried) >= wanted * (1 - 1e-9) or not any(parts)
    assert not kept or sum(carried[:-1]) <= wanted * (1 + 1e-9)


@given(sizes, st.integers(0, 40) | st.none())
def test_the_largest_are_positive_and_in_order(values: list[float], n: int | None) -> None:
    kept = [values[i] for i in largest(torch.tensor(values), n)]
    assert kept == sorted((v for v in values if v > 0), reverse=True)[:n]


@spanning
def test_counts_are_the_original_way(name: str) -> None:
    trace = traced(name)
    options = BlockOptions(heads=2, memories=1, neurons=(3, 2))
    for layer, chosen in choose_all(trace, trace.layers, LAST, 0, options).items():
        x = trace[layer]
        lengths = x.head_out[LAST].norm(dim=1)
        assert set(chosen.memories) == set(lengths.topk(min(2, len(lengths))).indices.tolist())
        for head, positions in chosen.memories.items():
            assert positions == (int(x.pattern[head, LAST].argmax()),)
        strengths = {
            (str(a.ff.address), i): c * float(a.ff.W_out[i].norm())
            for a in x.active(LAST)
            for i, c in enumerate(a.coefficients.tolist())
        }
        order = sorted(strengths, key=lambda at: strengths[at])
        high = [at for at in reversed(order) if strengths[at] > 0][:3]
        low = [at for at in order if strengths[at] < 0][:2]
        assert chosen.neurons == (*high, *low)
        if not (heads := trace.model.layers[layer].heads):
            assert chosen.rows == ()
            continue
        W_O = torch.cat([head.W_O for head in heads])
        rows = x.z[LAST].flatten() * W_O.norm(dim=1)
        best = [i for i in rows.argsort(descending=True).tolist() if rows[i] > 0][:3]
        worst = [i for i in rows.argsort().tolist() if rows[i] < 0][:2]
        assert chosen.rows == (*best, *worst)


def test_the_papers_way_ranks_by_the_coefficients_size() -> None:
    trace = traced("gpt2")
    (chosen,) = choose_all(
        trace, [1], LAST, 0, BlockOptions(neurons=(3, 2), by="absolute")
    ).values()
    assert trace[1].coefficients is not None
    best = trace[1].coefficients[LAST].abs().topk(5).indices.tolist()
    assert [i for _, i in chosen.neurons] == best


@pytest.mark.slow
@settings(max_examples=15)
@given(
    name=st.sampled_from(["gpt2", "llama", "gemma2", "mixtral", "bert", "gptj"]),
    share=st.floats(0, 1),
    by=st.sampled_from(["sum", "target"]),
)
def test_what_is_kept_carries_the_share_of_every_sum(name: str, share: float, by: str) -> None:
    trace, target = traced(name), 5
    options = BlockOptions(keep=share, keep_by=by)  # type: ignore[arg-type]
    full, draft = drafted(name, ALL), drafted(name, options, target=target)
    pull = pulls(Moment.of(trace, LAST), target, trace.layers)
    for id in draft.addends:
        layer, _, part = id.partition(".")
        if part not in ("concat", "attn_out", "ff_out") and not part.startswith("H"):
            continue
        along = full.vectors[id]
        if by == "target":
            ways = pull[int(layer[1:])]
            along = ways.ff if part == "ff_out" else ways.attention
        parts = {
            source: factor * full.vectors[source] @ along for factor, source in full.addends[id]
        }
        prunable = {s: abs(float(x)) for s, x in parts.items() if not s.endswith(("b_O", "b_out"))}
        kept = [s for _, s in draft.addends[id] if s in prunable]
        carried, whole = sum(prunable[s] for s in kept), sum(prunable.values())
        assert carried >= share * whole - 1e-4 * (1 + whole)
        assert not kept or carried - min(prunable[s] for s in kept) <= share * whole + 1e-4 * (
            1 + whole
        )


def test_counts_are_ceilings_beside_a_share() -> None:
    trace = traced("gpt2")
    options = BlockOptions(keep=1.0, heads=1, memories=2, neurons=(2, 1))
    for chosen in choose_all(trace, trace.layers, LAST, 0, options).values():
        assert len(chosen.memories) == 1
        assert all(len(positions) == 2 for positions in chosen.memories.values())
        assert len(chosen.rows) == len(chosen.neurons) == 3
    free = choose_all(trace, trace.layers, LAST, 0, replace(options, heads=None, neurons=None))
    assert all(len(chosen.memories) == 3 and len(chosen.rows) == 24 for chosen in free.values())


@spanning
def test_pulls_are_the_contributions(name: str) -> None:
    trace, target = traced(name), 5
    added = {leaf.component: leaf.contribution for leaf in trace.contributions(target)}
    found = pulls(Moment.of(trace, LAST), target, trace.layers)
    for layer, pull in found.items():
        step = Step.of(Moment.of(trace, LAST), layer)
        heads = (step.heads @ pull.attention).tolist()
        assert heads == pytest.approx([added[f"L{layer}H{i}"] for i in range(len(heads))], abs=1e-4)
        values = (step.coefficients * (step.W_out @ pull.ff)).tolist()
        names = [f"{owner}N{i}" for owner, i in step.neurons(range(len(values)))]
        assert values == pytest.approx([added[at] for at in names], abs=1e-4)


def test_the_summary_names_who_moved_the_target() -> None:
    trace = traced("qwen2-moe")
    graph = trace.flow(target=5, heads=0, neurons=(0, 0), static=False)
    summary = summarise(trace, graph)
    heads = [leaf for leaf in trace.contributions(5).top(99, kind="head") if leaf.layer == 0]
    best = max(heads, key=lambda leaf: abs(leaf.contribution))
    assert f"L0{summary.heads[0][0].name}" == best.component
    assert summary.neurons[0][0].name[0] in "ES"
    (table,) = summary.tables()
    assert len(table.rows) == len(graph.layers)
    place = graph.place(graph["L3.in"])
    assert place is not None
    assert table.rows[-1][3:5] == (place.probability, place.rank)


def test_only_reachable_layers_are_needed_for_the_targets_share() -> None:
    trace = traced("gpt2").model.trace(IDS, layers=[0])
    moment = Moment.of(trace, LAST)
    step, pull = Step.of(moment, 0), pulls(moment, 3, [0])[0]
    assert choose(step, BlockOptions(keep=0.5, keep_by="target"), pull).neurons
