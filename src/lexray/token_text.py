"""What the strings in a tokenizer's files stand for, and how people read them.

A tokenizer spells text in its own way: GPT-2 writes ` Paris` as `ĠParis`, Llama 2 as `▁Paris`,
BERT `paris` and, inside a word, `##ing`. A `Spelling` turns such strings back into the bytes they
stand for; `shown` and `unshown` turn those bytes into what readers see, and back. The sources at
the end hold what a file or a live tokenizer says: its strings by id, which are special, how to
encode.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from lexray.errors import LexrayError

MAX_HOLES = 1 << 16
"""A vocabulary with more ids without a token, and with three for each token, is damaged."""

Encode = Callable[[Sequence[str], bool], list[list[int]]]
"""Texts → their ids; with True the tokenizer adds its own special tokens (BOS, [CLS], …)."""

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
    return slashes * 2 + _escaped(ord(unit))


def _escaped(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _unshow_unit(match: re.Match[str]) -> str:
    slashes, unit = match.groups()
    half, escaped = divmod(len(slashes), 2)
    if escaped and len(unit) > 1:
        unit = _unescaped(unit)
    elif not escaped:
        unit = _MARKS.get(unit, unit)
    return "\\" * half + unit


def _unescaped(unit: str) -> str:
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
    def described(cls, description: Mapping[str, Any]) -> Spelling:
        """The spelling that a `tokenizer.json` describes: its decoder first, then what precedes."""
        model = description["model"]
        stages = [list(_parts(description.get(s))) for s in ("decoder", "pre_tokenizer")]
        parts = [*stages[0], *stages[1], *_parts(description.get("normalizer"))]
        if _kind(model) == "WordPiece":
            prefix = model.get("continuing_subword_prefix") or "##"
            return cls(continuation=prefix, drops_first_space=True)
        found: dict[str, Any] = next((kind for part in parts if (kind := _spelled(part))), {})
        types = {part["type"] for part in stages[0]}
        fallback = bool(model.get("byte_fallback")) or "ByteFallback" in types
        return cls(
            **found,
            byte_fallback=fallback,
            drops_first_space=any(_drops_space(part) for part in stages[0]),
        )

    @classmethod
    def guessed(cls, tokens: Collection[str]) -> Spelling:
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


def literal(token: str) -> bytes:
    """A token that stands for exactly its own text."""
    return token.encode("utf-8", "surrogatepass")


def _parts(stage: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, sequences taken apart."""
    if isinstance(stage, dict) and "type" in stage:
        yield stage
        for key in ("normalizers", "pretokenizers", "decoders"):
            for step in stage.get(key) or ():
                yield from _parts(step)


def _spelled(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "ByteLevel"}:
            return {"byte_level": True}
        case {"type": "Metaspace"}:
            return {"marker": part.get("replacement") or part.get("str_rep") or "▁"}
        case {"type": "Replace", "pattern": {"String": "▁"}} | {"type": "Replace", "content": "▁"}:
            return {"marker": "▁"}
        case {"type": "WordPiece"}:
            return {"continuation": part.get("prefix") or "##"}
        case {"type": "BPEDecoder"}:
            return {"word_end": part.get("suffix") or "</w>"}
    return {}


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


# ------------------------------------------------------------------ what a tokenizer says of itself


class Source(ABC):
    """A tokenizer as lexray needs it; everything is read when first asked for."""

    name: str
    caveat: str | None = None
    """What a reader should know if encoding may differ from the model's own."""

    @cached_property
    @abstractmethod
    def spelling(self) -> Spelling: ...

    @cached_property
    @abstractmethod
    def tokens(self) -> Sequence[str | None]:
        """The tokenizer's own strings by id."""

    @cached_property
    def holes(self) -> frozenset[int]:
        """The ids below `len(tokens)` that have no token."""
        return frozenset(i for i, token in enumerate(self.tokens) if token is None)

    @cached_property
    @abstractmethod
    def special(self) -> frozenset[int]: ...

    @cached_property
    @abstractmethod
    def added(self) -> frozenset[int]: ...

    @cached_property
    @abstractmethod
    def fingerprint(self) -> str:
        """Differs for tokenizers that encode differently."""

    @cached_property
    @abstractmethod
    def encode(self) -> Encode: ...


