"""Flow graphs of encoder–decoders: a third sub-block, sums that stay true, source tokens named."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from lexray.flow.build.build import choose_layers, draw_draft
from lexray.flow.caption import caption
from lexray.flow.compare import compare
from lexray.flow.flow import Flow
from lexray.flow.graph import FlowGraph, NodeKind
from lexray.flow.options import BlockOptions
from lexray.flow.schema import from_json, to_json
from lexray.flow.summary import summarise
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step
from lexray.trace.attribute.walk import Logit
from lexray.trace.read.vectors import key_readers
from lexray.trace.trace import Trace
from tests.families.oracles import close
from tests.families.pairs import PAIRS
from tests.families.test_pairs import worded_pair

SOURCE, TARGET, WORD = [5, 11, 3, 29, 36, 7, 20, 8], [14, 9, 31], 9
every = pytest.mark.parametrize("name", [v.name for v in PAIRS])
some = pytest.mark.parametrize("name", ["flan-t5", "bart", "mbart"])


@cache
def run(name: str, *, encoder: bool = False) -> Trace:
    trace = worded_pair(name).view("raw").trace(SOURCE, target=TARGET)
    return trace.encoder if encoder else trace


@every
@pytest.mark.parametrize("encoder", [False, True])
@pytest.mark.parametrize("keep", [None, 0.6])
def test_sums_are_true(name: str, encoder: bool, keep: float | None) -> None:
    """Every sum of a draft is the sum of its addends, what is left out included."""
    trace = run(name, encoder=encoder)
    few = {"heads": 2, "memories": 2, "neurons": (3, 2)}
    how = few if keep is None else {"keep": keep, "keep_by": "target"}
    options = BlockOptions.check(**how)  # type: ignore[arg-type]
    moment = Moment.of(trace, -1)
    draft = draw_draft(moment, choose_layers(trace, None), WORD, options)
    assert any(".X" in id for id in draft.sketches) != encoder
    for target, addends in draft.addends.items():
        whole = draft.vectors[target]
        total = sum(factor * draft.vectors[source] for factor, source in addends)
        assert isinstance(total, torch.Tensor)
        close(total, whole)


@every
def test_shares_add_up_to_the_logit(name: str) -> None:
    trace = run(name)
    graph = trace.flow(target=WORD, heads=2, neurons=(2, 1))
    shares = _shares(graph)
    last = f"L{trace.model.n_layers}.in"
    post = f"L{trace.model.n_layers - 1}.ff_sum"
    end = shares[post] if post in shares else shares[last]
    logit = Logit(trace.weights, WORD)
    moment = Moment.of(trace, -1)
    norm = trace.weights.architecture.final_norm
    bias = norm.read_bias(trace.weights.checkpoint) if norm is not None else None
    constant = 0.0 if bias is None else float(bias @ logit.direction)
    if post in shares:  # the last norm's bias is behind the sum
        ff = trace.weights.architecture.blocks[-1].ff.sum_norm
        assert ff is not None
        behind = ff.read_bias(trace.weights.checkpoint)
        constant += 0.0 if behind is None else float(behind @ logit.direction)
    assert end + constant + (logit.bias or 0.0) == pytest.approx(logit.at(moment), abs=2e-3)
    for layer in range(trace.model.n_layers):
        behind = f"L{layer}.cross_out.normed"
        (edge,) = graph.out_of(
            behind if any(node.id == behind for node in graph.nodes) else f"L{layer}.cross_out"
        )
        assert edge.added is not None
        into = shares[f"L{layer}.cross_out"]
        assert into == pytest.approx(edge.added[graph.target_index], abs=2e-3)


def _shares(graph: FlowGraph) -> dict[str, float]:
    """What flows into each node, in the target's logit."""
    shares: dict[str, float] = {}
    for edge in graph.edges:
        if edge.added is not None:
            share = edge.added[graph.target_index]
            shares[edge.target] = shares.get(edge.target, 0.0) + share
    return shares


@every
def test_shares_are_contributions(name: str) -> None:
    trace = run(name)
    graph = trace.flow(target=WORD, heads=99, merge_qk=True)
    direct = trace.contributions(WORD)
    heads = graph.of_kind(NodeKind.HEAD)
    assert {node.address for node in heads} >= {"L0H1", "L0X1", "L1X2"}
    for node in heads:
        assert node.address is not None
        assert graph.contribution(node) == pytest.approx(direct[node.address], abs=2e-3)


