"""The graph's vectors add up to the trace's, and its readings are an independent projection's."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.families import Norm
from lexray.flow import EdgeKind, Flow, NodeKind
from lexray.flow.build.draft import Draft, Sketch
from lexray.flow.graph import Node
from lexray.flow.options import BlockOptions
from lexray.model.model import Model
from lexray.trace.trace import Trace
from lexray.view import RAW, STANDARD, View
from tests.families.gguf.writer import convert
from tests.families.span import spanning
from tests.families.zoo import build
from tests.flow.runs import ALL, IDS, KINDS, NOTHING, SOME, drafted, graphed, traced
from tests.vocabulary.vocabularies import worded

LAST = len(IDS) - 1
ENDS = ("top", "bottom")


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=2e-5)


def expected_sums(trace: Trace, at: int) -> dict[str, Tensor]:
    """What each node that is a sum has to come to, from the trace and the model's own weights."""
    model, found = trace.model, {}
    for index in trace.layers:
        x, layer = trace[index], model.layers[index]
        name, spec = f"L{index}", layer.spec
        for head in layer.heads:
            weights, values = x.pattern[head.index, at], x.v[:, head.kv_index]
            gate = 1 if x.gate is None else x.gate[at, head.index]
            found[f"{name}.H{head.index}"] = weights @ values * gate @ head.W_O
        if layer.heads:
            found[f"{name}.concat"] = x.head_out[at].sum(0)
            found[f"{name}.attn_out"] = x.attn_write[at]
        found[f"{name}.ff_out"] = x.mlp_write[at]
        if spec.attention.sum_norm is not None:
            found[f"{name}.attn_sum"] = x.resid_pre[at] + x.attn_out[at]
        elif not spec.parallel:
            found[f"{name}.mid"] = x.resid_mid[at]
        last = spec.mixer is not None and spec.mixer.last
        if last:
            found[f"{name}.late"] = x.resid_mid[at] + x.mlp_out[at]
        if spec.ff.sum_norm is not None or spec.factor is not None:
            more = x.mixer_out[at] if last else 0
            found[f"{name}.ff_sum"] = x.resid_mid[at] + x.mlp_out[at] + more
        elif spec.altup is None:
            found[f"L{index + 1}.in"] = x.resid_post[at]
    if model.architecture.embed_norm is None and model.architecture.streams is None:
        found["L0.in"] = trace.embed[at]
    return found


def total(draft: Draft, id: str) -> Tensor:
    parts = [factor * draft.vectors[source] for factor, source in draft.addends[id]]
    return torch.stack(parts).sum(0)


@spanning
def test_every_sum_is_what_its_parts_come_to(name: str) -> None:
    """With everything shown nothing is left for "others" to make good."""
    draft = drafted(name, ALL)
    assert not [s for s in draft.sketches.values() if s.kind == NodeKind.OTHERS]
    expected = expected_sums(traced(name), LAST)
    assert draft.addends.keys() == expected.keys()
    whole = torch.stack(list(expected.values()))
    close(torch.stack([draft.vectors[id] for id in expected]), whole)
    close(torch.stack([total(draft, id) for id in expected]), whole)


def check_sums(name: str, options: BlockOptions, position: int) -> None:
    trace = traced(name)
    draft = drafted(name, options, position)
    expected = expected_sums(trace, position)
    shown = {id: v for id, v in expected.items() if id in draft.vectors}
    assert draft.addends.keys() == shown.keys()
    assert len(shown) >= 3 * len(trace.layers)
    close(torch.stack([total(draft, id) for id in shown]), torch.stack(list(shown.values())))


@spanning
def test_sums_stay_true_when_much_is_left_out(name: str) -> None:
    check_sums(name, SOME, LAST)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("options", [NOTHING, BlockOptions(keep=0.5), BlockOptions(by="absolute")])
def test_sums_stay_true_however_much_is_left_out(name: str, options: BlockOptions) -> None:
    check_sums(name, options, 4)


