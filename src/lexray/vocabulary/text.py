"""What the strings in a tokenizer's files stand for, and how people read them.

A tokenizer spells text in its own way: GPT-2 writes ` Paris` as `ĠParis`, Llama 2 as `▁Paris`,
BERT `paris` and, inside a word, `##ing`. A `Spelling` turns such strings back into the bytes they
stand for; `shown` and `unshown` turn those bytes into what readers see, and back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lexray.clean import escape

# ------------------------------------------------------------------ what people see

_MARKS = {"·": " ", "↵": "\n", "⇥": "\t"}
_MARK_OF = {char: mark for mark, char in _MARKS.items()}
_EMPTY = "∅"
_HEX = r"x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}"
_LITERAL_MARK = re.compile(r"[·↵⇥∅]")
_UNIT = re.compile(rf"(\\*)({_HEX}|[^\\])", re.DOTALL)
_ESCAPE = re.compile(rf"(\\*)({_HEX}|[·↵⇥∅])")


def shown(data: bytes) -> str:
    r"""A token's bytes as people read them; every token looks different from every other.

    A space is `·`, a newline `↵`, a tab `⇥`, nothing at all `∅`, a byte that is no UTF-8 `\xf0`,
    an unprintable character `\x07` or `\u200b`. A token that really contains one of these signs has
    a backslash before it, and a backslash is doubled only where it would be taken for such a one.

    >>> shown(b" Paris"), shown(b"\n\t"), shown(b"\xf0\x9f"), shown(b"")
    ('·Paris', '↵⇥', '\\xf0\\x9f', '∅')
    >>> shown("l·l".encode()), shown(b"\\frac"), shown(b"\\ x")
    ('l\\·l', '\\frac', '\\\\·x')
    """
    if not data:
        return _EMPTY
    text = data.decode("utf-8", "surrogateescape")
    plain = text.isprintable() and "\\" not in text
    if plain and (text.isascii() or not _LITERAL_MARK.search(text)):
        return text.replace(" ", "·")
    return _UNIT.sub(_show_unit, text)


def unshown(text: str) -> bytes:
    r"""The bytes that `shown` shows as `text`; plain text stands for itself.

    >>> unshown("·Paris"), unshown(" Paris"), unshown("\\xf0\\x9f"), unshown("l\\·l")
    (b' Paris', b' Paris', b'\xf0\x9f', b'l\xc2\xb7l')
    """
    if text == _EMPTY:
        return b""
    plain = _ESCAPE.sub(_unshow_unit, text)
    try:
        return plain.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return literal(plain)


def _show_unit(match: re.Match[str]) -> str:
    slashes, unit = match.groups()
    if unit in _MARK_OF:
        return slashes * 2 + _MARK_OF[unit]
    if len(unit) > 1:
        return slashes * 2 + unit
    if unit in _MARKS or unit == _EMPTY:
        return slashes * 2 + "\\" + unit
    if unit.isprintable():
        return slashes + unit
    return slashes * 2 + escape(unit)


def _unshow_unit(match: re.Match[str]) -> str:
    slashes, unit = match.groups()
    half, escaped = divmod(len(slashes), 2)
    if escaped and len(unit) > 1:
        unit = _unescape(unit)
    elif not escaped:
        unit = _MARKS.get(unit, unit)
    return "\\" * half + unit


def _unescape(unit: str) -> str:
    code = int(unit[1:], 16)
    if unit[0] == "x":
        return chr(code if code < 0x80 else code + 0xDC00)
    return chr(code) if code <= 0x10FFFF else "\\" + unit


# ------------------------------------------------------------------ how tokenizers spell

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNUSED = re.compile(r"\[unused\d+\]")


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's letters for bytes, for `str.translate`; what is no letter cannot be encoded then."""
    letters = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(0x100) if byte not in letters]
    table = dict.fromkeys(rest, "\uffff") | {byte: chr(byte) for byte in letters}
    return table | {0x100 + i: chr(byte) for i, byte in enumerate(rest)}


_BYTE_OF = _byte_alphabet()


