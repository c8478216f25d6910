"""Relations as people give them: by name, as files, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lexray.errors import LexrayError
from lexray.roles.relation import Relation, load_shipped, parse_pairs, relations_of

PAIRS = (("France", "Paris"), ("Japan", "Tokyo"))


def test_what_comes_along() -> None:
    found = load_shipped()
    assert len(found) >= 25
    assert ("Japan", "Tokyo") in found["capital"].pairs
    assert found["copy"].k == found["name"].k == 1
    for relation in found.values():
        assert relation.title
        assert len({source for source, _ in relation.pairs}) == len(relation.pairs) >= 7
        assert all(a.strip() == a and b.strip() == b and a and b for a, b in relation.pairs)
    assert all(a == b for a, b in found["copy"].pairs)
    assert all(a[0] == b for a, b in found["first"].pairs)
    assert all(a[-1] == b for a, b in found["last"].pairs)
    assert all(int(a) + 1 == int(b) for a, b in found["year"].pairs)


def test_by_name_and_by_title() -> None:
    assert (
        relations_of("capital")
        == relations_of(["country → capital"])
        == (load_shipped()["capital"],)
    )
    assert relations_of(None) == tuple(load_shipped().values())


@pytest.mark.parametrize("text", ["France→Paris,Japan→Tokyo", "France -> Paris, Japan=>Tokyo,"])
def test_typed(text: str) -> None:
    assert parse_pairs(text).pairs == PAIRS
    assert relations_of(text)[0].pairs == PAIRS


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.csv", "source,target\nFrance,Paris\n\nJapan,Tokyo\n"),
        ("mine.csv", '"France","Paris"\nJapan,Tokyo\n'),
        ("mine.tsv", "France\tParis\nJapan\tTokyo\n"),
        ("mine.json", json.dumps([["France", "Paris"], ["Japan", "Tokyo"]])),
        ("mine.json", json.dumps(dict(PAIRS))),
        ("mine.json", json.dumps({"mine": {"pairs": PAIRS}})),
        ("mine.json", json.dumps({"mine": PAIRS})),
    ],
)
def test_files(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert relations_of(path) == relations_of(str(path)) == (Relation("mine", PAIRS),)


def test_several_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text("a,b,x\nc,d,x\ne,f,y\ng,h,y\n")
    assert [relation.name for relation in relations_of(path)] == ["x", "y"]
    path = tmp_path / "all.json"
    path.write_text(
        json.dumps({"x": {"pairs": {"a": "a", "b": "b"}, "k": 1}, "y": {"c": "d", "e": "f"}})
    )
    x, y = relations_of(path)
    assert (x.name, x.k, x.pairs) == ("x", 1, (("a", "a"), ("b", "b")))
    assert (y.name, y.k, y.pairs) == ("y", 10, (("c", "d"), ("e", "f")))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("capitals", "there is no relation 'capitals'.*capital"),
        ("France→Paris,Japan", "'Japan' is no pair"),
        ("France→Paris", "at least two"),
        ([], "no relation was asked for"),
        (["capital", "capital"], "same name: capital"),
        ({"x": 3}, "no list of pairs"),
        ({"x": [["a", "b", "c"]]}, "two words should be"),
        (Path("nowhere.csv"), "nowhere.csv"),
        ("a→b,→c", "without a word"),
    ],
)
def test_mistakes(given: object, said: str) -> None:
    with pytest.raises(LexrayError, match=said):
        relations_of(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{"), ("a.json", "3"), ("a.csv", "a,b,c,d\n"), ("a.csv", "a\n")]
)
def test_damaged_files(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(LexrayError):
        relations_of(path)