@spanning
def test_others_count_what_is_left_out(name: str) -> None:
    trace = traced(name)
    few, full = drafted(name, SOME), drafted(name, ALL)
    counts = {s.id: s.place["count"] for s in few.sketches.values() if s.kind == NodeKind.OTHERS}
    for layer in trace.layers:
        heads = len(trace.model.layers[layer].heads)
        rows = [(f"L{layer}.W_O.others", "o_neuron")] if heads else []
        for id, kind in ((f"L{layer}.ff.others", "ff_value"), *rows):
            shown = [number_of(draft, layer, kind) for draft in (few, full)]
            assert counts[id] == shown[1] - shown[0] > 0
        assert counts.get(f"L{layer}.heads.others", 0) == max(heads - 2, 0)


def number_of(draft: Draft, layer: int, kind: str) -> int:
    return len([s for s in draft.sketches.values() if s.kind == kind and s.layer == layer])


def dense(model: Model, sketches: list[Sketch], norm: bool) -> Tensor:
    """The logits of all vectors in float64, written the long way round."""
    a, W_U = model.architecture, model.W_U.double()
    rows = []
    for sketch in sketches:
        x = sketch.vector.double()
        if sketch.side == "writing" and norm:
            x = x if sketch.behind is None else through_gain(x, sketch.behind, model)
            x = x if a.final_norm is None else a.final_norm(x, model.checkpoint)
        rows.append(x)
    writes = torch.tensor([sketch.side == "writing" for sketch in sketches])[:, None]
    logits = torch.stack(rows) @ W_U
    as_written = logits * a.logit_scale + (0 if model.b_U is None else model.b_U.double())
    return torch.where(writes, as_written, logits)


def through_gain(x: Tensor, norm: Norm, model: Model) -> Tensor:
    x = x - x.mean() if norm.centres else x
    gain = norm.read_gain(model.checkpoint)
    return x if gain is None else x * gain.double()


def check_readings(name: str, options: BlockOptions) -> None:
    model, graph, draft = traced(name).model, graphed(name, options), drafted(name, options)
    sketches = list(draft.sketches.values())
    assert [node.id for node in graph.nodes] == [sketch.id for sketch in sketches]
    logits = dense(model, sketches, options.norm)
    capped, cap = logits.clone(), model.architecture.logit_cap
    if cap is not None:
        writes = [sketch.side == "writing" for sketch in sketches]
        capped[writes] = cap * (logits[writes] / cap).tanh()
    probs = capped.softmax(-1)
    seen = [node.projection for node in graph.nodes if node.projection is not None]
    top, bottom = (torch.tensor([[w.id for w in getattr(p, end)] for p in seen]) for end in ENDS)
    close(logits.gather(1, top), logits.sort(1, descending=True).values[:, :4])
    close(logits.gather(1, bottom), logits.sort(1).values[:, :4])
    weights = [[[w.weight for w in getattr(p, end)] for p in seen] for end in ENDS]
    close(torch.tensor(weights[0]), probs.gather(1, top))
    close(torch.tensor(weights[1]), probs.gather(1, bottom))
    close(torch.tensor([p.entropy for p in seen]), -(probs * probs.log()).sum(1))
    ids = [word.id for word in graph.candidates]
    places = [[(place.probability, place.rank - 1) for place in p.places] for p in seen]
    chances, ranks = torch.tensor(places, dtype=torch.float64).unbind(-1)
    close(chances, probs[:, ids])
    margin = 1e-5 * (1 + logits.abs().amax(1)[:, None, None])
    wanted = logits[:, ids, None]
    assert ((logits[:, None] > wanted + margin).sum(-1) <= ranks).all()
    assert ((logits[:, None] > wanted - margin).sum(-1) >= ranks).all()
    close(
        torch.tensor([node.norm for node in graph.nodes]),
        torch.stack([s.vector for s in sketches]).norm(dim=1),
    )


@spanning
def test_readings_are_those_of_a_dense_projection(name: str) -> None:
    check_readings(name, SOME)


@pytest.mark.parametrize("name", KINDS)
def test_readings_without_norms(name: str) -> None:
    check_readings(name, replace(SOME, norm=False))


