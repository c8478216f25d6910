"""What an address asks for, in bounds: a page sees typed values, never the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from lexray.errors import LexrayError

LONGEST = 400
"""Letters of a typed word or list of words."""


@dataclass(frozen=True)
class Query:
    """The values behind the question mark."""

    values: Mapping[str, str]

    def text(self, name: str, longest: int = LONGEST) -> str:
        text = self.values.get(name, "")
        if len(text) > longest:
            raise LexrayError(
                f"{name} has {len(text):,} letters; at most {longest:,} are taken here"
            )
        return text

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name, 12)
        if not text:
            return default
        try:
            number = int(text)
        except ValueError:
            raise LexrayError(f"{name}={text!r} is no whole number") from None
        if not least <= number <= most:
            raise LexrayError(f"{name}={number} is out of bounds: {least} to {most}")
        return number

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """One of the allowed values, the first by default."""
        text = self.text(name, 60) or allowed[0]
        if text not in allowed:
            raise LexrayError(f"{name}={text!r} is unknown; there are {', '.join(allowed)}")
        return text

    def words(self, name: str, most: int) -> list[str]:
        """Words divided by commas or new lines; spaces inside stay, `·` stands for one."""
        parts = self.text(name).replace("\n", ",").split(",")
        words = [part.replace("·", " ") for part in parts if part.strip(" ")]
        if len(words) > most:
            raise LexrayError(f"{name} has {len(words)} words; at most {most} are taken here")
        return words


def link(path: Sequence[str | int], **query: object) -> str:
    """An address inside the app; values that are empty or None are left out."""
    said = {key: value for key, value in query.items() if value not in (None, "", False)}
    tail = f"?{urlencode(said, quote_via=quote)}" if said else ""
    return "/" + "/".join(quote(str(part), safe="") for part in path) + tail
