"""Every page: its content, its JSON twin, and that what it offers to copy gives the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import lexray as lx
from lexray.web.library import Library
from lexray.web.packed import pack
from tests.cli.running import lexray
from tests.web.house import HOSTILE, demo_library, hostile_library, open_client

PAGES = [
    "/demo/L2H1?k=4&of=film",
    "/demo/L2H1?k=4&tokens=he,she,·film",
    "/demo/L2H1?k=4&view=raw",
    "/demo/L3N17?k=5",
    "/demo/L3N17.value?k=5",
    "/demo/L3H2.V12?k=5",
    "/demo/L2.mlp_norm?k=5",
    "/demo/token/500",
    "/demo/L1",
    "/demo/search?q=actor+·film&among=reads&layers=2-3",
    "/demo/prompt?text=This+movie+was&target=·good&position=1&edits=ablate+L2H1",
    "/demo/map?colour=effect&text=This+movie+was",
]
COSTLY = {"evidence": [], "nearest": ["/demo/L3N17?k=5"], "card": ["/demo/L2H1?k=4&of=film"]}
"""Sections that are looked at on these pages only: a pass over a text is tested in its own room."""


class Inline(HTMLParser):
    """What the policy would refuse, and elements that no page of ours has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        wrong = [key for key in given if key == "style" or key.startswith("on")]
        if wrong or tag in ("style", "img", "iframe") or (tag == "script" and "src" not in given):
            self.found.append(self.get_starttag_text() or tag)


def twin_of(path: str) -> str:
    head, mark, query = path.partition("?")
    return f"{head}.json{mark}{query}"


