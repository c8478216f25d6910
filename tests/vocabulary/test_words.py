"""Which tokens say something."""

from __future__ import annotations

import pytest

from lexray.model.model import Model
from lexray.vocabulary.vocabulary import Vocabulary
from lexray.vocabulary.words import ELSEWHERE, FUNCTION_WORDS, is_function_word, telling
from tests.vocabulary.vocabularies import vocabulary


def said(words: Vocabulary, n: int) -> set[str]:
    return {words.text(i) for i in telling(words, n).nonzero()[:, 0].tolist()}


def test_words_say_something_and_pieces_do_not() -> None:
    extra = ("Ġthe", "ĠParis", "Paris", "ĠUND", "Ġund", "Ġ2020", "Ġ3rd", "ing", "Ġx", "Ġ(", "æĹ¥")
    words = vocabulary(42, extra)
    expected = {" law", " Law", " walk", " walked", " cities", " Paris", "Paris", " 3rd", "日"}
    assert said(words, 42 + len(extra)) == expected
    assert said(words, 8) == {" law", " Law", " walk", " walked"}, "only rows that there are"


def test_vocabularies_that_mark_no_words() -> None:
    """Where no token begins a word, each with letters may be one."""
    assert said(Vocabulary.numbered(50), 50) == set()
    names = ("alpha", "of", "b", "gamma")
    bare = vocabulary(0, names)
    assert said(bare, 4) == {"alpha", "gamma"}


@pytest.mark.parametrize("name", ["demo", "smollm2"])
def test_words_of_real_vocabularies(name: str) -> None:
    words = Model.from_pretrained(name).vocabulary
    mask = telling(words, words.n_ids)
    for word in (" water", " world", " people"):
        assert mask[words.id(word)], word
    for word in (" the", " of", ",", "ing", "\n"):
        assert not mask[words.id(word)], word
    assert 0.3 < float(mask.float().mean()) < 0.95


def test_no_function_word_of_another_language_is_an_english_one() -> None:
    content = {
        "die",
        "van",
        "den",
        "son",
        "sale",
        "pour",
        "hat",
        "war",
        "man",
        "con",
        "par",
        "plus",
    }
    assert not content & ELSEWHERE
    assert all(word == word.lower() and not is_function_word(word + "x") for word in FUNCTION_WORDS)