@spanning
def test_parameters_behind_nodes_are_the_models(name: str) -> None:
    """Addresses lead to the vectors; a negative coefficient negates the node, not the parameter."""
    trace = traced(name)
    graph, draft = graphed(name), drafted(name, SOME)
    signs = {e.target: e.sign for e in graph.edges if e.kind == EdgeKind.ACTIVATION}
    ours = [draft.sketches[n.id] for n in graph.nodes if draft.sketches[n.id].parameter]
    assert {n.id for n in graph.nodes if n.static} == {s.id for s in ours}
    stored = torch.stack([s.parameter[1] for s in ours if s.parameter])
    named = [i for i, s in enumerate(ours) if s.place["address"]]
    theirs = [trace.model[ours[i].place["address"]].tensor for i in named]
    close(stored[named], torch.stack(theirs))
    neurons = [i for i, s in enumerate(ours) if s.kind in ("o_neuron", "ff_value")]
    sign = torch.tensor([signs[ours[i].id] for i in neurons])
    close(torch.stack([ours[i].vector for i in neurons]), sign[:, None] * stored[neurons])
    assert (sign < 0).sum() >= 2


@pytest.mark.parametrize("view", [RAW, View(folded=True), STANDARD])
@pytest.mark.parametrize("name", KINDS)
def test_parameters_are_also_read_by_themselves(name: str, view: View) -> None:
    """By the model's own view, as its address gives it; also those of the first block."""
    model = traced(name).model.with_view(view)
    graph = model.trace(IDS).flow(**vars(SOME))
    for kind in ("o_neuron", "ff_key", "ff_gate", "ff_value", "attn_bias"):
        nodes = graph.of_kind(kind)
        for node in nodes[:1] + nodes[-1:]:
            assert node.static is not None
            assert node.address is not None
            reading = model[node.address].top(4)
            for ours, theirs in (
                (node.static.top, reading.top),
                (node.static.bottom, reading.bottom),
            ):
                assert [w.id for w in ours] == [scored.token.id for scored in theirs]
                scores = [s.score for s in theirs]
                assert [w.weight for w in ours] == pytest.approx(scores, rel=1e-4, abs=1e-5)


@spanning
def test_scores_are_the_recorded_coefficients(name: str) -> None:
    trace, graph = traced(name), graphed(name)
    for edge in graph.edges:
        source, target = graph[edge.source], graph[edge.target]
        assert edge.score >= 0
        if edge.kind == EdgeKind.ATTENTION:
            memory = target if target.position is not None else source
            weight = trace[memory.layer].pattern[memory.head, LAST, memory.position]
            assert edge.score == pytest.approx(float(weight), abs=1e-6)
        elif edge.kind == EdgeKind.ACTIVATION and target.kind == NodeKind.O_NEURON:
            _, i = target.label.split("·")
            z = float(trace[target.layer].z[LAST, target.head, int(i)])
            assert edge.sign * edge.score == pytest.approx(z, abs=1e-6)
        elif edge.kind == EdgeKind.ACTIVATION and target.kind == NodeKind.FF_VALUE:
            c = coefficient(trace, target)
            assert edge.sign * edge.score == pytest.approx(c, rel=1e-4, abs=1e-6)
        elif edge.kind in (EdgeKind.RESIDUAL_ATTN, EdgeKind.RESIDUAL_FF):
            several = trace.model.architecture.streams is not None
            carried = edge.value if several else source.norm
            assert edge.score == pytest.approx(carried, rel=1e-5)


def coefficient(trace: Trace, node: Node) -> float:
    assert node.address is not None
    owner, neuron = re.fullmatch(r"(.*)N(\d+)\.value", node.address).groups()  # type: ignore[union-attr]
    (found,) = [a for a in trace[node.layer].active(LAST) if str(a.ff.address) == owner]
    return float(found.coefficients[int(neuron)])


UNBIASED = ["gptj", "gpt-neo", "llama", "llama-yarn", "mistral", "gemma2", "phi3", "falcon-7b"]


@pytest.mark.parametrize("name", [*UNBIASED, "cohere2", "modernbert"])
def test_keys_read_as_what_the_query_is_scored_by(name: str) -> None:
    """The product of a key's reading with the attention's input is the attention score."""
    trace = traced(name)
    draft = drafted(name, replace(SOME, norm=False))
    keys = [s for s in draft.sketches.values() if s.kind == NodeKind.KEY]
    assert len(keys) >= len(trace.layers)
    for key in keys:
        x, at = trace[key.layer], key.place
        head = trace.model.layers[key.layer].heads[at["head"]]
        score = x.q_rotated[LAST, head.index] @ x.k_rotated[at["position"], head.kv_index]
        close(key.vector @ x.attn_in[LAST], score * head.spec.scale)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma", "bert", "modernbert"])
