"""What a tokenizer of others may do to a text, judged before it does it.

`tokenizers` runs whatever a file describes: steps that each make a text ten times as long, a
template that repeats it, a regular expression that never comes to an end. The first two are found
in the description, since the process would be gone before anything could be caught; the third ends
in a panic of the Rust library, which is no `Exception`, and which becomes an error like any other.
"""

from __future__ import annotations

import os
import tempfile
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from math import ceil
from typing import Any

from lexray.checkpoint.fields import Fields
from lexray.errors import LexrayError
from lexray.vocabulary.text import steps

MOST_STEPS = 64
"""Steps of a normaliser or pre-tokenizer; real ones have up to ten."""
LONGEST_CONTENT = 4096
"""Characters that a step may insert, or of its pattern; real ones have up to some hundred."""
MOST_GROWTH = 4096
"""How many times its length a text may grow; the bound for real tokenizers is below a hundred."""
LONGEST_TEXT = 1 << 28
"""Bytes of one text, as the steps may have made it."""
MOST_SPECIAL = 10_000
"""Special tokens that a template may put around a text."""
STDERR = 2
_STREAM = threading.RLock()
"""The stream is the whole process's: one thread at a time takes it away."""


@contextmanager
def rust(what: str) -> Iterator[None]:
    """Makes an error of ours of whatever the Rust library raises, panics too, and of that only."""
    try:
        with _hold_back():
            yield
    except LexrayError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise LexrayError(f"{what}: {str(error)[:200]}") from error
        raise


@contextmanager
def _hold_back() -> Iterator[None]:
    """Holds back what is written to the error stream meanwhile, and drops it if an error is raised.

    A Rust library says that it panics on the process's own stream, before anybody can catch it.
    """
    with _STREAM, tempfile.TemporaryFile() as held, ExitStack() as undo:
        try:
            kept = os.dup(STDERR)
        except OSError:  # there is none
            yield
            return
        undo.callback(os.close, kept)
        undo.callback(os.dup2, kept, STDERR)
        os.dup2(held.fileno(), STDERR)
        yield
        undo.close()
        held.seek(0)
        with suppress(OSError):
            for piece in iter(lambda: held.read(1 << 16), b""):
                os.write(STDERR, piece)


def growth(description: Mapping[str, Any], where: str) -> int:
    """How many times its length a text may become at most; raises for what no tokenizer needs."""
    try:
        factor = _growth(description, where)
    except (TypeError, RecursionError) as error:
        raise LexrayError(f"{where} has a step that cannot be read: {error}") from error
    if factor > MOST_GROWTH:
        raise LexrayError(
            f"{where} describes a tokenizer that could make a text {factor:,} times as long; "
            "it is damaged or hostile"
        )
    return factor


def _growth(description: Mapping[str, Any], where: str) -> int:
    factor, once = 1, set()
    for stage in ("normalizer", "pre_tokenizer"):
        parts = list(steps(description.get(stage)))
        if len(parts) > MOST_STEPS:
            raise LexrayError(f"{where} has {len(parts)} steps in its {stage}; no tokenizer has")
        for step in parts:
            kind = str(step["type"])
            if kind in _ONCE:
                once.add(kind)
            elif kind in _EACH:
                factor *= _EACH[kind](Fields(step, where, f"{stage}."))
            if factor > MOST_GROWTH:
                break
    for kind in once:
        factor *= _ONCE[kind]
    return factor * _repeats(description, where)


def refuse_growth(texts: list[str], factor: int) -> None:
    """Raises for a text that may become too long on its way through the steps."""
    longest = max((len(text) for text in texts), default=0)
    if longest * 4 * factor > max(LONGEST_TEXT, 256 * longest):
        raise LexrayError(
            f"a text of {longest:,} characters could become {factor} times as long in this "
            "tokenizer; cut it into pieces"
        )


def _replace(step: Fields) -> int:
    """Longest result over shortest match, in bytes; a regular expression may match nothing."""
    content = _short(step, "content")
    pattern = step.object("pattern")
    literal = _short(pattern, "String")
    _short(pattern, "Regex")
    return max(1, ceil(content / literal)) if literal else content + 1


def _short(step: Fields, key: str) -> int:
    """The length of a text field in bytes, if it is not absurd."""
    value = step.text(key) or ""
    if len(value) > LONGEST_CONTENT:
        raise LexrayError(f"a step of this tokenizer has a {key} of {len(value):,} characters")
    return len(value.encode())


def _prepend(step: Fields) -> int:
    return 1 if _short(step, "prepend") < 64 else 2


def _size_precompiled(step: Fields) -> int:
    try:
        return charsmap_growth(b64decode(step.text("precompiled_charsmap") or ""))
    except ValueError as error:
        raise LexrayError(f"a precompiled_charsmap cannot be read: {error}") from error


def charsmap_growth(data: bytes) -> int:
    """The longest text that SentencePiece's map puts in a character's place.

    The texts lie behind the length of a trie and the trie, and are split by zeros. `tokenizers`
    makes room for as long a trie as is claimed, and ends the process where there is none.
    """
    end = 4 + int.from_bytes(data[:4], "little")
    if data and (end > len(data) or end % 4 or end == 4):
        raise LexrayError(
            f"a precompiled_charsmap claims {end - 4:,} bytes for its trie and has "
            f"{max(0, len(data) - 4):,}"
        )
    texts = data[end:]
    longest = max(1, *map(len, texts.split(b"\0")))
    if longest > MOST_GROWTH:
        raise LexrayError(f"a precompiled_charsmap puts {longest:,} bytes in a character's place")
    return longest


def _split(step: Fields) -> int:
    for key in ("Regex", "String"):
        _short(step.object("pattern"), key)
    return 1


def _doubles(step: Fields) -> int:
    return 2


_EACH: dict[str, Callable[[Fields], int]] = {
    "Replace": _replace,
    "Prepend": _prepend,
    "Precompiled": _size_precompiled,
    "Split": _split,
    "ByteLevel": _doubles,
}
"""Steps that may grow a text each time they occur."""
_ONCE = dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD"), 4) | {"Metaspace": 3, "BertNormalizer": 3}
"""Steps that do nothing more the second time."""


def _repeats(description: Mapping[str, Any], where: str) -> int:
    """How often a template repeats the text; it may also put special tokens around it."""
    factor = 1
    for step in steps(description.get("post_processor")):
        if step["type"] != "TemplateProcessing":
            continue
        template = Fields(step, where, "post_processor.")
        special, pieces = template.object("special_tokens"), template.listing("single")
        ids = sum(
            len(Fields(_inside(piece, "SpecialToken", special), where).listing("ids"))
            for piece in pieces
        )
        repeats = sum(isinstance(piece, dict) and "Sequence" in piece for piece in pieces)
        factor *= max(1, repeats)
        if ids > MOST_SPECIAL or factor > MOST_GROWTH:
            raise LexrayError(
                f"{where} puts {ids:,} special tokens around a text; no tokenizer does"
            )
    return factor


def _inside(piece: Any, key: str, special: Fields) -> Mapping[str, Any]:
    """The special token that a piece of a template names."""
    inner = piece.get(key) if isinstance(piece, dict) else None
    name = inner.get("id") if isinstance(inner, dict) else None
    token = special.get(name) if isinstance(name, str) else None
    return token if isinstance(token, dict) else {}
