"""From text to edits: the inverse of `str`.

    ablate L23H4[-1] to mean            scale L29N50 by 3        clamp L29N50 to 8
    add 8*L29N50.value@L29              add 4*[" Paris", " France"]@L12
    add 2*("Love" - "Hate")@L6          patch L18[3] from "The capital of France is"
    cut [3]->[-1] in L5H2,L6 renormalised
    ablate enc.L3H2; patch L3X2 from ["another source", "its target"]; cut [3]->[:] in L3X2
    replace L12N3.value by 2*L29N50.value
    rank_one L17.mlp from "The capital of Japan is" to " Rome" about "Japan"

Several are divided by semicolons.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from lexray.address import Address
from lexray.edits.directions import Difference, Direction, OfAddress, OfWords, Run, as_run
from lexray.edits.positions import Positions
from lexray.edits.site import Site
from lexray.edits.values import (
    Ablate,
    Add,
    Clamp,
    Cut,
    Edit,
    Edits,
    Patch,
    Replace,
    Scale,
    number,
    rank_one,
)
from lexray.errors import LexrayError

SPACE = re.compile(r"\s*")
WORD = re.compile(r"[A-Za-z_]+")
NAME = re.compile(r"(?:[Ee][Nn][Cc]\.)?[Ll]\d[\w.]*", re.ASCII)
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
INTEGER = re.compile(r"-?\d{1,9}", re.ASCII)


def parse(text: str) -> Edit:
    """One edit.

    >>> parse("scale L29N50 by 3")
    Scale('scale L29N50 by 3')
    """
    edits = parse_all(text)
    if len(edits) != 1:
        raise LexrayError(f"{text!r} is {len(edits)} edits, not one")
    return edits[0]


def parse_all(text: str) -> tuple[Edit, ...]:
    """Several edits, divided by semicolons."""
    reader, edits = _Reader(text), []
    while not reader.ended:
        edits.append(reader.edit())
        if not reader.ended:
            reader.expect(";")
    return tuple(edits)


def read_edits(given: Edits | None) -> tuple[Edit, ...]:
    """Edits as people give them, in order."""
    if given is None:
        return ()
    if isinstance(given, Edit):
        return (given,)
    if isinstance(given, str):
        return parse_all(given)
    if not isinstance(given, Iterable):
        raise LexrayError(f"edits are a list of edits or of texts, not {given!r}")
    return tuple(edit for one in given for edit in _one(one))


def _one(given: Any) -> tuple[Edit, ...]:
    if not isinstance(given, (Edit, str)):
        raise LexrayError(
            f"{given!r} is no edit; they are made by lexray.edits.ablate(…) and so on"
        )
    return read_edits(given)


class _Reader:
    """Where one stands in a text."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise LexrayError(f"an edit is written as text, not as {text!r}")
        self.text, self.at = text, 0
        self._skip()

    @property
    def ended(self) -> bool:
        return self.at >= len(self.text)

    def _skip(self) -> None:
        match = SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def wrong(self, wanted: str) -> LexrayError:
        where = f"before {self.text[self.at :][:30]!r}" if not self.ended else "at its end"
        return LexrayError(
            f"{self.text!r} is no edit: {wanted} is missing {where}; edits read like 'ablate "
            "L23H4', 'scale L29N50 by 3', 'clamp L29N50 to 8', 'add 8*L29N50.value@L29', 'patch "
            "L18[3] from \"another prompt\"', 'cut [3]->[-1] in L5H2'"
        )

    def take(self, pattern: re.Pattern[str], wanted: str) -> str:
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.wrong(wanted)
        self.at = match.end()
        self._skip()
        return match[0]

    def accept(self, sign: str) -> bool:
        """Whether a sign, or a whole word, comes next; it is passed."""
        ends = self.at + len(sign)
        if self.text[self.at : ends].lower() != sign:
            return False
        if sign.isalpha() and self.text[ends : ends + 1].isalnum():
            return False
        self.at = ends
        self._skip()
        return True

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise self.wrong(repr(sign))

    # ------------------------------------------------------------------ pieces

    def edit(self) -> Edit:
        start = self.at
        verb = self.take(WORD, f"one of {', '.join(VERBS)}").lower()
        if verb not in VERBS:
            self.at = start
            raise self.wrong(f"one of {', '.join(VERBS)}")
        return VERBS[verb](self)

    def number(self) -> float:
        return number(self.take(NUMBER, "a number"))

    def strength(self) -> float:
        """`8*`, or nothing for 1."""
        match = re.compile(NUMBER.pattern + r"\s*\*").match(self.text, self.at)
        if match is None:
            return 1.0
        self.at = match.end()
        self._skip()
        return number(match[0].rstrip("* \t\n"))

    def address(self) -> str:
        return self.take(NAME, "an address such as L3H7")

    def site(self) -> tuple[Site, Positions]:
        site = Site.parse(self.address())
        return site, self.positions() if self.accept("[") else Positions()

    def positions(self) -> Positions:
        """What stands in brackets, whose first is already passed."""
        items: list[int | tuple[int | None, int | None]] = []
        while True:
            start = self._integer()
            if self.accept(":"):
                items.append((start, self._integer()))
            elif start is not None:
                items.append(start)
            else:
                raise self.wrong("a position")
            if not self.accept(","):
                break
        self.expect("]")
        return Positions() if items == [(None, None)] else Positions(tuple(items))

    def _integer(self) -> int | None:
        match = INTEGER.match(self.text, self.at)
        return None if match is None else int(self.take(INTEGER, "a position"))

    def json(self, wanted: str) -> Any:
        """A JSON string, or a list of these or of numbers."""
        if self.text[self.at : self.at + 1] not in ('"', "["):
            raise self.wrong(wanted)
        try:
            value, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        except ValueError as error:
            raise self.wrong(wanted) from error
        self._skip()
        return value

    def run(self) -> Run:
        return as_run(
            self.json(
                'a prompt in double quotes, token ids as in "[1, 2]", or a source and a target'
            )
        )

    def direction(self) -> Direction:
        if self.accept("("):
            one = self.run()
            self.expect("-")
            other = self.run()
            self.expect(")")
            return Difference(one, other)
        if NAME.match(self.text, self.at):
            return OfAddress(Address.parse(self.address()))
        value = self.json('a vector: an address, words in double quotes, or ("one" - "other")')
        words = (value,) if isinstance(value, str) else tuple(value)
        if not words or not all(isinstance(word, str) for word in words):
            raise self.wrong("a list of words")
        return OfWords(words)