@every
def test_memories_are_source_tokens(name: str) -> None:
    trace = run(name)
    graph = trace.flow(target=WORD, layers=[1], memories=3)
    n = len(SOURCE)
    assert (graph.run.n_source, graph.run.position) == (n, n + len(TARGET))
    shown = [token.shown for token in (*trace.encoder.tokens, *trace.tokens)]
    assert list(graph.run.tokens) == shown
    values = graph.of_kind(NodeKind.VALUE)
    for node in values:
        assert node.position is not None
        assert (node.position < n) == node.crosses == (".X" in node.id)
    crossing = [node for node in values if node.crosses and node.head == 2]
    weights = trace[1].cross.pattern[2, -1]
    assert {node.position for node in crossing} == set(weights.topk(3).indices.tolist())
    for node in crossing:
        (edge,) = graph.out_of(node.id)
        assert edge.score == pytest.approx(float(weights[node.position]), abs=1e-5)
        assert graph.of_kind(NodeKind.CROSS_OUT)
    reading = graph["L1.cross_out"].projection
    assert reading is not None
    lens = trace.lens("cross", layers=[1], positions=[-1], k=3)
    assert [w.id for w in reading.top[:3]] == lens.top_ids[0, 0].tolist()


@pytest.mark.slow
@some
def test_it_shows_itself(name: str) -> None:
    trace = worded_pair(name).trace(SOURCE, target=TARGET)
    graph = trace.flow(target=WORD)
    assert from_json(to_json(graph)) == FlowGraph(**{f: getattr(graph, f) for f in _FIELDS})
    assert "cross-attention" in trace.flow(target=WORD, layers=[0]).to_svg()
    page = graph.to_html()
    assert '"n_source": 8' in page or '"n_source":8' in page
    assert "→" in graph.to_svg(paper=True)
    assert "X" in str(summarise(trace, graph))
    assert caption(graph).endswith(".")
    assert graph.pin("L1X2").pins[0].nodes == ("L1.X2",)
    encoder = trace.encoder.flow(target=WORD)
    assert {node.address for node in encoder.of_kind(NodeKind.HEAD)} >= {"enc.L1H1"}
    assert encoder.run.n_source == 0
    assert isinstance(encoder, Flow)
    both = compare(trace, trace.model.trace(SOURCE[::-1], target=TARGET), target=WORD)  # type: ignore[attr-defined]
    assert both.is_difference
    assert both["L1.X1"].other is not None
    assert both.to_html()


_FIELDS = (
    *("run", "target", "candidates", "d_vocab", "layers", "nodes", "edges", "options"),
    *("other", "pins"),
)


def test_a_position_of_the_source_is_no_flow() -> None:
    data = to_json(run("t5").flow(target=WORD, layers=[0]))
    with pytest.raises(Exception, match="one of the source"):
        from_json(
            data.replace('"n_source":8', '"n_source":99').replace('"n_source": 8', '"n_source": 99')
        )


def test_a_source_s_keys_are_not_turned() -> None:
    """T5Gemma 2: a key meets a query that is turned by its own position, whatever the key's."""
    trace = run("t5gemma2")
    graph = trace.flow(target=WORD, layers=[1], memories=3, rotary=True)
    step = Step.of(Moment.of(trace, -1), 1)
    head = step.cross.own_heads[2]
    keys = [node for node in graph.of_kind(NodeKind.KEY) if node.crosses and node.head == 2]
    assert keys
    for node in keys:
        assert node.position is not None
        k = step.cross.k[[node.position], head.kv_index]
        reader = key_readers(head, k, torch.tensor([-step.position]), norm=True)[0]
        assert node.norm == pytest.approx(float(reader.norm()), rel=1e-4)
    turned, bare = trace[1].cross.q_rotated[-1, 2], trace[1].cross.q[-1, 2]
    assert head.spec.rotary is not None
    close(turned, head.spec.rotary.turn(bare[None, None], torch.tensor([step.position]))[0, 0])
