"""Every result shows itself as text, rich table, HTML, CSV, data frame and JSON."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest
from rich.console import Console

from lexray import filters
from lexray.find.related import Related
from lexray.model.model import Model
from lexray.result.pairs import Pair, Pairs
from lexray.result.readings import Reading, Readings, Scored, Source, Token
from lexray.result.table import Result
from lexray.view import View
from tests.vocabulary.vocabularies import worded

ODD = filters.among(["<script>", "<b>bold</b>", "·&amp;", "↵", "city"])
SOURCE_KEYS = {"model", "revision", "address", "reading", "view", "filter"}


@cache
def model() -> Model:
    return worded("llama")


@cache
def results() -> dict[str, Result]:
    """One of each class, with tokens that HTML would take for its own."""
    m = model()
    return {
        "reading": m["L0N3.value"].top(5, filter=ODD),
        "neuron": m["L0N3"].top(5, filter=ODD),
        "group": m.layers[0].values.top(5, filter=ODD),
        "pairs": m["L0H1"].vo.top(25, filter=ODD),
        "qk": m["L0H1"].qk.top(25, filter=ODD),
        "line": m["L0H1"].qk.attends_to("<script>", 5, filter=ODD),
        "svd": m["L0H1"].vo.svd(2, 5, filter=ODD),
        "lookup": m.lookup(["<script>", "law"]).top(3, filter=ODD),
        "related": m.related(37, 1.0),
        "nearest": m.nearest("L0N3.value", 3),
    }


ALL = [
    *("reading", "neuron", "group", "pairs", "qk", "line", "svd", "lookup", "related", "nearest")
]
every = pytest.mark.parametrize("name", ALL)


class Tags(HTMLParser):
    """Which tags a browser would see, and which text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@every
def test_text_and_rich(name: str) -> None:
    result = results()[name]
    text = str(result)
    assert text
    assert max(map(len, text.splitlines())) <= 100
    assert "<script>" in text or name == "nearest"
    console = Console(file=io.StringIO(), width=100, color_system=None)
    with console.capture() as captured:
        console.print(result)
    assert [line.rstrip() for line in captured.get().splitlines()] == text.splitlines()
    assert model().name in text.replace("\n", "")