class JsonSource(Source):
    """A `tokenizer.json`, from a file or written by a live tokenizer.

    `config` is the `tokenizer_config.json` beside it: it may name further tokens and special ones.
    """

    def __init__(self, name: str, read: Callable[[], bytes], config: Mapping[str, Any] | None):
        self.name = name
        self._read = read
        self._config = config or {}

    @cached_property
    def _description(self) -> dict[str, Any]:
        try:
            description = json.loads(self._read())
        except (OSError, ValueError, RecursionError) as error:
            raise LexrayError(f"{self.name} cannot be read as a tokenizer: {error}") from error
        match description:
            case {"model": {"vocab": dict() | list()}, **rest}:
                if isinstance(rest.get("added_tokens") or [], list):
                    return dict(description)
        raise LexrayError(f'{self.name} is no tokenizer.json: it has no "model" with a "vocab"')

    @cached_property
    def spelling(self) -> Spelling:
        try:
            return Spelling.described(self._description)
        except (TypeError, AttributeError, KeyError) as error:
            raise LexrayError(f"{self.name} has a decoder that cannot be read: {error}") from error

    @cached_property
    def _vocab(self) -> dict[str, int]:
        vocab = self._description["model"]["vocab"]
        try:
            pairs = vocab if isinstance(vocab, dict) else {p[0]: i for i, p in enumerate(vocab)}
        except (TypeError, LookupError) as error:
            raise LexrayError(f"{self.name}: its vocabulary cannot be read: {error}") from error
        types = (set(map(type, pairs)), set(map(type, pairs.values())))
        if pairs and (types != ({str}, {int}) or not _in_range(pairs.values())):
            raise LexrayError(f"{self.name}: its vocabulary does not give each text a sound id")
        return pairs

    @cached_property
    def _added(self) -> dict[int, dict[str, Any]]:
        """Added tokens by the id that `tokenizers` gives them: the next one, if they are new."""
        listed = [*(self._description.get("added_tokens") or ()), *self._configured]
        ids: dict[str, int] = {}
        entries: dict[int, dict[str, Any]] = {}
        following = len(self._vocab)
        for entry in listed:
            content = entry.get("content") if isinstance(entry, dict) else None
            if isinstance(content, str) and content and content not in ids:
                ids[content] = self._vocab.get(content, following)
                following += content not in self._vocab
                entries[ids[content]] = entry
        return entries

    @cached_property
    def _configured(self) -> list[dict[str, Any]]:
        listed = self._config.get("added_tokens_decoder") or {}
        rows = [(int(key), row) for key, row in listed.items() if str(key).isdecimal()]
        rows.sort(key=lambda item: item[0])
        return [row for _, row in rows if isinstance(row, dict) and row.get("content")]

    @cached_property
    def tokens(self) -> list[str | None]:
        size = max([*self._vocab.values(), *self._added, -1]) + 1
        tokens: list[str | None] = [None] * size
        for token, token_id in self._vocab.items():
            tokens[token_id] = token
        for token_id, entry in self._added.items():
            tokens[token_id] = entry["content"]
        return tokens

    @cached_property
    def special(self) -> frozenset[int]:
        """What is marked as special, the unknown token, and what the config names (`eos_token`)."""
        model = self._description["model"]
        ids = {i for i, entry in self._added.items() if entry.get("special")}
        if isinstance(model.get("unk_id"), int):
            ids.add(model["unk_id"])
        names = [value for key, value in self._config.items() if key.endswith("_token")]
        texts = [name.get("content") if isinstance(name, dict) else name for name in names]
        by_text = self._vocab | {entry["content"]: i for i, entry in self._added.items()}
        known = (by_text.get(t) for t in (model.get("unk_token"), *texts) if isinstance(t, str))
        return frozenset(ids.union(i for i in known if i is not None))

    @cached_property
    def added(self) -> frozenset[int]:
        return frozenset(self._added)

    @cached_property
    def fingerprint(self) -> str:
        return sha256(self._read() + repr(self._configured).encode()).hexdigest()

    @cached_property
    def encode(self) -> Encode:
        try:
            tokenizer = Tokenizer.from_buffer(self._read())
        except Exception as error:  # the Rust library raises plain Exceptions
            raise LexrayError(f"{self.name} cannot be read as a tokenizer: {error}") from error
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        for entry in self._configured:
            chosen = {flag: bool(entry[flag]) for flag in flags if flag in entry}
            if tokenizer.token_to_id(entry["content"]) is None:
                tokenizer.add_tokens([AddedToken(entry["content"], **chosen)])
        return rust_encode(tokenizer)