def test_graphs_are_stable_and_round_trip(name: str) -> None:
    graph = graphed(name)
    assert graph.to_json() == worded(name).trace(IDS).flow(**vars(SOME)).to_json()
    assert Flow.from_json(graph.to_json()) == graph


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "mixtral"])
def test_one_kept_position_suffices(name: str) -> None:
    whole = traced(name).flow(position=4, **vars(SOME))
    alone = worded(name).trace(IDS, positions=[4]).flow(position=4, **vars(SOME))
    assert [node.id for node in whole.nodes] == [node.id for node in alone.nodes]
    assert whole.candidates == alone.candidates
    assert whole.edges == alone.edges


def test_ids_say_what_a_node_is() -> None:
    graph = traced("llama").flow(heads=9, memories=9, neurons=(2, 2), k=2)
    assert graph['L1.H3.value@"·walk"'].position == 0
    repeated = [n for n in graph.nodes if n.position == 5 and n.head == 0 and n.layer == 0]
    assert [n.id[-2:] for n in repeated] == ["#5", "#5"]
    kinds = {node.kind for node in graph.nodes}
    assert kinds >= {"embed", "residual", "norm", "qkv", "query", "ff_gate", "mid"}
    assert graph["L2.in"].label == "output"


def test_merging_leaves_out_queries_keys_and_gates() -> None:
    trace = traced("llama")
    graph = trace.flow(merge_qk=True, merge_neurons=True, heads=2, neurons=(3, 2))
    gone = {NodeKind.QUERY, NodeKind.KEY, NodeKind.FF_KEY, NodeKind.FF_GATE}
    assert not gone & {node.kind for node in graph.nodes}
    value = graph.of_kind(NodeKind.VALUE)[0]
    assert [edge.source for edge in graph.into(value.id)] == [f"L{value.layer}.qkv"]
    neuron = graph.of_kind(NodeKind.FF_VALUE)[0]
    assert [edge.source for edge in graph.into(neuron.id)] == [f"L{neuron.layer}.ff_norm"]


def test_parallel_blocks_fork_at_the_norm() -> None:
    graph = graphed("gptj")
    assert not graph.of_kind(NodeKind.MID)
    assert not [e for e in graph.edges if e.kind == EdgeKind.RESIDUAL_ATTN]
    kinds = {graph[e.target].kind for e in graph.out_of("L0.attn_norm")}
    assert kinds == {NodeKind.QKV, NodeKind.FF_KEY}
    assert "L0.ff_norm" in {node.id for node in graphed("neox").nodes}


def test_norms_stand_where_the_family_puts_them() -> None:
    sandwich, after = map(graphed, ("gemma2", "bert"))
    assert [e.source for e in sandwich.into("L0.attn_out.normed")] == ["L0.attn_out"]
    assert {e.source for e in sandwich.into("L0.mid")} == {"L0.attn_out.normed", "L0.in"}
    assert [e.source for e in after.into("L0.mid")] == ["L0.attn_sum"]
    assert [e.source for e in after.into("L1.in")] == ["L0.ff_sum"]
    assert [e.source for e in after.into("L0.qkv")] == ["L0.in"]
    assert [e.kind for e in after.into("L0.in")] == [EdgeKind.NORM]


def test_an_encoder_looks_both_ways() -> None:
    trace = traced("bert")
    graph = trace.flow(position=1, heads=2, memories=9, neurons=(1, 1))
    assert {n.position for n in graph.of_kind(NodeKind.VALUE)} == set(range(len(IDS)))
    few: dict[str, Any] = {"heads": 0, "neurons": (0, 0)}
    plain, through = (trace.flow(position=1, transform=t, **few)["L2.in"] for t in (False, True))
    own = trace.logits[1].softmax(-1)
    assert through.projection is not None
    assert plain.projection != through.projection
    top = through.projection.top[0]
    assert top.id == int(own.argmax())
    assert top.weight == pytest.approx(float(own.max()), rel=1e-4)


