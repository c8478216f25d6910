"""The page as a file: small, whole, and safe whatever the vocabulary contains."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lexray.flow import FlowGraph
from lexray.flow.draw.html import module, page_data
from lexray.flow.draw.layout import layout
from lexray.flow.draw.widget import cell
from lexray.result.page import embed_json
from tests.flow import synthetic


class Tags(HTMLParser):
    """All start tags of a page, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.title = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside == "title":
            self.title += data


@pytest.fixture(scope="module")
def graph() -> FlowGraph:
    return synthetic.graph()


def test_a_layer_takes_less_than_a_megabyte(graph: FlowGraph, tmp_path: Path) -> None:
    text = graph.to_html(tmp_path / "flow.html")
    assert (tmp_path / "flow.html").read_text("utf-8") == text
    assert len(graph.nodes) > 140
    assert len(text.encode()) < 1e6


def test_markup_in_tokens_stays_text(graph: FlowGraph) -> None:
    evil = replace(graph, run=replace(graph.run, prompt="</title><script>alert(1)</script>"))
    page = Tags(evil.to_html())
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "<script>alert(1)</script>" in page.title
    data, code = page.scripts
    assert not set("<>&\u2028\u2029") & set(data)
    assert json.loads(data) == json.loads(embed_json(page_data(evil)))
    assert "export function show" in code


def test_nothing_points_outside(graph: FlowGraph) -> None:
    text = graph.to_html()
    addresses = set(re.findall(r"[a-z]+://[^\s\"'<>]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}
    for _, attributes in Tags(text).tags:
        assert not {"src", "href"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert "default-src 'none'" in text


def test_no_text_of_the_data_becomes_markup_in_the_module() -> None:
    source = module()
    for way in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
    ):
        assert way not in source
    assert "</script" not in source


@pytest.mark.slow
def test_lone_surrogates_do_not_break_the_file(graph: FlowGraph, tmp_path: Path) -> None:
    odd = replace(graph, run=replace(graph.run, prompt="a\ud800b"))
    odd.to_html(tmp_path / "flow.html")
    page = Tags((tmp_path / "flow.html").read_text("utf-8"))
    assert json.loads(page.scripts[0])["graph"]["prompt"] == "a\ud800b"


def test_the_page_gets_the_shapes_of_the_layout(graph: FlowGraph) -> None:
    data = page_data(graph)["layout"]
    segments = layout(graph).segments
    assert [s["kind"] for s in data["segments"]] == [s.kind for s in segments]
    opened = next(s for s in segments if s.open)
    written = next(s for s in data["segments"] if s["open"])
    assert opened.open is not None
    for box, (node, x, y, width, height, labels) in zip(
        opened.open.boxes, written["open"]["boxes"], strict=True
    ):
        assert node == box.node
        assert (x, y, width, height) == pytest.approx(
            (box.x, box.y, box.width, box.height), abs=0.051
        )
        assert [text for *_, text, _ in labels] == [label.text for label in box.labels]


@pytest.mark.slow
def test_a_cell_holds_all_it_needs(graph: FlowGraph) -> None:
    """Twice in one notebook without one taking the other's place; a picture where scripts rest."""
    one, two = (Tags(cell(graph)) for _ in range(2))
    names = [
        attributes["id"] for page in (one, two) for tag, attributes in page.tags if tag == "div"
    ]
    assert len(set(names)) == 2
    assert json.loads(one.scripts[0]) == json.loads(embed_json(page_data(graph)))
    assert f'getElementById("{names[0]}")' in one.scripts[1]
    (image,) = [attributes for tag, attributes in one.tags if tag == "img"]
    data = (image["src"] or "").removeprefix("data:image/svg+xml;base64,")
    assert b64decode(data).decode() == graph.to_svg() == graph._repr_mimebundle_()["image/svg+xml"]
