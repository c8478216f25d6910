"""The graph as data: its JSON, what it refuses, and its other forms."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexray.errors import LexrayError
from lexray.flow import EdgeKind, Flow, NodeKind
from lexray.flow.graph import memory_name
from tests.flow import synthetic

SMALL = synthetic.graph(heads=1, neurons=(1, 0))
SHAPES = ("sequential", "gated", "parallel", "post-norm", "sandwich")


@pytest.mark.parametrize("how", SHAPES)
def test_json_round_trips_exactly(how: str) -> None:
    graph = synthetic.graph((3, 4, 9), how, embed=True, heads=3, neurons=(3, 2))
    assert Flow.from_json(graph.to_json()) == graph


def test_json_of_a_difference_graph_round_trips() -> None:
    graph = synthetic.difference()
    again = Flow.from_json(graph.to_json())
    assert again == graph
    assert again.is_difference


@pytest.mark.slow
@given(
    text=st.text(alphabet=st.characters(exclude_categories=[])),
    number=st.floats(allow_nan=False),
    neurons=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
@settings(max_examples=60)
def test_any_text_and_number_round_trips(
    text: str, number: float, neurons: tuple[int, int]
) -> None:
    graph = SMALL
    node = replace(graph.nodes[0], label=text, norm=number, count=3)
    edge = replace(graph.edges[0], score=abs(number), value=number)
    run = replace(graph.run, prompt=text)
    changed = replace(
        graph,
        run=run,
        nodes=(node, *graph.nodes[1:]),
        edges=(edge, *graph.edges[1:]),
        options={"neurons": neurons},
    )
    written = changed.to_json()
    json.loads(written, parse_constant=pytest.fail)  # strict JSON: no NaN, no Infinity
    written.encode("utf-8")
    assert Flow.from_json(written) == changed


def test_not_a_number_survives() -> None:
    graph = synthetic.graph(heads=1, neurons=(1, 0))
    broken = replace(graph, nodes=(replace(graph.nodes[0], norm=math.nan), *graph.nodes[1:]))
    assert math.isnan(Flow.from_json(broken.to_json()).nodes[0].norm or 0.0)
    assert "NaN" not in broken.to_svg(open_layers=[])
    broken.to_html()


def test_the_schema_has_what_is_documented() -> None:
    graph = synthetic.graph(heads=2, neurons=(2, 1))
    data = json.loads(graph.to_json())
    assert data["schema"] == "lexray.flow"
    assert data["version"] == 2
    assert data["prompt"] == "The capital of Japan is the city of"
    assert data["target"] == {"id": 0, "shown": "·Tokyo"}
    assert data["model"] == "gpt2-medium"
    assert len(data["nodes"]) == len(graph.nodes)
    assert len(data["edges"]) == len(graph.edges)
    for node, written in zip(graph.nodes, data["nodes"], strict=True):
        assert node.projection is not None
        tops = [data["vocabulary"][str(id)] for id, _ in written["reading"]["top"]]
        assert tops == [word.shown for word in node.projection.top]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 3}, "version 3"),
        ({"schema": "other"}, "no flow graph"),
        ({"nodes": None}, "damaged"),
        ({"target": {}}, "'id' is missing"),
        ({"target": {"id": 77, "shown": "x"}}, "not among the candidates"),
        ({"edges": [{"source": "a", "target": "b", "kind": "sum", "score": 1, "sign": 1}]}, "'a'"),
        ({"tokens": ["a", 5]}, "5 is no text"),
        ({"position": 999}, "position 999 is none of its"),
        ({"position": -1}, "damaged"),
        ({"d_vocab": 0}, "damaged"),
        ({"prediction": {"id": 1, "shown": "x", "weight": float("inf")}}, "damaged"),
        ({"layers": [float("inf")]}, "inf is no whole number"),
        ({"prompt": {"a": 1}}, "is no text"),
    ],
)
def test_other_json_is_refused(change: dict[str, Any], said: str) -> None:
    data = json.loads(synthetic.graph(heads=1, neurons=(1, 0)).to_json()) | change
    with pytest.raises(LexrayError, match=said):
        Flow.from_json(json.dumps(data))


@pytest.mark.parametrize(
    "change", [{"label": 5}, {"id": ["x"]}, {"layer": 1e300}, {"head": "x"}, {"norm": [1]}]
)
def test_nodes_of_the_wrong_kind_are_refused(change: dict[str, Any]) -> None:
    """A page or a picture of them would end in an error of Python's."""
    data = json.loads(synthetic.graph(heads=1, neurons=(1, 0)).to_json())
    data["nodes"][0] |= change
    with pytest.raises(LexrayError, match="damaged"):
        Flow.from_json(json.dumps(data))


def test_a_rank_below_the_first_is_refused() -> None:
    data = json.loads(synthetic.graph(heads=1, neurons=(1, 0)).to_json())
    data["nodes"][0]["reading"]["places"][0][0] = -7
    with pytest.raises(LexrayError, match="there is a -7 where the least is 1"):
        Flow.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '"x"', "{}", "[" * 100_000, "\ud800"])
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(LexrayError):
        Flow.from_json(text)


