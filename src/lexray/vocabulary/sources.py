"""What a tokenizer says of itself: its strings by id, which of them are special, how to encode."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from lexray.checkpoint.fields import Fields, text, whole
from lexray.checkpoint.plain import parse_json, read_json, read_plain, without_collector
from lexray.errors import LexrayError
from lexray.vocabulary.guard import growth, refuse_growth, rust
from lexray.vocabulary.text import Spelling

MOST_TOKENS = 4_000_000
"""Tokens, or merges; the largest vocabularies have a million of either."""
MAX_HOLES = 1 << 16
"""A vocabulary with more ids without a token, and with three for each token, is damaged."""

Encode = Callable[[Sequence[str], bool], list[list[int]]]
"""Texts → their ids; with True the tokenizer adds its own special tokens (BOS, [CLS], …)."""


class TokenSource(ABC):
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
    def named(self) -> dict[str, str]:
        """The tokens that have names, as chat templates call them: `bos_token`, `eos_token`, …"""
        return {}

    @cached_property
    @abstractmethod
    def fingerprint(self) -> str:
        """Differs for tokenizers that encode differently."""

    @cached_property
    @abstractmethod
    def encode(self) -> Encode: ...


class JsonSource(TokenSource):
    """A `tokenizer.json`, from a file or written by a live tokenizer.

    `config` is the `tokenizer_config.json` beside it: it may name further tokens and special ones.
    """

    def __init__(self, name: str, read: Callable[[], bytes], config: Mapping[str, Any] | None):
        self.name = name
        self._read = read
        self._config = config or {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _read_again, (self.name, self._read(), dict(self._config))

    @cached_property
    def _description(self) -> dict[str, Any]:
        with without_collector():
            description = parse_json(self._read(), self.name)
            match description:
                case {"model": {"vocab": dict() | list() as vocab}, **rest}:
                    if len(vocab) > MOST_TOKENS:
                        raise LexrayError(
                            f"{self.name} has {len(vocab):,} tokens; no vocabulary has"
                        )
                    if isinstance(rest.get("added_tokens") or [], list):
                        if "merges" in description["model"]:
                            description["model"]["merges"] = []  # only `tokenizers` needs them
                        return dict(description)
        raise LexrayError(f'{self.name} is no tokenizer.json: it has no "model" with a "vocab"')

    @cached_property
    def spelling(self) -> Spelling:
        try:
            return Spelling.from_description(self._description)
        except (TypeError, AttributeError, KeyError, RecursionError) as error:
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
        listed = Fields(self._config, f"the tokenizer_config.json of {self.name}")
        rows = [
            (int(key), row)
            for key, row in listed.object("added_tokens_decoder").items()
            if key.isdecimal() and len(key) < 10 and isinstance(row, dict)
        ]
        rows.sort(key=lambda item: item[0])
        return [row for _, row in rows if text(row.get("content"))]

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
    def named(self) -> dict[str, str]:
        given = {key: x for key, x in self._config.items() if key.endswith("_token")}
        texts = {key: x.get("content") if isinstance(x, dict) else x for key, x in given.items()}
        return {key: text for key, text in texts.items() if isinstance(text, str)}

    @cached_property
    def special(self) -> frozenset[int]:
        """What is marked as special, the unknown token, and what the config names (`eos_token`)."""
        model = self._description["model"]
        ids = {i for i, entry in self._added.items() if entry.get("special")}
        unknown = whole(model.get("unk_id"))
        if unknown is not None and 0 <= unknown < len(self.tokens):
            ids.add(unknown)
        texts = (model.get("unk_token"), *self.named.values())
        by_text = self._vocab | {entry["content"]: i for i, entry in self._added.items()}
        known = (by_text.get(t) for t in texts if isinstance(t, str))
        return frozenset(ids.union(i for i in known if i is not None))

    @cached_property
    def added(self) -> frozenset[int]:
        return frozenset(self._added)

    @cached_property
    def fingerprint(self) -> str:
        return sha256(self._read() + repr(self._configured).encode()).hexdigest()

    @cached_property
    def encode(self) -> Encode:
        factor = growth(self._description, self.name)
        with rust(f"{self.name} cannot be read as a tokenizer"):
            tokenizer = Tokenizer.from_buffer(self._read())
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            new = [e for e in self._configured if tokenizer.token_to_id(e["content"]) is None]
            # All at once: each call builds the search for all of them anew.
            tokenizer.add_tokens(
                [
                    AddedToken(e["content"], **{flag: bool(e[flag]) for flag in flags if flag in e})
                    for e in new
                ]
            )
        return rust_encode(tokenizer, factor=factor)


def _in_range(ids: Collection[int]) -> bool:
    return min(ids) >= 0 and max(ids) < 4 * len(ids) + MAX_HOLES


def rust_encode(
    tokenizer: Tokenizer, before: Sequence[int] = (), after: Sequence[int] = (), factor: int = 1
) -> Encode:
    """Encode with `tokenizers`, never cut or padded; `before` and `after` are special ids.

    `factor` is how many times as long its steps may make a text.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(texts: Sequence[str], special: bool) -> list[list[int]]:
        refuse_growth(list(texts), factor)
        with rust("this text cannot be encoded"):  # letters the model has no token for, say
            if len(texts) == 1:
                encodings = [tokenizer.encode(texts[0], add_special_tokens=special)]
            else:
                encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
        ends = (list(before), list(after)) if special else ([], [])
        return [ends[0] + one.ids + ends[1] for one in encodings]

    return encode


