"""SentencePiece's own files (`tokenizer.model`, `spiece.model`, `sentencepiece.bpe.model`).

A GGUF file holds the same lists under other names (llama.cpp takes them from here), so a model file
becomes such metadata, and `GgufSource` reads them. The format is a protocol buffer:
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lexray.checkpoint.assets import CONFIG
from lexray.checkpoint.fields import Fields, text, whole
from lexray.checkpoint.plain import read_json, read_plain
from lexray.errors import LexrayError
from lexray.vocabulary.gguf import GgufSource
from lexray.vocabulary.sources import MOST_TOKENS

UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
"""Kinds of pieces, which have the same numbers in GGUF."""

FAIRSEQ = {
    "xlm-roberta": (["<s>", "<pad>", "</s>", "<unk>"], 3),
    "camembert": (["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"], 1),
}
"""What these put before the pieces, and how many pieces they leave out; a <mask> comes last."""


def sentencepiece_source(
    path: Path, config: Mapping[str, Any], asset: Callable[[str], Path | None]
) -> GgufSource:
    """The tokenizer in a SentencePiece file; `config` is its `tokenizer_config.json`."""
    try:
        model = _Model(read_plain(path))
    except (ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise LexrayError(f"{path} cannot be read as a SentencePiece model: {error}") from error
    if model.kind not in (UNIGRAM, BPE) or not model.pieces:
        raise LexrayError(f"{path} is no SentencePiece model of kind unigram or BPE")
    about = asset(CONFIG)
    family = text(read_json(about).get("model_type")) if about else None
    metadata = model.metadata() | {"general.architecture": family or ""}
    settings = Fields(config, "tokenizer_config.json")
    for key in ("add_bos_token", "add_eos_token"):
        if (value := settings.flag(key)) is not None:
            metadata[f"tokenizer.ggml.{key}"] = value
    if family in FAIRSEQ:
        _renumber(metadata, *FAIRSEQ[family])
    elif path.name == "sentencepiece.bpe.model":
        known = ", ".join(FAIRSEQ)
        raise LexrayError(
            f"{path}: how models of type {family!r} number its pieces is not known to lexray (of "
            f"{known} it is); download tokenizer.json too, or save one with transformers"
        )
    _add(metadata, settings)
    return GgufSource(metadata, str(path))


def _renumber(metadata: dict[str, Any], first: list[str], left_out: int) -> None:
    """fairseq's ids: its own special tokens, the pieces without SentencePiece's, then <mask>."""
    for key, before, after in (
        ("tokens", first, ["<mask>"]),
        ("scores", [0.0] * len(first), [0.0]),
        ("token_type", [UNKNOWN if t == "<unk>" else CONTROL for t in first], [CONTROL]),
    ):
        name = f"tokenizer.ggml.{key}"
        metadata[name] = [*before, *metadata[name][left_out:], *after]
    tokens = metadata["tokenizer.ggml.tokens"]
    for name, token in (("bos", "<s>"), ("eos", "</s>"), ("unknown", "<unk>"), ("mask", "<mask>")):
        if token in tokens:
            metadata[f"tokenizer.ggml.{name}_token_id"] = tokens.index(token)
    metadata |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}


def _add(metadata: dict[str, Any], settings: Fields) -> None:
    """Tokens that were added to a tokenizer after its pieces."""
    tokens, kinds = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
    scores = metadata["tokenizer.ggml.scores"]
    for key, entry in settings.object("added_tokens_decoder").items():
        i = whole(int(key)) if key.isdecimal() and len(key) < 10 else None
        content = text(entry.get("content")) if isinstance(entry, dict) else None
        if i is None or not content or not len(tokens) <= i < len(tokens) + 10_000:
            continue
        for hole in range(len(tokens), i + 1):
            tokens.append(f"[PAD{hole}]")
            kinds.append(UNUSED)
            scores.append(0.0)
        tokens[i], kinds[i] = content, CONTROL if entry.get("special") else USER_DEFINED


class _Model:
    """The fields of a model file that matter."""

    def __init__(self, data: bytes) -> None:
        self.pieces: list[tuple[str, float, int]] = []
        self.kind, self.prefix, self.charsmap = UNIGRAM, True, b""
        self.ids = {"unknown": 0, "bos": 1, "eos": 2}
        for number, value in _fields(data):
            if number == 1 and isinstance(value, bytes):
                self.pieces.append(_piece(value))
                if len(self.pieces) > MOST_TOKENS:
                    raise ValueError("more pieces than any vocabulary has")
            elif number == 2 and isinstance(value, bytes):
                self._training(value)
            elif number == 3 and isinstance(value, bytes):
                self._normalising(value)

    def _training(self, data: bytes) -> None:
        names = {40: "unknown", 41: "bos", 42: "eos"}
        for number, value in _fields(data):
            if number == 3 and isinstance(value, int):
                self.kind = value
            elif number in names and isinstance(value, int):
                # Stored as a 64-bit number; -1 stands for "none".
                self.ids[names[number]] = value if value < 2**31 else -1

    def _normalising(self, data: bytes) -> None:
        for number, value in _fields(data):
            if number == 2 and isinstance(value, bytes):
                self.charsmap = value
            elif number == 3 and isinstance(value, int):
                self.prefix = bool(value)

    def metadata(self) -> dict[str, Any]:
        tokens, scores, kinds = ([piece[i] for piece in self.pieces] for i in range(3))
        metadata: dict[str, Any] = {
            "tokenizer.ggml.model": "t5" if self.kind == UNIGRAM else "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": kinds,
            "tokenizer.ggml.add_space_prefix": self.prefix,
        }
        if self.charsmap and self.kind == UNIGRAM:
            charsmap = np.frombuffer(self.charsmap, np.uint8)
            metadata["tokenizer.ggml.precompiled_charsmap"] = charsmap
        ids = {name: i for name, i in self.ids.items() if 0 <= i < len(tokens)}
        return metadata | {f"tokenizer.ggml.{name}_token_id": i for name, i in ids.items()}


def _piece(data: bytes) -> tuple[str, float, int]:
    token, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            token = value.decode()
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    return token, score, kind


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their numbers, with whole numbers or bytes."""
    at, size = 0, len(data)
    while at < size:
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}.get(tag & 7, -1)
        if not 0 <= length <= size - at:
            raise ValueError(f"it breaks off at byte {at}")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"a number without an end before byte {at}")