def test_ids_are_unique() -> None:
    graph = synthetic.graph(heads=1, neurons=(1, 0))
    with pytest.raises(LexrayError, match="occurs twice"):
        replace(graph, nodes=(*graph.nodes, graph.nodes[0]))


def test_places_belong_to_candidates() -> None:
    graph = synthetic.graph(heads=1, neurons=(1, 0))
    with pytest.raises(LexrayError, match="candidates"):
        replace(graph, candidates=graph.candidates[:2])


def test_nodes_by_id_and_their_edges() -> None:
    graph = synthetic.graph()
    head = graph["L14.H3"]
    assert head.kind == NodeKind.HEAD
    values = {edge.source for edge in graph.into("L14.H3")}
    assert {graph[id].kind for id in values} == {NodeKind.VALUE}
    assert [edge.target for edge in graph.out_of("L14.H3")] == ["L14.concat"]
    scores = [edge.score for edge in graph.into("L14.attn_out")]
    assert scores == sorted(scores, reverse=True)
    assert len(graph.of_kind("head")) == 10
    with pytest.raises(LexrayError, match=r"L14\.H3"):
        graph["l14.h3"]


def test_another_target() -> None:
    graph = synthetic.graph()
    node = graph.nodes[5]
    assert node.projection is not None
    other = graph.retarget("·London")
    assert other.place(node) == node.projection.places[3]
    assert graph.retarget(other.target.id).target.shown == "·London"
    with pytest.raises(LexrayError, match="·Osaka"):
        graph.retarget("·Rome")


def test_networkx_has_every_node_and_edge() -> None:
    graph = synthetic.graph()
    out = graph.to_networkx()
    assert set(out) == {node.id for node in graph.nodes}
    assert out.number_of_edges() == len(graph.edges)
    place = graph.place(graph["L14.H3"])
    assert place is not None
    assert out.nodes["L14.H3"]["rank"] == place.rank
    assert out.graph["target"] == "·Tokyo"
    kinds = {data["kind"] for _, _, data in out.edges(data=True)}
    assert kinds == {edge.kind.value for edge in graph.edges} <= {kind.value for kind in EdgeKind}


def test_the_sankey_has_every_edge_and_no_markup() -> None:
    graph = synthetic.graph()
    sankey = graph.to_plotly().data[0]
    assert len(sankey.link.source) == len(graph.edges)
    ends = [
        (graph.nodes[a].id, graph.nodes[b].id)
        for a, b in zip(sankey.link.source, sankey.link.target, strict=True)
    ]
    assert ends == [(edge.source, edge.target) for edge in graph.edges]
    assert not any("<" in label for label in sankey.node.label)


def test_tables_and_csv() -> None:
    graph = synthetic.graph()
    assert "·Tokyo" in str(graph)
    rows = list(csv.reader(io.StringIO(graph.to_csv())))
    assert [row[0] for row in rows] == ["node", *(node.id for node in graph.nodes)]


def test_names_of_memories() -> None:
    tokens = ("The", "·cat", "·the", "·cat")
    assert [memory_name(tokens, i) for i in range(4)] == ['"The"', '"·cat"#1', '"·the"', '"·cat"#3']


def test_without_extras(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    graph = synthetic.graph(heads=1, neurons=(1, 0))
    for package in ("anywidget", "resvg_py", "networkx"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LexrayError, match=r"lexray\[notebook\]"):
        graph.widget()
    with pytest.raises(LexrayError, match=r"lexray\[graph\]"):
        graph.to_networkx()
    with pytest.raises(LexrayError, match=r"lexray\[png\]"):
        graph.to_png(tmp_path / "flow.png")
    assert not list(tmp_path.iterdir())
    assert "data-node" in graph._repr_mimebundle_()["text/html"]


@pytest.mark.slow
def test_the_widget_carries_the_page_data() -> None:
    graph = synthetic.graph(heads=1, neurons=(1, 0))
    widget = graph.widget()
    assert len(json.loads(widget.data)["graph"]["nodes"]) == len(graph.nodes)
    assert widget.target == "·Tokyo"
    assert "application/vnd.jupyter.widget-view+json" in str(widget._repr_mimebundle_())


@pytest.mark.parametrize("odd", ["NaN", "1e999", "[-Infinity]"])
def test_options_that_are_no_numbers(odd: str) -> None:
    """Else the page, which is JSON too, could not be written."""
    text = synthetic.graph().to_json()
    spoiled = text.replace('"options":{', f'"options":{{"odd":{odd},', 1)
    spoiled = spoiled.replace('"options": {', f'"options": {{"odd": {odd},', 1)
    assert spoiled != text
    with pytest.raises(LexrayError, match="this flow graph is damaged"):
        Flow.from_json(spoiled)
