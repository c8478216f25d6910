"""Nothing that comes from a file reaches a terminal as a command."""

from __future__ import annotations

import json
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexray import LexrayError
from lexray.clean import ascii_json, clean, clean_json, fit

HOSTILE = "a\x1b]0;owned\x07\x9b2J\r\x08\u202egnp\u2066\u200b\u2028\udcff"


def harmless(text: str) -> bool:
    return all(c in "\n\t" or category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in text)


def test_what_commands_a_terminal_is_written_out() -> None:
    assert clean(HOSTILE) == (r"a\x1b]0;owned\x07\u009b2J\x0d\x08\u202egnp\u2066\u200b\u2028\xff")
    assert clean("naïve\u00a0日本 ·\n\tx") == "naïve\u00a0日本 ·\n\tx"


def test_errors_are_clean_wherever_they_are_shown() -> None:
    error = LexrayError(f"no tensor {HOSTILE}")
    assert str(error) == f"no tensor {clean(HOSTILE)}"
    assert harmless(str(error))


@given(st.text())
def test_any_text_is_harmless_and_json_says_the_same(text: str) -> None:
    assert harmless(clean(text))
    for indent in (None, 1):
        written = clean_json(json.dumps({text: [text]}, ensure_ascii=False, indent=indent))
        assert harmless(written)
        assert json.loads(written) == {text: [text]}
        assert ascii_json(written).isascii()
        assert json.loads(ascii_json(written)) == {text: [text]}


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(["ascii", "latin-1"]))
def test_any_text_fits_an_old_terminal(text: str, encoding: str) -> None:
    shown = fit(text, encoding)
    shown.encode(encoding)
    assert fit(text, "utf-8") == text
    if text.isascii():
        assert shown == text


@pytest.mark.parametrize(
    ("text", "ascii", "latin"),
    [
        ("·Tokyo · raw", "_Tokyo - raw", "·Tokyo · raw"),
        ("a → b↵", "a -> b\\n", "a -> b\\n"),
        ("┏━┳│", "+-+|", "+-+|"),
        ("2×3 … – café", "2x3 ... - caf\\u00e9", "2×3 ... - café"),
        ("日", "\\u65e5", "\\u65e5"),
    ],
)
def test_stand_ins(text: str, ascii: str, latin: str) -> None:
    assert fit(text, "ascii") == ascii
    assert fit(text, "latin-1") == latin


def test_no_message_is_longer_than_anybody_reads() -> None:
    """Both ends stay: what was asked stands first, what to try last."""
    message = str(LexrayError(f"asked for {'x' * 10**5}; try another"))
    assert len(message) < 5000
    assert message.startswith("asked for x")
    assert message.endswith("x; try another")