def test_the_target_is_what_the_model_says_unless_told() -> None:
    trace = traced("gpt2")
    graph = graphed("gpt2")
    best = trace.logits[-1].argsort(descending=True).tolist()
    assert graph.target.id == best[0]
    ids = [word.id for word in graph.candidates]
    assert len(ids) == 10
    assert set(best[:5]) < set(ids)
    assert set(IDS[-3:]) < set(ids)
    told = trace.flow(target="·law", candidates=["city", 7], **vars(SOME))
    assert told.target.shown == "·law"
    assert [word.id for word in told.candidates][:3] == [1, 14, 7]
    place = told.place(told["L2.in"])
    assert place is not None
    assert place.rank == best.index(1) + 1
    assert place.probability == pytest.approx(float(trace.logits[-1].softmax(-1)[1]), rel=1e-4)


def test_of_a_longer_word_the_first_token_counts() -> None:
    graph = traced("gpt2").flow(target="ab", **vars(SOME))
    assert graph.target.shown == "a"
    assert "first" in graph.options["note"]


def test_a_model_without_a_head_still_has_a_target() -> None:
    whole = worded("gpt2")
    bare = whole.trace(IDS, what=["residual", "attention", "heads", "mlp"])
    assert bare.flow(**vars(SOME)).target == graphed("gpt2").target


def test_layers_can_be_chosen() -> None:
    trace = traced("gemma3")
    graph = trace.flow(layers=[0, -1], **vars(SOME))
    assert graph.layers == (0, 2)
    assert {node.layer for node in graph.nodes} == {0, 1, 2, 3}
    assert not [e for e in graph.edges if (e.source, e.target) == ("L1.in", "L2.in")]


@pytest.mark.parametrize("name", ["olmo2", "qwen3", "gpt2"])
def test_a_checkpoint_under_other_names_gives_the_same_graph(name: str, tmp_path: Path) -> None:
    """The weights come from the module that ran, whose names are not the file's."""
    model = Model.from_pretrained(convert(build(name)).save(tmp_path / "model.gguf")).view("raw")
    ours = model.trace(IDS).flow(target=3, candidates=[5], **vars(SOME))
    theirs = traced(name).flow(target=3, candidates=[5], **vars(SOME))
    assert [node.id.split("@")[0] for node in ours.nodes] == [
        node.id.split("@")[0] for node in theirs.nodes
    ]
    for a, b in zip(ours.edges, theirs.edges, strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-3, abs=1e-5)
    for a, b in zip(ours.nodes, theirs.nodes, strict=True):
        assert a.projection is not None
        assert b.projection is not None
        assert a.projection.entropy == pytest.approx(b.projection.entropy, abs=1e-3)


def test_half_precision_runs() -> None:
    trace = traced("llama")
    module = trace.model.module()
    half = Model.from_module(type(module)(module.config).to(torch.bfloat16).eval()).view("raw")  # type: ignore[call-arg]
    graph = half.trace(IDS).flow(**vars(SOME))
    assert all(node.norm is not None for node in graph.nodes)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": -1}, "heads=-1"),
        ({"neurons": (1, -2)}, "neurons=-2"),
        ({"keep": 1.5}, "0 to 1"),
        ({"k": 0}, "k=0"),
        ({"layers": [9]}, "no layer 9"),
        ({"position": 99}, "no position 99"),
        ({"target": 999}, "999"),
        ({"colour": "red"}, "no option colour"),
        ({"candidates": "law"}, "list of tokens"),
    ],
)
def test_mistakes_are_explained(options: dict[str, Any], said: str) -> None:
    with pytest.raises(LexrayError, match=re.escape(said)):
        traced("gpt2").flow(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"neurons": 5}, "(18, 7)"),
        ({"by": "size"}, "signed, absolute"),
        ({"keep_by": "x"}, "sum, target"),
    ],
)
def test_what_a_type_checker_would_refuse_is_explained_too(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(LexrayError, match=re.escape(said)):
        BlockOptions.check(**options)


def test_what_was_not_kept_is_said() -> None:
    with pytest.raises(LexrayError, match="what="):
        worded("gpt2").trace(IDS, what="residual").flow()
    with pytest.raises(LexrayError, match="layer"):
        worded("gpt2").trace(IDS, layers=[0]).flow(layers=[1])
