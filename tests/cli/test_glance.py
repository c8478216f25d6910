"""`lexray overview`, `layer` and `token`: what the library says."""

from __future__ import annotations

import json

import pytest

import lexray as lx
from tests.cli.running import lexray


@pytest.fixture(scope="module")
def model() -> lx.Model:
    return lx.Model.from_pretrained("demo")


def test_overview(model: lx.Model) -> None:
    ran = lexray(
        "overview",
        "demo",
        "--of",
        "neurons",
        "--by",
        "norm",
        "--layers",
        "2,-1",
        "--format",
        "json",
    )
    assert list(ran.json["layers"]) == ["L2", "L3"]
    norms = model.layers[2].values.tensor.float().norm(dim=1).tolist()
    assert ran.json["layers"]["L2"] == pytest.approx(norms, rel=1e-3)


@pytest.mark.slow
def test_layer(model: lx.Model) -> None:
    ran = lexray("layer", "demo", "L3", "-k", "4", "--ascii", "--format", "json")
    said = model.layers[3].values.top(4, filter=lx.filters.ascii).by_legibility()
    assert ran.json == json.loads(json.dumps(said.to_dict()))
    for wrong in ("L3H1", "L3N4", "L9"):
        assert lexray("layer", "demo", wrong).code != 0


@pytest.mark.slow
def test_token(model: lx.Model) -> None:
    token_id = model.space.id(" film")
    said = json.loads(json.dumps(lx.read_token(model, " film").to_dict()))
    for spelled in (" film", str(token_id)):
        assert lexray("token", "demo", spelled, "--format", "json").json == said
    assert lexray("token", "demo", "zzqqzz").code != 0


@pytest.mark.slow
def test_a_lookup_in_some_layers(model: lx.Model) -> None:
    ran = lexray(
        "lookup", "demo", " film", "--layers", "2-3", "--legible", "0.2", "--format", "json"
    )
    said = model.lookup([" film"], ["values"]).top(10, layers=[2, 3], legible=0.2)
    assert ran.json == json.loads(json.dumps(said.to_dict()))