def _in_range(ids: Collection[int]) -> bool:
    return min(ids) >= 0 and max(ids) < 4 * len(ids) + MAX_HOLES


def rust_encode(
    tokenizer: Tokenizer, before: Sequence[int] = (), after: Sequence[int] = ()
) -> Encode:
    """Encode with `tokenizers`, never cut or padded; `before` and `after` are special ids."""
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: Sequence[str], special: bool) -> list[list[int]]:
        try:
            if len(texts) == 1:
                found = [tokenizer.encode(texts[0], add_special_tokens=special)]
            else:
                found = tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        except Exception as error:  # such as a text with letters the model has no token for
            raise LexrayError(f"this text cannot be encoded: {error}") from error
        ends = (list(before), list(after)) if special else ([], [])
        return [ends[0] + one.ids + ends[1] for one in found]

    return encode


class LiveSource(Source):
    """A tokenizer of transformers that is written in Python."""

    def __init__(self, name: str, tokenizer: Any):
        self.name = name
        self._tokenizer = tokenizer

    @cached_property
    def special(self) -> frozenset[int]:
        return frozenset(self._tokenizer.all_special_ids)

    @cached_property
    def added(self) -> frozenset[int]:
        return frozenset(self._tokenizer.added_tokens_decoder)

    @cached_property
    def tokens(self) -> list[str | None]:
        vocab = self._tokenizer.get_vocab()
        tokens: list[str | None] = [None] * (max(vocab.values(), default=-1) + 1)
        for token, token_id in vocab.items():
            tokens[token_id] = token
        return tokens

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling.guessed([token for token in self.tokens if token is not None])

    @cached_property
    def fingerprint(self) -> str:
        return sha256(repr((type(self._tokenizer), self.tokens)).encode()).hexdigest()

    @cached_property
    def encode(self) -> Encode:
        return lambda texts, special: [
            list(self._tokenizer.encode(text, add_special_tokens=special)) for text in texts
        ]


# ------------------------------------------------------------------ GGUF

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


def _cased_words(ending: str) -> str:
    return rf"{_LEAD}{_UPPER}*{_LOWER}+{ending}|{_LEAD}{_UPPER}+{_LOWER}*{ending}"


_SPLITS = {
    "llama3": rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}|{_TAIL}",
    "qwen2": rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}|{_SIGNS}|{_TAIL}",
    "qwen35": rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}",
    "tekken": rf"{_cased_words('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",
    "gpt-4o": rf"{_cased_words(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
}
"""How the text is cut before merging, by llama.cpp's name; GPT-2's own way is in `tokenizers`."""