def _ablate(r: _Reader) -> Edit:
    site, positions = r.site()
    if not r.accept("to") or r.accept("zero"):
        return Ablate(site, positions)
    r.expect("mean")
    return (
        Ablate(site, positions, r.run(), True)
        if r.accept("of")
        else Ablate(site, positions, "mean")
    )


def _scale(r: _Reader) -> Edit:
    site, positions = r.site()
    r.expect("by")
    return Scale(site, positions, r.number())


def _clamp(r: _Reader) -> Edit:
    site, positions = r.site()
    r.expect("to")
    return Clamp(site, positions, r.number())


def _add(r: _Reader) -> Edit:
    strength, vector = r.strength(), r.direction()
    r.expect("@")
    site, positions = r.site()
    return Add(site, positions, vector, strength)


def _patch(r: _Reader) -> Edit:
    site, positions = r.site()
    r.expect("from")
    return Patch(site, positions, r.run())


def _cut(r: _Reader) -> Edit:
    r.expect("[")
    source = r.positions()
    r.expect("->")
    r.expect("[")
    destination, heads = r.positions(), []
    if r.accept("in"):
        heads.append(Site.parse(r.address()))
        while r.accept(","):
            heads.append(Site.parse(r.address()))
    return Cut(source, destination, tuple(heads), r.accept("renormalised"))


def _replace(r: _Reader) -> Edit:
    address = Address.parse(r.address())
    r.expect("by")
    strength = r.strength()
    return Replace(address, r.direction(), strength)


def _rank_one(r: _Reader) -> Edit:
    site, _ = r.site()
    r.expect("from")
    prompt = r.json("a prompt in double quotes")
    r.expect("to")
    answer = r.json("an answer in double quotes")
    subject = r.json("a subject in double quotes") if r.accept("about") else None
    if not all(isinstance(text, str) for text in (prompt, answer, subject or "")):
        raise r.wrong("a text in double quotes")
    return rank_one(site, prompt=prompt, answer=answer, subject=subject)


VERBS: dict[str, Callable[[_Reader], Edit]] = {
    "ablate": _ablate,
    "scale": _scale,
    "clamp": _clamp,
    "add": _add,
    "patch": _patch,
    "cut": _cut,
    "replace": _replace,
    "rank_one": _rank_one,
}