def read(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def sections(client: TestClient, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All sections of a page, those that follow included."""
    for name, section in read(client, twin_of(path))["sections"].items():
        if name in COSTLY and path not in COSTLY[name]:
            continue
        yield name, read(client, section["href"]) if "href" in section else section


def run(python: str, library: Library, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the last line of a copied script comes to; models that are open are not opened again."""
    models = {each.origin.source: each.model for each in library}
    opened = staticmethod(lambda source, **options: models[source])
    monkeypatch.setattr(lx.Model, "from_pretrained", opened)
    *lines, last = python.strip().split("\n")
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return eval(last, scope)


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES)
def test_what_is_copied_gives_what_is_shown(
    client: TestClient, library: Library, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dict(sections(client, path))
    assert found
    for name, section in found.items():
        made = run(section["python"], library, monkeypatch)
        assert json.loads(json.dumps(pack(made).to_dict())) == section["content"], name


def test_prompts_have_a_limit_in_words(client: TestClient) -> None:
    """Ten thousand tokens, by address or typed; and what is no edit, no target, no position."""
    for text in ("good " * 1000, "good " * 10_000):
        answer = client.get("/demo/prompt.json", params={"text": text})
        assert answer.status_code in (400, 414)
        assert "at most" in answer.text or "up to 256" in answer.text
    many = client.get("/demo/prompt.json", params={"text": "x" * 2000})
    assert "tokens; the app runs up to 256" in many.json()["error"]
    for wrong in ({"edits": "destroy L2H1"}, {"target": "zzqq"}, {"position": "9"}):
        answer = client.get("/demo/prompt.json", params={"text": "This movie was", **wrong})
        assert answer.status_code == 400


@pytest.mark.slow
def test_a_prompt_can_be_changed_by_links(client: TestClient) -> None:
    origin = {"origin": "http://127.0.0.1:8642"}
    path = "/demo/prompt/adds"
    assert client.post(f"{path}?text=This+movie+was", headers=origin).json()["state"] == "done"
    part = client.get(f"{path}.part?text=This+movie+was").text
    assert "edits=ablate%20L" in part
    assert "edits=scale%20L" in part
    page = client.get("/demo/prompt?text=This+movie+was&edits=ablate+L2H1").text
    assert 'aria-label="undo ablate L2H1"' in page
    assert 'id="changed"' in page
    client.post("/demo/prompt/flow?text=This+movie+was", headers=origin)
    drawn = read(client, "/demo/prompt/flow.draw?text=This+movie+was")
    assert {"graph", "layout", "paint"} <= set(drawn)


def test_an_address_leads_to_its_page(client: TestClient) -> None:
    answer = client.get("/demo/search?q=l2h1", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (302, "/demo/L2H1")


@pytest.mark.slow
def test_two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    library = demo_library("demo", "demo-sentiment")
    client = open_client(library)
    found = dict(sections(client, "/demo/compare/demo-sentiment?of=L3N17"))
    assert set(found) == {"partners", "diff", "align"}
    for section in found.values():
        made = run(section["python"], library, monkeypatch)
        assert json.loads(json.dumps(made.to_dict())) == section["content"]
    page = client.get("/demo/compare/demo-sentiment?of=L3N17").text
    assert "data-when" not in page  # all of it is there now
    assert not Inline(page).found
    for partner in found["partners"]["content"]["partners"]:
        assert f'href="/demo-sentiment/{partner["address"]}"' in page


@pytest.mark.slow
def test_another_model_is_read_as_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    library = demo_library("demo", "demo-sentiment")
    client = open_client(library)
    for path in ("/demo/L3N17?view=raw", "/demo/L3H2?view=raw", "/demo/L3H2.V1?view=raw"):
        head, _, query = path.partition("?")
        section = read(client, f"{head}/in-demo-sentiment.json?{query}")
        made = run(section["python"], library, monkeypatch)
        assert json.loads(json.dumps(made.to_dict())) == section["content"]


def test_the_shelf_says_what_each_model_is(tmp_path: Path) -> None:
    """And why one cannot be opened, without keeping the others from being seen."""
    client = open_client(demo_library("demo", str(tmp_path / "gone")))
    page = client.get("/").text
    assert 'href="/index.json"' in page
    here, gone = read(client, "/index.json")["models"]
    assert here["info"]["sizes"]["heads"] == 5
    assert here["map"] == "/demo/map.json"
    assert "gone" in gone["error"]
    assert "4 layers of 5 heads and 640 neurons" in page
    assert 'href="/demo/map"' in page
    assert 'href="/gone/map"' in page
    assert not Inline(page).found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "name"),
    [
        (PAGES[0], "vo"),
        (PAGES[0], "attends-to"),
        (PAGES[2], "qk"),
        (PAGES[3], "readings"),
        (PAGES[3], "writers"),
        (PAGES[3], "nearest"),
        (PAGES[5], "readings"),
        (PAGES[6], "readings"),
        (PAGES[7], "writers"),
        (PAGES[7], "readers"),
        (PAGES[7], "against"),
        (PAGES[0], "directions"),
        (PAGES[0], "card"),
        (PAGES[7], "token"),
        (PAGES[8], "neurons"),
        (PAGES[9], "found"),
        ("/demo/map?colour=norm", "heads"),
        ("/demo/map?neurons=norm&layer=2", "neurons"),
        (PAGES[10], "next"),
        (PAGES[10], "changed"),
        (PAGES[10], "lens"),
        (PAGES[10], "attention"),
        (PAGES[11], "heads"),
    ],
)
def test_the_command_gives_what_is_shown(client: TestClient, path: str, name: str) -> None:
    section = dict(sections(client, path))[name]
    ran = lexray(*shlex.split(section["command"])[1:], "--format", "json")
    assert ran.code == 0, ran.err
    if name in (
        "lens",
        "attention",
        "next",
        "changed",
    ):  # in half precision near ties fall either way
        assert ran.json["tokens"] == section["content"]["tokens"]
        return
    assert ran.json == section["content"]


@pytest.mark.parametrize("path", [*PAGES, "/demo/map"])
def test_pages_hold_their_sections_and_nothing_inline(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert not Inline(answer.text).found
    for name in read(client, twin_of(path))["sections"]:
        assert path.startswith("/demo/map") or f'id="{name}"' in answer.text


def test_a_part_is_the_same_section(client: TestClient) -> None:
    part = client.get("/demo/L3N17/readings.part?k=5").text
    assert part.startswith("<section")
    assert part in client.get("/demo/L3N17?k=5").text


def test_what_follows_is_begun_and_then_there(client: TestClient, library: Library) -> None:
    fresh = open_client(library)
    path = "/demo/L3N18/writers"
    assert 'data-when="soon"' in fresh.get(f"{path}.part").text
    begun = fresh.post(path, headers={"origin": "http://127.0.0.1:8642"}).json()
    assert begun["state"] == "done"
    assert fresh.get(f"/runs/{begun['run']}").json()["state"] == "done"
    assert "data-when" not in fresh.get(f"{path}.part").text


def test_a_heat_map_has_the_order_in_which_it_is_typed(
    client: TestClient, library: Library
) -> None:
    typed = [" film", " he", " she", " actor"]
    part = client.get("/demo/L2H1/grid-vo.part", params={"tokens": ",".join(typed)}).text
    ids = [library["demo"].model.space.id(word) for word in typed]
    rows = [line.partition("</th>")[0] for line in part.split('scope="row"')[1:]]
    assert [f"/token/{i}" in row for i, row in zip(ids, rows, strict=True)] == [True] * 4


def test_links_show_their_other_end(client: TestClient, library: Library) -> None:
    """Also where one neuron is read by its key and its gate, which are two addresses."""
    for name in ("writers", "readers"):
        found = read(client, f"/demo/L1N5/{name}.json")["content"]["links"]
        part = client.get(f"/demo/L1N5/{name}.part").text
        assert len(found) > 2
        assert 'href="/demo/L1N5' not in part.partition('class="body"')[2]
        for each in found:
            other = each["writer" if name == "writers" else "reader"]
            assert f">{other}</a>" in part


def test_both_halves_of_a_subhead_stand_beside_each_other(client: TestClient) -> None:
    for at, half in (("L3H2.V12", "L3H2.O12"), ("L3H2.Q3", "L3H2.K3")):
        found = read(client, f"/demo/{at}.json?k=4")["sections"]["term"]["content"]
        alone = read(client, f"/demo/{half}.json?k=4")["sections"]["readings"]["content"]
        assert found == alone


def test_a_layer_leads_to_all_its_parts(client: TestClient, library: Library) -> None:
    page = client.get("/demo/L2").text
    for at in ("L2H4", "L2.b_O", "L2.b_out", "L2.attn_norm", "L2.mlp_norm_bias"):
        assert f'href="/demo/{at}"' in page
        assert client.get(f"/demo/{at}").status_code == 200


@pytest.mark.parametrize("path", [*PAGES, "/demo/map"])
def test_pages_lead_to_their_twins(client: TestClient, path: str) -> None:
    page = client.get(path).text
    (link,) = re.findall(r'<a href="([^"]+)" title="the same content for programs">', page)
    assert read(client, unescape(link)) == read(client, twin_of(path))


@pytest.mark.slow
def test_the_map(client: TestClient) -> None:
    found = read(client, "/demo/map.json")
    assert [layer["heads"] for layer in found["layers"]] == [5] * 4
    assert found["layers"][3]["neurons"] == [["L3N", 640]]
    page = client.get("/demo/map").text
    assert page.count("data-head=") == 20
    for colour in ("role", "norm", "copying"):
        heads = read(client, f"/demo/map/heads.json?colour={colour}")["content"]
        assert len(heads.get("heads", [])) == 20 or len(heads["layers"]) == 4
    strip = read(client, "/demo/map/neurons.json?layer=2")["content"]
    assert list(strip["layers"]) == ["L2"]
    assert len(strip["layers"]["L2"]) == 640


@pytest.mark.slow
def test_the_map_by_what_removing_a_head_does(client: TestClient, library: Library) -> None:
    """Held against a run with one head removed; a prompt is asked for first, and has bounds."""
    assert "heads" not in read(client, "/demo/map.json?colour=effect")["sections"]
    page = client.get("/demo/map?colour=effect").text
    assert "data-heads" not in page
    path = "/demo/map?colour=effect&neurons=norm&text=This+movie+was&target=%C2%B7great"
    page = client.get(path).text
    assert "text=This%20movie%20was" in page  # other colours of neurons keep the prompt
    section = dict(sections(client, path))["heads"]
    found = {each["component"]: each["change"] for each in section["content"]["removed"]}
    assert len(found) == 20
    model = library["demo"].model
    runs = [model.trace("This movie was", edits=e) for e in ((), "ablate L2H1")]
    before, after = (run.logits[-1].float()[model.vocabulary.id(" great")] for run in runs)
    assert found["L2H1"] == pytest.approx(float(after - before), abs=2e-2)
    ran = lexray(*shlex.split(section["command"])[1:], "--format", "json")
    assert [each["component"] for each in ran.json["removed"]] == list(found)
    twin = client.get(twin_of(path.replace("This", "very+" * 400)))
    assert twin.status_code == 400
    assert "up to 256" in twin.json()["error"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/other/map", 404, "nothing is served as 'other'"),
        ("/demo/L9H0", 400, "layers 0–3"),
        ("/demo/L1H99", 400, "heads 0–4"),
        ("/demo/nonsense", 404, "addresses look like"),
        ("/demo/L1H1/nonsense", 404, "there are"),
        ("/demo/token/99999999", 400, "token"),
        ("/demo/token/-1", 404, "by their id"),
        ("/demo/L1H1?k=100000", 400, "out of bounds"),
        ("/demo/L1H1?view=wrong", 400, "standard, raw"),
        ("/demo/L1H1?of=zzzzqqqq", 400, "zzzzqqqq"),
        ("/demo/L1N1?k=1e3", 400, "no whole number"),
        ("/demo/L1F3", 404, "dictionary"),
    ],
)
def test_mistakes_are_told_in_words(client: TestClient, path: str, status: int, words: str) -> None:
    page, twin = client.get(path), client.get(twin_of(path))
    assert page.status_code == twin.status_code == status
    assert words in twin.json()["error"]
    assert "<h1>" in page.text


@pytest.mark.slow
def test_hostile_tokens_stay_text(tmp_path: Path) -> None:
    """Markup in every token: shown as it is, in pages, parts and errors."""
    client = open_client(hostile_library(tmp_path))
    paths = ["L0H1?of=%3Cunk%3E", "L1N3", "L1H0.V1", "token/3", "token/20", "L0", "map"]
    paths += ["search?q=img", "prompt?text=%3Cunk%3E"]
    for path in paths:
        for section in read(client, twin_of(f"/hostile/{path}"))["sections"].values():
            if "href" in section and "/evidence" not in section["href"]:
                client.get(section["href"])  # so that the page has all of it
        text = client.get(f"/hostile/{path}").text
        assert not Inline(text).found, path
    assert "&lt;script&gt;window.hit=20&lt;/script&gt;" in client.get("/hostile/token/20").text
    found = read(client, "/hostile/token/20.json")
    assert found["token"]["text"] == HOSTILE[20]
    wrong = client.get("/hostile/L0H1", params={"of": "<script>alert(1)</script>"})
    assert wrong.status_code == 400
    assert "<script>alert" not in wrong.text


@pytest.mark.parametrize("path", [*PAGES, "/demo/map", "/demo/map?colour=norm"])
def test_every_page_has_a_command(client: TestClient, path: str) -> None:
    assert read(client, twin_of(path))["command"].startswith("lexray ")
    assert 'aria-label="copy as command"' in client.get(path).text


def test_tokens_of_every_word_are_listed(client: TestClient) -> None:
    found = read(client, "/demo/search.json?q=actor+·film")["sections"]
    assert [found[key]["title"] for key in found if key.startswith("tokens")] == [
        "Tokens with “actor” in them",
        "Tokens with “film” in them",
    ]
