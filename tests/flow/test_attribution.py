"""Attribution graphs: what ours say in their form, against the schema and the contributions."""

from __future__ import annotations

import json
from functools import cache
from math import isqrt
from typing import Any

import pytest

from lexray.errors import LexrayError
from lexray.flow.attribution import from_attribution, to_attribution
from lexray.flow.flow import Flow
from tests.flow import synthetic
from tests.vocabulary.vocabularies import worded

IDS = [5, 9, 7, 9, 11]
METADATA = {"slug": str, "scan": str, "prompt_tokens": list, "prompt": str}
NODE = {
    "node_id": str, "feature": int, "layer": str, "ctx_idx": int, "feature_type": str,
    "jsNodeId": str, "clerp": str, "token_prob": float, "is_target_logit": bool, "run_idx": int,
    "reverse_ctx_idx": int,
}  # fmt: skip
LINK = {"source": str, "target": str, "weight": float}
"""What circuit-tracer's models and Neuronpedia's schema require, and of which type."""


@cache
def graph() -> Flow:
    return worded("llama").trace(IDS).flow(target=8, heads=3, neurons=(4, 3))


def has(data: dict[str, Any], required: dict[str, Any]) -> None:
    for name, kind in required.items():
        assert isinstance(data[name], kind), name


def test_it_has_all_that_the_schema_requires() -> None:
    data = json.loads(graph().to_attribution().to_json())
    has(data["metadata"], METADATA)
    assert set(data["qParams"]) == {"pinnedIds", "supernodes", "linkType", "clickedId", "sg_pos"}
    for node in data["nodes"]:
        has(node, NODE)
    ids = {node["node_id"] for node in data["nodes"]}
    assert len(ids) == len(data["nodes"])
    assert len({node["jsNodeId"] for node in data["nodes"]}) == len(ids)
    for link in data["links"]:
        has(link, LINK)
        assert {link["source"], link["target"]} <= ids
    positions = range(len(data["metadata"]["prompt_tokens"]))
    assert all(node["ctx_idx"] in positions for node in data["nodes"])


def unpair(feature: int) -> tuple[int, int]:
    """Cantor's pairing backwards, as their viewer does it."""
    w = (isqrt(8 * feature + 1) - 1) // 2
    number = feature - w * (w + 1) // 2
    return w - number, number


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_their_viewers_can_draw_it(name: str) -> None:
    """What Neuronpedia's and the papers' viewers do with the file before they draw, step by step:
    they tell features apart, give logits a row of their own above all others, find the pinned
    nodes and read probabilities from labels."""
    flow = worded(name).trace(IDS).flow(target=8, heads=3, neurons=(4, 3))
    head = next(node for node in flow.nodes if node.kind == "head")
    data = json.loads(flow.pin(**{"a group": [head.id]}).to_attribution().to_json())
    nodes, tokens = data["nodes"], data["metadata"]["prompt_tokens"]
    assert len({(n["layer"], n["feature"], n["ctx_idx"]) for n in nodes}) == len(nodes)
    assert all(n["jsNodeId"] == n["node_id"] for n in nodes), "pins hold for either viewer"
    by_id = {n["node_id"]: n for n in nodes}
    inner = [n for n in nodes if n["feature_type"] not in ("embedding", "logit")]
    assert max(int(n["layer"]) for n in inner) > 0
    for n in inner:
        layer, number, position = map(int, n["node_id"].split("_"))
        assert (str(layer), position) == (n["layer"], n["ctx_idx"])
        assert unpair(n["feature"]) == (layer, number)
    for n in (n for n in nodes if n["feature_type"] == "logit"):
        assert int(n["layer"]) > max(int(other["layer"]) for other in inner)
        assert float(n["clerp"].split("(p=")[1].split(")")[0]) == pytest.approx(
            n["token_prob"], abs=5e-4
        )
        assert n["clerp"].split('"')[1]
    assert {n["layer"] for n in nodes if n["feature_type"] == "embedding"} == {"E"}
    assert all(by_id[f"E_{i}_{i}"]["ctx_idx"] == i for i in range(len(tokens)))
    params = data["qParams"]
    assert set(params["pinnedIds"]) <= set(by_id)
    assert all(set(group[1:]) <= set(params["pinnedIds"]) for group in params["supernodes"])
    weights = [link["weight"] for link in data["links"]]
    assert all(weight == weight and abs(weight) < float("inf") for weight in weights)
    fed = {link["target"] for link in data["links"]}
    stream = next(n for n in inner if n["feature_type"] == "residual stream")
    assert stream["node_id"] in fed, "the stream before the first block is the token's own"


