"""How wide a text is, without a browser: Helvetica's advances, generous where it has no glyph."""

from __future__ import annotations

import unicodedata
from itertools import accumulate, takewhile

_ADVANCES = {
    191: "'", 222: "ijl", 260: "|", 278: " !,./:;I[]\\ft·", 333: "()-r`", 334: "{}", 355: '"',
    389: "*", 469: "^", 500: "Jcksvxyz", 584: "+<=>~", 611: "FTZ", 667: "&ABEKPSVXY",
    722: "CDHNRUw", 778: "GOQ", 833: "Mm", 889: "%", 944: "W", 1000: "…", 1015: "@",
}  # fmt: skip
_WIDTHS = {letter: width for width, letters in _ADVANCES.items() for letter in letters}
MONO = 602
"""The advance of a fixed-width letter in thousandths of the font size."""


def measure(text: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """How wide a text is at most, in the units of its size."""
    advances = map(_mono if mono else _advance, text)
    return sum(advances) * size * (1.07 if bold and not mono else 1.0) / 1000


def fit(text: str, size: float, room: float, *, bold: bool = False, mono: bool = False) -> str:
    """The text if there is room for it, else its beginning and an ellipsis."""
    if measure(text, size, bold=bold, mono=mono) <= room:
        return text
    sizes = {"bold": bold, "mono": mono}
    room -= measure("…", size, **sizes)
    ends = accumulate(measure(letter, size, **sizes) for letter in text)
    cut = text[: sum(1 for _ in takewhile(lambda end: end <= room, ends))]
    return cut + "…" if cut else ""


def wrap(text: str, size: float, room: float) -> list[str]:
    """The text in lines that fit; a word that is too long stands alone, and is cut."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and measure(longer, size) <= room:
            lines[-1] = longer
        else:
            lines.append(fit(word, size, room))
    return lines


def _mono(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) == "Cf":
        return 0
    wide = letter > "\U0001f000" or unicodedata.east_asian_width(letter) in "WF"
    return 2 * MONO if wide else MONO


def _advance(letter: str) -> int:
    if letter in _WIDTHS:
        return _WIDTHS[letter]
    if letter < "\x7f":
        return 556
    if unicodedata.combining(letter) or unicodedata.category(letter) == "Cf":
        return 0
    if letter > "\U0001f000":
        return 1400
    if unicodedata.east_asian_width(letter) in "WF":
        return 1000
    return 600 if unicodedata.category(letter)[0] == "L" and letter < "\u0600" else 760