def _read_again(name: str, data: bytes, config: dict[str, Any]) -> JsonSource:
    """What was pickled: the file's bytes instead of where they are."""
    return JsonSource(name, lambda: data, config)


class LiveSource(TokenSource):
    """A tokenizer of transformers that is written in Python."""

    def __init__(self, name: str, tokenizer: Any):
        self.name = name
        self._tokenizer = tokenizer

    @cached_property
    def named(self) -> dict[str, str]:
        return {name: str(token) for name, token in self._tokenizer.special_tokens_map.items()}

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
        return Spelling.guess([token for token in self.tokens if token is not None])

    @cached_property
    def fingerprint(self) -> str:
        return sha256(repr((type(self._tokenizer), self.tokens)).encode()).hexdigest()

    @cached_property
    def encode(self) -> Encode:
        return lambda texts, special: [
            list(self._tokenizer.encode(text, add_special_tokens=special)) for text in texts
        ]


# ------------------------------------------------------------------ older files


def _json(path: Path | None) -> dict[str, Any]:
    return read_json(path) if path else {}


def config_of(asset: Callable[[str], Path | None]) -> dict[str, Any]:
    """`tokenizer_config.json`, and the tokens of the older `added_tokens.json` with it."""
    config = _json(asset("tokenizer_config.json"))
    added = _json(asset("added_tokens.json"))
    listed = {str(whole(i)): {"content": token, "normalized": False} for token, i in added.items()}
    decoder = Fields(config, "tokenizer_config.json").object("added_tokens_decoder")
    return config | {"added_tokens_decoder": listed | dict(decoder)}


def _lines(path: Path) -> list[str]:
    try:
        lines = read_plain(path).decode().replace("\r\n", "\n").split("\n")
    except ValueError as error:
        raise LexrayError(f"{path} cannot be read as text: {error}") from error
    if len(lines) > MOST_TOKENS:
        raise LexrayError(f"{path} has {len(lines):,} lines; no vocabulary has")
    return lines


def gpt2_source(vocab: Path, merges: Path, config: Mapping[str, Any]) -> JsonSource:
    """GPT-2's `vocab.json` and `merges.txt` as a `tokenizer.json`."""
    rules = [line.split(" ") for line in _lines(merges) if not line.startswith("#version")]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    pairs = [rule for rule in rules if len(rule) == 2]
    model = {"type": "BPE", "vocab": read_json(vocab), "merges": pairs}
    stages = {"pre_tokenizer": byte_level, "decoder": byte_level}
    return _from_json(vocab, {"model": model, **stages}, config)


def bert_source(path: Path, config: Mapping[str, Any]) -> JsonSource:
    """BERT's `vocab.txt` as a `tokenizer.json`."""
    tokens = [line.rstrip("\r") for line in _lines(path)]
    vocab = {token: i for i, token in enumerate(tokens[:-1] if tokens[-1] == "" else tokens)}
    special = [t for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if t in vocab]
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "strip_accents": config.get("strip_accents"),
        "lowercase": config.get("do_lower_case", True),
    }
    model = {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]"}
    limits = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    stages = {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "added_tokens": [_special(token, vocab[token]) for token in special],
    }
    return _from_json(path, {"model": model | limits, **stages}, config)


def _special(token: str, token_id: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": token, "special": True, **flags}


def _from_json(path: Path, description: dict[str, Any], config: Mapping[str, Any]) -> JsonSource:
    data = json.dumps({"version": "1.0", "added_tokens": []} | description).encode()
    return JsonSource(str(path), lambda: data, config)