@every
def test_html_shows_tokens_literally(name: str) -> None:
    result = results()[name]
    seen = Tags(result._repr_html_())
    assert seen.tags <= {"div", "table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    if name != "nearest":
        assert "<script>" in seen.text
    page = Tags(result.to_html())
    assert page.tags <= seen.tags | {"html", "head", "meta", "title", "style", "body", "main"}


@every
def test_json(name: str) -> None:
    result = results()[name]
    found = json.loads(result.to_json(), parse_constant=lambda word: pytest.fail(word))
    assert found.pop("lexray")
    assert found == json.loads(json.dumps(result.to_dict()))
    assert found.keys() >= SOURCE_KEYS
    assert found["model"] == model().name
    assert found["reading"] == "raw"
    assert found["view"]["offset"] == 0


@every
def test_csv_and_pandas(name: str) -> None:
    result = results()[name]
    header, *rows = csv.reader(io.StringIO(result.to_csv()))
    assert rows
    assert {len(row) for row in rows} == {len(header)}
    frame = result.to_pandas()
    assert frame.columns.tolist() == header
    assert len(frame) == len(rows)
    for row, values in zip(rows, frame.itertuples(index=False), strict=True):
        assert row == ["" if value is None else str(value) for value in values]


# ---------------------------------------------------------------------- the keys of each


def is_token(found: Any) -> bool:
    return found.keys() == {"id", "text"} and isinstance(found["id"], int)


def is_vector(found: Any, k: int) -> bool:
    ends = [found["top"], found["bottom"]]
    return all(
        len(end) == k and all(s.keys() == {"score", "token"} and is_token(s["token"]) for s in end)
        for end in ends
    )


def test_pairs_have_the_keys_of_the_command_line() -> None:
    found = results()["pairs"].to_dict()
    assert found.keys() >= {"model", "address", "matrix", "reading", "pairs"}
    assert (found["address"], found["matrix"]) == ("L0H1", "VO")
    assert len(found["pairs"]) == 25
    for pair in found["pairs"]:
        assert pair.keys() == {"score", "row", "col"}
        assert is_token(pair["row"])
        assert is_token(pair["col"])
    scores = [pair["score"] for pair in found["pairs"]]
    assert scores == sorted(scores, reverse=True)
    assert {"id": 8, "text": "<script>"} in [pair["row"] for pair in found["pairs"]]
    assert results()["qk"].to_dict()["matrix"] == "QK"


def test_vectors_are_under_their_names() -> None:
    assert is_vector(results()["reading"].to_dict()["value"], 5)
    found = results()["neuron"].to_dict()
    assert all(is_vector(found[name], 5) for name in ("key", "gate", "value"))
    assert found["address"] == "L0N3"
    assert is_vector(results()["line"].to_dict()["attends_to"], 5)
    group = results()["group"].to_dict()["readings"]
    assert [each["address"] for each in group] == [f"L0N{i}.value" for i in range(20)]
    assert all(is_vector(each["value"], 5) for each in group)
    for name, size in (("lookup", 5), ("nearest", 10)):
        for hit in results()[name].to_dict()["hits"]:
            assert hit.keys() > {"address", "score"}
            (kind,) = hit.keys() - {"address", "score", "ranks"}
            assert ("ranks" in hit) == (name == "lookup")
            assert is_vector(hit[kind], size)
    assert results()["lookup"].to_dict()["words"] == [
        {"id": 8, "text": "<script>"},
        {"id": 0, "text": "law"},
    ]
    for direction in results()["svd"].to_dict()["directions"]:
        assert is_vector(direction["input"], 5)
        assert is_vector(direction["output"], 5)
        assert 0 < direction["share"] <= 1


def test_related_says_both_overlaps() -> None:
    found = results()["related"].to_dict()
    assert (found["k"], found["overlap"], found["read"]) == (37, 1.0, "key")
    assert (found["n_neurons"], found["share"]) == (40, 1.0)
    first = found["neurons"][0]
    assert first.keys() == {"address", "shared", "overlap", "jaccard", "tokens"}
    assert all(map(is_token, first["tokens"]))
    assert "40 of 40 neurons (100.0 %)" in str(results()["related"])


def test_the_text_of_a_token_is_plain_and_its_looks_are_not() -> None:
    reading = model()["L0N3.value"].top(37)
    spaced = next(s.token for s in reading.top if s.token.id == 1)
    assert (spaced.text, spaced.shown) == (" law", "·law")
    newline = next(s.token for s in reading.top if s.token.id == 11)
    assert (newline.text, newline.shown) == ("\n", "↵")


def test_what_a_result_says_of_itself() -> None:
    m = model().view(folded=True, offset=2)
    found = m["L0H1"].qk.top(3, exclude_same=True, rows=filters.ascii, sign="absolute")
    text = str(found)
    assert "L0H1.QK, largest in absolute value of all token pairs" in text
    assert "folded, offset 2" in text
    assert "rows: ascii, different tokens" in text.replace("\n", " ")
    assert found.to_dict()["filter"] == "rows: ascii, different tokens"


# ---------------------------------------------------------------------- lists


def test_by_legibility() -> None:
    group = model().layers[0].values.top(5)
    ordered = group.by_legibility()
    assert isinstance(ordered, Readings)
    values = [reading.legibility for reading in ordered]
    assert values == sorted(values, reverse=True)
    assert {r.source.address for r in ordered} == {r.source.address for r in group}
    assert ordered[0] == max(group, key=lambda r: r.legibility)
    extra = Readings(group.source, group.readings, "t", (("n", tuple(range(20))),)).by_legibility()
    (name, cells), *_ = extra.extra
    assert name == "n"
    assert [group[i] for i in cells] == list(extra.readings)  # type: ignore[index]
    assert extra.to_dict()["readings"][0]["n"] == cells[0]


def test_lookup_shows_itself() -> None:
    answer = model().lookup(["law"])
    assert str(answer) == str(answer.top())
    assert answer._repr_html_() == answer.top()._repr_html_()
    assert "Of 40 values, the nearest to law" in str(answer)


def test_results_without_anything_in_them() -> None:
    source = Source("nothing", None, "L0", View())
    empty: list[Result] = [
        Reading(source, "value", (), (), 0.0),
        Readings(source, ()),
        Pairs(source, "VO", (), "largest", 0.0, 0.0),
        Related(source, 10, 0.5, "key", 0, ()),
        model().related(3, 1.01),
    ]
    for result in empty:
        assert isinstance(str(result), str)
        assert "<table" in result._repr_html_()
        assert json.loads(result.to_json())
        assert len(result.to_pandas()) == 0
        assert len(result.to_csv().splitlines()) <= 1
    assert Related(source, 10, 0.5, "key", 0, ()).share == 0


def test_square_brackets_are_no_markup() -> None:
    token = Token(0, "[red]x[/red]", "[red]x[/red]")
    source = Source("m", None, "L0H0", View())
    reading = Reading(source, "value", (Scored(token, 1.0),), (Scored(token, -1.0),), 0.0)
    assert "[red]x[/red]" in str(reading)
    assert "[red]x[/red]" in str(Pairs(source, "VO", (Pair(1.0, token, token),), "largest", 0, 0))
