"""How the bytes of a token are shown, and found by what is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lexray.vocabulary.text import shown, unshown


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b" Paris", "·Paris"),
        (b"\n\n\t", "↵↵⇥"),
        (b"    ", "····"),
        (b"", "∅"),
        (b"\xf0\x9f", "\\xf0\\x9f"),
        (b" \xe4\xb8", "·\\xe4\\xb8"),
        (b"\x07\r", "\\x07\\x0d"),
        ("\u200b\u202e".encode(), "\\u200b\\u202e"),
        ("\U000e0041".encode(), "\\U000e0041"),
        ("l·l".encode(), "l\\·l"),
        ("∅".encode(), "\\∅"),
        ("↵".encode(), "\\↵"),
        (b"\\frac", "\\frac"),
        (b"\\\\", "\\\\"),
        (b"\\ ", "\\\\·"),
        (b"\\xf0", "\\\\xf0"),
        (b"\\x", "\\x"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("😀".encode(), "😀"),
    ],
)
def test_what_people_see(data: bytes, expected: str) -> None:
    assert shown(data) == expected
    assert unshown(expected) == data


HOSTILE = st.text(alphabet=st.sampled_from("\\·↵⇥∅xuU0f8 \n\t\x00é\udc80a")).map(
    lambda text: text.encode("utf-8", "surrogateescape")
)


@given(st.one_of(st.binary(max_size=12), HOSTILE, st.text().map(str.encode)))
def test_shown_keeps_everything_apart_and_on_one_line(data: bytes) -> None:
    seen = shown(data)
    assert unshown(seen) == data
    assert seen.isprintable()
    assert " " not in seen


@given(st.text())
def test_plain_text_stands_for_itself(text: str) -> None:
    if not set(text) & set("\\·↵⇥∅"):
        assert unshown(text) == text.encode()


def test_user_text_with_lone_surrogates_does_not_break() -> None:
    assert unshown("\ud800") == "\ud800".encode("utf-8", "surrogatepass")
