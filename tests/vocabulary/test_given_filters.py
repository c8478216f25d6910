"""`filter=` takes filters, words, files of words, and tests of a text."""

from __future__ import annotations

from pathlib import Path

import pytest

import lexray as lx
from lexray import filters
from lexray.vocabulary.filters import read_filter

MODEL = lx.Model.from_pretrained("demo")
WORDS = [" film", " movie", " good", " bad"]


@pytest.mark.slow
def test_words_are_a_filter() -> None:
    pairs = MODEL["L2H1"].vo.top(3, filter=WORDS)
    assert {p.row.text for p in pairs} | {p.col.text for p in pairs} <= set(WORDS)
    assert pairs == MODEL["L2H1"].vo.top(3, filter=filters.among(WORDS))
    rows = MODEL["L2H1"].vo.top(3, rows=WORDS)
    assert {p.row.text for p in rows} <= set(WORDS)
    for read in (MODEL["L2N3"].value.top, MODEL["L2N3"].value.every):
        assert read(2, filter=WORDS) == read(2, filter=filters.among(WORDS))


def test_a_file_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS))
    assert MODEL.read(MODEL["L2N3"].W_out, k=2, filter=path).tokens == (
        MODEL.read(MODEL["L2N3"].W_out, k=2, filter=WORDS).tokens
    )


@pytest.mark.slow
def test_a_test_is_a_filter() -> None:
    def starts_with_a(text: str) -> bool:
        return text.startswith(" a")

    found = MODEL["L2N3"].value.top(5, filter=starts_with_a)
    assert all(s.token.text.startswith(" a") for s in (*found.top, *found.bottom))
    assert found.source.filter == "by starts_with_a"
    assert MODEL.trace("This film").lens(k=2, filter=starts_with_a).top(-1)[0][0].text[:2] == " a"
    assert (
        MODEL.lookup(" film").top(2, filter=starts_with_a).hits[0].reading.top[0].token.text[:2]
        == " a"
    )
    some = read_filter(lambda text: True)
    assert some is not None
    assert some.describe() == "by a test"


def test_one_word_is_no_filter() -> None:
    with pytest.raises(lx.LexrayError, match="list of words"):
        MODEL["L2H1"].vo.top(3, filter=" film")