_SAME_SPLIT = {
    "llama3": "llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe "
    "chatglm-bpe glm4",
    "qwen2": "stablelm2 deepseek-r1-qwen megrez hunyuan solar-open grok-2",
    "gpt-4o": "llama4 kanana2 minimax-m2",
    "bloom": "poro-chat gpt3-finnish",
    "gpt-2": "default mpt olmo jais phi-2 gigachat roberta-bpe modern-bert jina-v1-en jina-v2-es "
    "jina-v2-de jina-v2-code a.x-4.0 mellum trillion exaone4 granite-docling",
    "digits": "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "falcon": "",
}
_SPLIT_OF = {name: name for name in _SPLITS} | {
    alias: name for name, aliases in _SAME_SPLIT.items() for alias in (name, *aliases.split())
}
_WHOLE_WORDS_FIRST = {"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "tekken"}
"""Where a word that is a token is not cut, whatever the merges say; these also begin with BOS."""
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED_TYPE = 2, 3, 4, 5


class GgufSource(Source):
    """The tokenizer in a GGUF file's metadata, and an encoder built from it as llama.cpp does."""

    name = "this GGUF file"

    def __init__(self, metadata: Mapping[str, Any]):
        if "tokenizer.ggml.tokens" not in metadata:
            raise LexrayError("this GGUF file has no tokenizer: no tokenizer.ggml.tokens in it")
        self._metadata = metadata
        self.kind = str(self._get("model", "gpt2"))
        self._pre = str(self._get("pre", "default"))
        self.caveat = self._split_caveat()

    def _get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def _split_caveat(self) -> str | None:
        if self.kind != "gpt2" or self._pre in _SPLIT_OF:
            return None
        return f"words are cut as for GPT-2: how {self._pre!r} cuts them is not known to lexray"

    @cached_property
    def spelling(self) -> Spelling:
        if self.kind == "gpt2":
            return Spelling(byte_level=True)
        if self.kind not in ("llama", "t5", "gemma4", "bert"):
            return Spelling()
        prefix = bool(self._get("add_space_prefix", self.kind != "gemma4"))
        return Spelling(marker="▁", byte_fallback=self.kind != "bert", drops_first_space=prefix)

    @cached_property
    def _types(self) -> NDArray[np.int64]:
        types = np.asarray(self._get("token_type", ()), dtype=np.int64)
        size = len(self._get("tokens"))
        return types if len(types) == size else np.ones(size, dtype=np.int64)

    def _typed(self, *types: int) -> set[int]:
        return {int(i) for i in np.flatnonzero(np.isin(self._types, types))}

    @cached_property
    def holes(self) -> frozenset[int]:
        """Converters fill ids that have no token with unused ones such as `[PAD151700]`."""
        tokens = self._get("tokens")
        return frozenset(i for i in self._typed(_UNUSED_TYPE) if tokens[i] == f"[PAD{i}]")

    @cached_property
    def tokens(self) -> Sequence[str | None]:
        tokens: Sequence[str] = self._get("tokens")
        if not self.holes:
            return tokens
        return [None if i in self.holes else token for i, token in enumerate(tokens)]

    @cached_property
    def special(self) -> frozenset[int]:
        names = ("bos", "eos", "unknown", "padding", "seperator", "cls", "mask")
        named = {self._get(f"{name}_token_id") for name in names}
        ids = {int(i) for i in named if i is not None and 0 <= i < len(self._types)}
        return frozenset(ids | self._typed(_UNKNOWN, _CONTROL))

    @cached_property
    def added(self) -> frozenset[int]:
        return self.special | self._typed(_USER_DEFINED)

    @cached_property
    def fingerprint(self) -> str:
        digest = sha256(repr((self.kind, self._pre, self.spelling)).encode())
        for key in ("tokens", "merges"):
            digest.update("\0".join(self._get(key, ())).encode("utf-8", "replace"))
        digest.update(self._types.tobytes())
        return digest.hexdigest()

    @cached_property
    def encode(self) -> Encode:
        builders = {
            "gpt2": self._byte_level_bpe,
            "llama": self._sentencepiece_bpe,
            "gemma4": self._sentencepiece_bpe,
            "t5": self._unigram,
            "bert": self._word_piece,
        }
        if self.kind not in builders:
            known = ", ".join(builders)
            raise LexrayError(f"GGUF tokenizers of kind {self.kind!r} cannot encode; {known} can")
        try:
            tokenizer = builders[self.kind]()
        except Exception as error:  # the Rust library raises plain Exceptions
            raise LexrayError(f"the tokenizer of this GGUF file is damaged: {error}") from error
        self._add_tokens(tokenizer)
        return rust_encode(tokenizer, *self._ends())

    def _vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens) if token is not None}

    def _merges(self) -> list[tuple[str, str]]:
        cuts = ((merge, merge.index(" ", 1)) for merge in self._get("merges"))
        return [(merge[:cut], merge[cut + 1 :]) for merge, cut in cuts]

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        """Tokens that are found whole in a text; SentencePiece merges runs of spaces itself."""
        for i in sorted(self.added):
            token = self.tokens[i] or ""
            if token.strip(" ") or self.spelling.byte_level:
                special = i in self.special
                tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])

    def _ends(self) -> tuple[list[int], list[int]]:
        """The special ids that go before and after a text."""
        begins = self.kind in ("llama", "gemma4", "bert") or self._pre in _WHOLE_WORDS_FIRST
        ends = self.kind in ("t5", "bert")
        begin = self._get("cls_token_id") if self.kind == "bert" else None
        begin = self._get("bos_token_id") if begin is None else begin
        end = self._get("seperator_token_id" if self.kind == "bert" else "eos_token_id")
        return (
            [int(begin)] if self._get("add_bos_token", begins) and begin is not None else [],
            [int(end)] if self._get("add_eos_token", ends) and end is not None else [],
        )

    def _byte_level_bpe(self) -> Tokenizer:
        whole = self._pre in _WHOLE_WORDS_FIRST
        tokenizer = Tokenizer(models.BPE(self._vocab(), self._merges(), ignore_merges=whole))
        tokenizer.pre_tokenizer = _split(_SPLIT_OF.get(self._pre, "gpt-2"))
        return tokenizer

    def _sentencepiece_bpe(self) -> Tokenizer:
        vocab = {"▁" * len(t) if set(t) == {" "} else t: i for t, i in self._vocab().items()}
        listed = "tokenizer.ggml.merges" in self._metadata
        merges = self._merges() if listed else self._implied(vocab)
        unknown = self.tokens[int(self._get("unknown_token_id", 0))]
        tokenizer = Tokenizer(
            models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        tokenizer.normalizer = _spaces_to_marker(self.spelling.drops_first_space)
        return tokenizer

    def _implied(self, vocab: dict[str, int]) -> list[tuple[str, str]]:
        """Every way to make a token of two, the best-scored token first.

        Gemma's scores do not follow its merges; the order of its tokens does.
        """
        scores = np.asarray(self._get("scores", ()), dtype=np.float64)
        by_order = len(scores) != len(self._types)
        by_order |= str(self._metadata.get("general.architecture", "")).startswith("gemma")
        odd = self._typed(_UNKNOWN, _CONTROL, _UNUSED_TYPE, 6)
        pieces = {token: i for token, i in vocab.items() if i not in odd}
        found = [
            (i if by_order else -scores[i], -cut, cut - len(token), token[:cut], token[cut:])
            for token, i in pieces.items()
            for cut in range(1, len(token))
            if token[:cut] in pieces and token[cut:] in pieces
        ]
        found.sort(key=lambda merge: merge[:3])
        return [merge[3:] for merge in found]

    def _unigram(self) -> Tokenizer:
        scores = np.asarray(self._get("scores"), dtype=np.float64).tolist()
        pieces = [(token or f"[PAD{i}]", scores[i]) for i, token in enumerate(self.tokens)]
        unknown = int(self._get("unknown_token_id", 2))
        tokenizer = Tokenizer(
            models.Unigram(pieces, unknown, byte_fallback="<0x0A>" in self.tokens)
        )
        charsmap = self._get("precompiled_charsmap")
        if charsmap is not None:
            data = np.asarray(charsmap).astype(np.uint8).tobytes()
            tokenizer.normalizer = normalizers.Precompiled(data)
        scheme = "always" if self.spelling.drops_first_space else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme)
        return tokenizer

    def _word_piece(self) -> Tokenizer:
        vocab = {self._word_piece_token(token, i): i for token, i in self._vocab().items()}
        lower = not any(t != t.lower() for t, i in vocab.items() if i not in self.special)
        unknown = self.tokens[int(self._get("unknown_token_id", 100))]
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=unknown))
        lower = bool(self._get("normalizer.lowercase", lower))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def _word_piece_token(self, token: str, token_id: int) -> str:
        if token_id in self.special or re.fullmatch(r"\[.+\]", token):
            return token
        return token[1:] if token.startswith("▁") else "##" + token


def _split(name: str) -> Any:
    """The pre-tokenizer of byte-level BPE for one of the ways to cut text."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name not in _SPLITS)
    steps = {
        "digits": [pre_tokenizers.Digits(individual_digits=True), byte_level],
        "falcon": [
            pre_tokenizers.Punctuation("contiguous"),
            byte_level,
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ],
    }
    if name in _SPLITS:
        cut = pre_tokenizers.Split(Regex(_SPLITS[name]), "isolated")
        return pre_tokenizers.Sequence([cut, byte_level])
    return pre_tokenizers.Sequence(steps[name]) if name in steps else byte_level


def _spaces_to_marker(prefix: bool) -> Any:
    """SentencePiece's ▁ for every space, and one before the text."""
    replace = normalizers.Replace(" ", "▁")
    return normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
