"""Vocabularies that are no `tokenizer.json`: of SentencePiece, tekken, GPT-2 and BERT."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.spoil import NUMBERS, TEXTS, spoil_bytes, spoil_text, spoil_value

LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "th", "the", "to", "tok", "it", "lo"]
PIECES = ["<unk>", "<s>", "</s>", "▁", *LETTERS, "▁the", "<0x0A>", "日"]
SCORES = [0.0, -1.0, 1e30, float("nan"), float("inf"), -float("inf"), -0.0]
CHARSMAP = struct.pack("<I", 8) + struct.pack("<2I", 0x100, 0x41) + b"x\0yy\0"
Message = list[tuple[int, Any]]
"""Fields of a protocol buffer: number and value, a message again if it is a list."""


def make_sound(folder: Path) -> None:
    entries = [
        {"rank": i, "token_bytes": b64encode(data).decode(), "token_str": None}
        for i, data in enumerate([bytes([n]) for n in range(256)] + [b"th", b"the", b"it"])
    ]
    special = [{"rank": i, "token_str": t, "is_control": True} for i, t in enumerate("abc")]
    config = {"pattern": ".", "default_vocab_size": 269, "default_num_special_tokens": 10}
    tekken = {"config": config, "vocab": entries, "special_tokens": special, "version": "v3"}
    (folder / "tekken.json").write_text(json.dumps(tekken))
    vocab = {token: i for i, token in enumerate(["<|endoftext|>", "Ġ", *LETTERS])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\nt o\nto k\ni t\nl o\n")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS]))


def sentencepiece(kind: int) -> Message:
    """A model as SentencePiece writes it."""
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, "<0x0A>": 6}
    pieces = [
        (1, [(1, piece.encode()), (2, -float(i)), (3, kinds.get(piece, 1))])
        for i, piece in enumerate(PIECES)
    ]
    training = [(3, kind), (40, 0), (41, 1), (42, 2)]
    return [*pieces, (2, training), (3, [(1, b"nmt_nfkc"), (3, 1)])]


def encode_message(message: Message) -> bytes:
    out = bytearray()
    for number, value in message:
        if isinstance(value, float):
            out += _varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            out += _varint(number << 3) + _varint(value % 2**64)
        else:
            data = value if isinstance(value, bytes) else encode_message(value)
            out += _varint(number << 3 | 2) + _varint(len(data)) + data
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def spoil_message(message: Message, random: Random) -> Message:
    """Fields changed, taken out, doubled, or of another kind, anywhere in the tree."""
    message = list(message)
    at = random.randrange(len(message)) if message else 0
    if not message or random.random() < 0.1:
        message.insert(at, (random.randrange(45), random.choice([b"", b"x", 0, -1, 0.5])))
        return message
    number, value = message[at]
    if number == 3 and isinstance(value, list) and random.random() < 0.3:
        value = [*value, (2, CHARSMAP)]
    if isinstance(value, list) and random.random() < 0.9:
        message[at] = (number, spoil_message(value, random))
        return message
    match random.randrange(6):
        case 0:
            del message[at]
        case 1:
            message.insert(at, message[at])
        case 2:
            message[at] = (random.choice([0, 1, 2, 3, 40, 41, 2**20]), value)
        case _:
            message[at] = (number, _other(value, random))
    return message


def _other(value: Any, random: Random) -> Any:
    if isinstance(value, bytes) and random.random() < 0.8:
        text = random.choice([*TEXTS, "▁", "<0xZZ>", "<0x0B>", "the", value.decode("latin-1") * 99])
        return random.choice([text.encode("utf-8", "replace"), spoil_bytes(value, random)])
    if isinstance(value, float) and random.random() < 0.8:
        return random.choice(SCORES)
    return random.choice([*NUMBERS[:-1], b"", b"\xff\xfe", 0.5, [], random.randrange(40)])


def spoil_sentencepiece(sound: Path, folder: Path, random: Random) -> Path:
    family, name = random.choice(
        [
            ("llama", "tokenizer.model"),
            ("t5", "spiece.model"),
            ("xlm-roberta", "sentencepiece.bpe.model"),
            ("camembert", "sentencepiece.bpe.model"),
            (spoil_value("llama", random), "tokenizer.model"),
        ]
    )
    path = folder / name
    message = sentencepiece(random.choice([1, 2]))
    if random.random() < 0.3:
        path.write_bytes(spoil_bytes(encode_message(message), random))
    else:
        for _ in range(random.choice([1, 1, 2, 4, 20])):
            message = spoil_message(message, random)
        path.write_bytes(encode_message(message))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    _settings(sound, folder, random)
    return path


def spoil_tekken(sound: Path, folder: Path, random: Random) -> Path:
    raw = (sound / "tekken.json").read_bytes()
    (folder / "tekken.json").write_bytes(spoil_text(raw, random))
    _settings(sound, folder, random)
    return folder / "tekken.json"


def spoil_older(sound: Path, folder: Path, random: Random) -> Path:
    """GPT-2's two files or BERT's one, one of them spoiled, and tokens added to them."""
    names = random.choice([["vocab.json", "merges.txt"], ["vocab.txt"]])
    spoiled = random.choice(names)
    for name in names:
        raw = (sound / name).read_bytes()
        if name == spoiled:
            raw = spoil_text(raw, random) if name.endswith(".json") else spoil_bytes(raw, random)
        (folder / name).write_bytes(raw)
    if random.random() < 0.5:
        added = json.dumps({"<new>": 41, "<newer>": 42}).encode()
        (folder / "added_tokens.json").write_bytes(spoil_text(added, random))
    _settings(sound, folder, random)
    return folder / names[0]


def _settings(sound: Path, folder: Path, random: Random) -> None:
    settings = (sound / "families" / "llama" / "tokenizer_config.json").read_bytes()
    if random.random() < 0.3:
        settings = spoil_text(settings, random)
    (folder / "tokenizer_config.json").write_bytes(settings)
