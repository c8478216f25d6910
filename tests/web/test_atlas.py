"""An atlas that is served: every page stands, and what is stored is what would be worked out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import lexray as lx
from lexray.find.overview import overview
from lexray.model.origin import Origin
from lexray.web.library import Library
from tests.web.house import open_client
from tests.web.test_pages import Inline, read, run, sections, twin_of

pytest.importorskip("duckdb", reason="an atlas needs DuckDB")
pytestmark = pytest.mark.slow
K = 20
PAGES = [
    "/demo/map",
    "/demo/map?colour=relation&neurons=norm",
    "/demo/map?colour=norm",
    "/demo/L2H1?k=4",
    "/demo/L3N17?k=5",
    "/demo/L3N17.value?k=5",
    "/demo/L3H2.V12?k=5",
    "/demo/L2.mlp_norm?k=5",
    "/demo/token/500",
    "/demo/token/500?view=raw",
    "/demo/L1",
    "/demo/search?q=actor+·film",
    "/demo/search?q=actor&layers=2&legible=0.2",
]
WORKED_OUT = "/demo/token/500?view=raw"
"""Of which an atlas has nothing, under this view."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    where = tmp_path_factory.mktemp("atlas") / "demo"
    lx.Atlas.write("demo", where, k=K)
    found = Library.of([Origin(str(where))])
    assert found["demo"].origin.source == "demo"
    return found


@pytest.fixture(scope="module")
def client(library: Library) -> Iterator[TestClient]:
    with open_client(library) as found:
        yield found


@pytest.mark.parametrize("path", PAGES)
def test_every_page_stands_and_its_calls_give_the_same(
    client: TestClient, library: Library, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert not Inline(answer.text).found
    stored = 0
    for name, section in sections(client, path):
        if "atlas." in section["python"] and name != "found":
            assert run(section["python"], library, monkeypatch).to_dict() == section["content"]
            stored += 1
    assert bool(stored) == (path != WORKED_OUT)


def rows(client: TestClient, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read(client, path)["content"]["rows"]
    return found


def test_the_map_is_what_the_model_says(client: TestClient, library: Library) -> None:
    model = library["demo"].model
    heads = {row["address"]: row for row in rows(client, "/demo/map/heads.json?colour=norm")}
    assert len(heads) == 20
    for layer, figures in overview(model, "norm", "heads").to_dict()["layers"].items():
        norms = [heads[f"{layer}H{i}"]["vo_norm"] for i in range(len(figures))]
        assert norms == pytest.approx(figures, rel=1e-3)
    legible = model["L2H1"].vo.top(K).legibility
    assert heads["L2H1"]["vo_legibility"] == pytest.approx(legible, abs=1e-3)
    for colour in ("norm", "legibility"):
        strip = [
            row["figure"] or 0
            for row in rows(client, f"/demo/map/neurons.json?neurons={colour}&layer=2")
        ]
        figures = overview(model, colour, "neurons", [2]).to_dict()["layers"]["L2"]
        assert strip == pytest.approx(figures, rel=1e-3, abs=1e-3)
    stored_roles = {
        (row["address"], row["role"]) for row in rows(client, "/demo/map/heads.json?colour=role")
    }
    catalogue = model.catalogue(measure=False).to_dict()["heads"]
    assert stored_roles == {
        (head["address"], role["role"]) for head in catalogue for role in head["roles"]
    }


def test_stored_lists_are_those_of_the_neurons(client: TestClient, library: Library) -> None:
    """Who writes a token: the values in whose lists it stands, highest first."""
    model = library["demo"].model
    found = rows(client, "/demo/token/500/writers.json")
    assert found
    for row in found[:5]:
        top = model[row["address"].removesuffix(".value")].value.top(K).top
        assert top[row["rank"] - 1].token.id == 500
        assert top[row["rank"] - 1].score == pytest.approx(row["score"], rel=1e-3)
    ranks = [row["rank"] for row in found]
    assert ranks == sorted(ranks)
    address = found[0]["address"].removesuffix(".value")
    assert f"/demo/{address}" in client.get("/demo/token/500").text


@pytest.mark.parametrize("matrix", ["vo", "qk"])
@pytest.mark.parametrize("same", ["any", "other"])
def test_stored_pairs_are_those_of_the_head(
    client: TestClient, library: Library, matrix: str, same: str
) -> None:
    """Where enough of them are stored; of heads that copy most pairs are of a token with itself."""
    circuits = {str(head.address): getattr(head, matrix) for head in library["demo"].model.heads}
    stored = 0
    for address, circuit in list(circuits.items())[:8]:
        said = read(client, f"/demo/{address}/{matrix}.json?k=6&same={same}")
        expected = circuit.top(6, exclude_same=same == "other")
        if "rows" not in said["content"]:
            best = circuit.top(K)
            left = [pair for pair in best if not is_same(pair)]
            assert same == "other"
            assert len(left) < 6
            continue
        stored += 1
        assert [(row["row"], row["col"]) for row in said["content"]["rows"]] == [
            (pair.row.id, pair.col.id) for pair in expected
        ]
    assert stored


def is_same(pair: Any) -> bool:
    folded = [token.text.strip().casefold() for token in (pair.row, pair.col)]
    return pair.row.id == pair.col.id or (folded[0] == folded[1] != "")


def test_stored_lists_of_a_neuron_are_its_own(client: TestClient, library: Library) -> None:
    found = rows(client, "/demo/L3N17/readings.json?k=7")
    for reading in library["demo"].model["L3N17"].top(7):
        kind, _, side = reading.name.partition(" ")
        (row,) = [
            row for row in found if row["kind"] == kind and (row["side"] == "expects") == bool(side)
        ]
        assert row["top_ids"] == [scored.token.id for scored in reading.top]
        assert row["bottom_ids"] == [scored.token.id for scored in reading.bottom]
    page = client.get("/demo/L3N17?k=7").text
    assert page.count('class="reading"') == len(found)


def test_what_an_atlas_lacks_is_worked_out(tmp_path: Path) -> None:
    lx.Atlas.write("demo", tmp_path / "some", kinds=["values"], layers=[2], k=5)
    with open_client(Library.of([Origin(str(tmp_path / "some"))])) as some:
        stored = {
            path: "atlas." in read(some, path)["python"]
            for path in (
                "/demo/map/neurons.json?layer=2",
                "/demo/map/neurons.json?layer=1",
                "/demo/map/heads.json",
                "/demo/L2N17.value/readings.json?k=5",
                "/demo/L2N17.value/readings.json?k=6",
                "/demo/L2N17.key/readings.json?k=5",
                "/demo/L2H1/vo.json?k=5",
                "/demo/token/500/writers.json",
                "/demo/L1/neurons.json",
            )
        }
    assert [path for path, from_atlas in stored.items() if from_atlas] == [
        "/demo/map/neurons.json?layer=2",
        "/demo/L2N17.value/readings.json?k=5",
    ]


def test_without_what_is_stored_under_a_view_the_model_answers(client: TestClient) -> None:
    twin = read(client, twin_of("/demo/token/500?view=raw"))
    assert not any("atlas." in section["python"] for section in twin["sections"].values())