@dataclass(frozen=True)
class Spelling:
    """How a tokenizer writes text in its token strings.

    >>> Spelling(byte_level=True).decode("Ġcafé")       # é stands for the byte 0xe9 here
    b' caf\\xe9'
    >>> Spelling(marker="▁", byte_fallback=True).decode("<0x0A>")
    b'\\n'
    >>> Spelling(continuation="##").decode("paris"), Spelling(continuation="##").decode("##ing")
    (b' paris', b'ing')
    """

    byte_level: bool = False
    """One letter of GPT-2's alphabet for each byte."""
    marker: str = ""
    """What stands for a space, such as ▁."""
    byte_fallback: bool = False
    """`<0x0A>` stands for a byte."""
    continuation: str = ""
    """What begins a token inside a word, such as ##; other tokens begin a word."""
    word_end: str = ""
    """What ends the last token of a word, such as </w>."""
    drops_first_space: bool = False
    """The space before the first word of a text is the tokenizer's, not the text's."""

    def decode(self, token: str) -> bytes:
        """The bytes for which an ordinary token stands."""
        if self.byte_level:
            return _from_alphabet([token])[0]
        if self.continuation:
            return self._word_piece(token)
        if self.byte_fallback and (match := _BYTE.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self.word_end and token.endswith(self.word_end):
            return literal(token.removesuffix(self.word_end) + " ")
        return self.decode_added(token)

    def decode_all(self, tokens: Iterable[str | None]) -> list[bytes]:
        """The bytes of many ordinary tokens, none where there is no token."""
        if self.byte_level:
            return _from_alphabet(token or "" for token in tokens)
        return [b"" if token is None else self.decode(token) for token in tokens]

    def decode_added(self, token: str) -> bytes:
        """The bytes for which an added token stands: its own text, but ▁ is a space."""
        return literal(token.replace(self.marker, " ") if self.marker else token)

    def is_byte(self, token: str) -> bool:
        """Whether the token is a spare one for a single byte, such as `<0x0A>`."""
        return self.byte_fallback and _BYTE.fullmatch(token) is not None

    def _word_piece(self, token: str) -> bytes:
        if token.startswith(self.continuation):
            return literal(token.removeprefix(self.continuation))
        return literal(token if _UNUSED.fullmatch(token) else " " + token)

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Spelling:
        """The spelling that a `tokenizer.json` describes: its decoder first, then what precedes."""
        model = description["model"]
        stages = [list(steps(description.get(s))) for s in ("decoder", "pre_tokenizer")]
        parts = [*stages[0], *stages[1], *steps(description.get("normalizer"))]
        if _kind(model) == "WordPiece":
            prefix = _text(model, "continuing_subword_prefix") or "##"
            return cls(continuation=prefix, drops_first_space=True)
        spelling: dict[str, Any] = next((kind for part in parts if (kind := _spell(part))), {})
        types = {part["type"] for part in stages[0]}
        fallback = bool(model.get("byte_fallback")) or "ByteFallback" in types
        return cls(
            **spelling,
            byte_fallback=fallback,
            drops_first_space=any(_drops_space(part) for part in stages[0]),
        )

    @classmethod
    def guess(cls, tokens: Collection[str]) -> Spelling:
        """The spelling that most of these strings seem to follow."""
        signs = {"Ġ": cls(byte_level=True), "▁": cls(marker="▁", drops_first_space=True)}
        signs |= {"##": cls(continuation="##", drops_first_space=True)}
        counts = {sign: sum(token.startswith(sign) for token in tokens) for sign in signs}
        best = max(counts, key=lambda sign: counts[sign])
        return signs[best] if counts[best] else cls()


def _from_alphabet(tokens: Iterable[str]) -> list[bytes]:
    """Letters of GPT-2's alphabet as bytes; a token with other letters stands for its own text."""
    table = []
    for token in tokens:
        try:
            table.append(token.translate(_BYTE_OF).encode("latin-1"))
        except UnicodeEncodeError:
            table.append(literal(token))
    return table


_LETTER_OF = {ord(byte): chr(letter) for letter, byte in _BYTE_OF.items() if byte != "\uffff"}


def byte_letters(data: bytes) -> str:
    """Bytes as letters of GPT-2's alphabet."""
    return data.decode("latin-1").translate(_LETTER_OF)


def literal(token: str) -> bytes:
    """A token that stands for exactly its own text."""
    return token.encode("utf-8", "surrogatepass")


def steps(stage: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer, decoder or processor, sequences taken apart."""
    if isinstance(stage, dict) and "type" in stage:
        if not isinstance(stage["type"], str):
            raise TypeError("the type of a step is no text")
        yield stage
        for key in ("normalizers", "pretokenizers", "decoders", "processors"):
            inner = stage.get(key) or []
            if not isinstance(inner, list):
                raise TypeError(f"its {key} are no list")
            for step in inner:
                yield from steps(step)


def _spell(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "ByteLevel"}:
            return {"byte_level": True}
        case {"type": "Metaspace"}:
            return {"marker": _text(part, "replacement") or _text(part, "str_rep") or "▁"}
        case {"type": "Replace", "pattern": {"String": "▁"}} | {"type": "Replace", "content": "▁"}:
            return {"marker": "▁"}
        case {"type": "WordPiece"}:
            return {"continuation": _text(part, "prefix") or "##"}
        case {"type": "BPEDecoder"}:
            return {"word_end": _text(part, "suffix") or "</w>"}
    return {}


def _text(part: Mapping[str, Any], key: str) -> str | None:
    """A field that says how text is written, which has to be text itself."""
    value = part.get(key)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{key} is no text")
    return value


def _drops_space(part: dict[str, Any]) -> bool:
    match part:
        case {"type": "Strip"}:
            return bool(part.get("start"))
        case {"type": "Metaspace"}:
            scheme = part.get("prepend_scheme")
            return bool(part.get("add_prefix_space", True)) if scheme is None else scheme != "never"
    return bool(part["type"] == "WordPiece")


def _kind(model: Mapping[str, Any]) -> str:
    """The model's type, which old files leave out."""
    if isinstance(model.get("type"), str):
        return str(model["type"])
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    if "merges" in model:
        return "BPE"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"