def test_neurons_keep_their_numbers() -> None:
    found = to_attribution(graph())
    for node in found.nodes:
        if node.feature_type == "mlp neuron":
            assert node.feature is not None
            assert f"L{node.layer}N{unpair(node.feature)[1]}" in node.clerp


def test_links_into_the_logit_make_up_the_logit() -> None:
    """Everything that was added, from the first block's input on: the logit itself."""
    found = to_attribution(graph())
    (target,) = [node for node in found.nodes if node.is_target_logit]
    into = [link.weight for link in found.links if link.target == target.node_id]
    logit = worded("llama").trace(IDS).contributions(8).logit
    assert sum(into) == pytest.approx(logit, abs=2e-3)
    largest = max((n for n in found.nodes if n.influence), key=lambda n: -(n.influence or 0))
    weights = {
        link.source: abs(link.weight) for link in found.links if link.target == target.node_id
    }
    assert weights[largest.node_id] == max(weights.values())
    assert max(n.influence or 0.0 for n in found.nodes) == pytest.approx(1.0)


def test_tokens_lead_to_the_heads_that_look_at_them() -> None:
    found = to_attribution(graph())
    heads = {n.node_id: n for n in found.nodes if n.feature_type == "attention head"}
    links = [link for link in found.links if link.target in heads]
    assert links
    trace = worded("llama").trace(IDS)
    for link in links:
        position, node = int(link.source.split("_")[1]), heads[link.target]
        head = int(node.clerp.split(":")[0].split("H")[1])
        weight = float(trace[int(node.layer)].pattern[head, -1, position])
        assert link.weight == pytest.approx(weight, abs=1e-5)


def test_round_trip_and_pins() -> None:
    head = next(node for node in graph().nodes if node.kind == "head")
    pinned = graph().pin(**{"a group": [head.id]})
    found = to_attribution(pinned, "mine")
    assert from_attribution(found.to_json()) == found
    assert found.metadata["slug"] == "mine"
    ((name, member),) = found.params["supernodes"]
    assert name == "a group"
    assert member in found.params["pinnedIds"]
    assert "nodes" in str(found)


def test_theirs_are_read() -> None:
    text = json.dumps(
        {
            "metadata": {"slug": "s", "scan": "gemma-2-2b", "prompt": "a b", "prompt_tokens": []},
            "qParams": {"pinnedIds": ["27_5_1"], "supernodes": []},
            "nodes": [
                {"node_id": "E_2_0", "feature": 0, "layer": "E", "ctx_idx": 0,
                 "feature_type": "embedding", "jsNodeId": "E_2-0", "clerp": ""},
                {"node_id": "3_253_1", "feature": 253, "layer": "3", "ctx_idx": 1,
                 "feature_type": "cross layer transcoder", "jsNodeId": "3_253-0", "clerp": "Texas",
                 "influence": 0.4, "activation": 9.4},
            ],
            "links": [{"source": "E_2_0", "target": "3_253_1", "weight": 12.9}],
        }
    )  # fmt: skip
    found = from_attribution(text)
    assert found.nodes[1].clerp == "Texas"
    assert found.links[0].weight == 12.9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no attribution graph"),
        ("[]", "no attribution graph"),
        ('{"metadata": {}, "nodes": []}', "'links' is missing"),
        (
            '{"metadata": {}, "nodes": [], "links": [{"source": "a", "target": "b", "weight": 1}]}',
            "no such node",
        ),
    ],
)
def test_what_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(LexrayError, match=said):
        from_attribution(text)


def test_graphs_without_shares_are_refused() -> None:
    with pytest.raises(LexrayError, match="which this flow graph does not know"):
        to_attribution(synthetic.graph((3,)))


@pytest.mark.parametrize("name", ["llama", "falcon-h1", "gemma4", "gemma3n", "gemma3n-even"])
def test_links_into_a_logit_make_it_up(name: str) -> None:
    """Also what mixers write, and of several streams what passes a block by."""
    trace = worded(name).trace(IDS)
    data = trace.flow(target=8, heads=3, neurons=(4, 3)).to_attribution()
    (logit,) = [node.node_id for node in data.nodes if node.is_target_logit]
    found = sum(link.weight for link in data.links if link.target == logit)
    assert found == pytest.approx(trace.contributions(8).logit, abs=1e-3)
