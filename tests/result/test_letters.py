"""Texts are cut to what there is room for, in one pass over their letters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lexray.result import letters

ROOM = st.floats(0, 300)


@given(st.text(max_size=60), ROOM, st.booleans(), st.booleans())
def test_the_longest_beginning_that_fits(text: str, room: float, bold: bool, mono: bool) -> None:
    cut = letters.fit(text, 12, room, bold=bold, mono=mono)
    if cut == text:
        assert not text or letters.measure(text, 12, bold=bold, mono=mono) <= room
        return
    slack = 1e-6
    assert cut == "" or (cut.endswith("…") and text.startswith(cut[:-1]))
    assert letters.measure(cut, 12, bold=bold, mono=mono) <= room + slack
    longer = text[: max(1, len(cut))] + "…"
    assert letters.measure(longer, 12, bold=bold, mono=mono) > room - slack
