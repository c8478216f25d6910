"""Files of SentencePiece and tekken, written by hand, against searches that try everything."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lexray.checkpoint.assets import TOKENIZER_FILES, TOKENIZERS
from lexray.checkpoint.hub.repository import fetch_folder
from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.vocabulary.vocabulary import Vocabulary
from tests.checkpoint.hub.server import serve
from tests.saved import save

WORDS = ["▁the", "▁cat", "▁c", "at", "▁t", "he", "▁", *"thecasd", "s", "▁cats", "<0x0A>"]
KINDS = {"<0x0A>": 6}
PIECES: list[tuple[str, float, int]] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((word, -1.0 - i / 3, KINDS.get(word, 1)) for i, word in enumerate(dict.fromkeys(WORDS))),
]


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | bytes | float) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def model_file(kind: int, prefix: bool = True, pieces: list[Any] = PIECES) -> bytes:
    rows = (field(1, p.encode()) + field(2, s) + field(3, k) for p, s, k in pieces)
    training = field(3, kind) + field(40, 0) + field(41, 1) + field(42, 2)
    return b"".join(field(1, row) for row in rows) + field(2, training) + field(3, field(3, prefix))


def open_file(folder: Path, name: str, data: bytes, model_type: str = "llama") -> Vocabulary:
    (folder / name).write_bytes(data)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return Vocabulary.from_files(lambda n: folder / n if (folder / n).is_file() else None)


def cuts(text: str, tokens: dict[str, float]) -> Iterator[list[str]]:
    """Every way to write a text in tokens."""
    if not text:
        yield []
    for n in range(1, len(text) + 1):
        if text[:n] in tokens:
            yield from ([text[:n], *rest] for rest in cuts(text[n:], tokens))


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model"])
def test_unigram(tmp_path: Path, name: str) -> None:
    vocabulary = open_file(tmp_path, name, model_file(1))
    scores = {piece: score for piece, score, kind in PIECES if kind == 1}
    ids = [piece for piece, _, _ in PIECES]
    for text in ("the cat", "cats at the sad teeth", "that"):
        ways = cuts("▁" + text.replace(" ", "▁"), scores)
        best = max(ways, key=lambda way: sum(scores[piece] for piece in way))
        assert [ids[i] for i in vocabulary.encode(text)] == best
    assert vocabulary.shown(ids.index("▁cat")) == "·cat"
    assert vocabulary.text(ids.index("<0x0A>")) == "\n"
    assert vocabulary.is_special(1)
    assert vocabulary.encode("the", special=True)[-1] == 2


@pytest.mark.parametrize("prefix", [True, False])
def test_bpe(tmp_path: Path, prefix: bool) -> None:
    """Pairs are joined as long as one makes a piece, the best-scored piece first."""
    vocabulary = open_file(tmp_path, "tokenizer.model", model_file(2, prefix))
    ids = {piece: i for i, (piece, _, _) in enumerate(PIECES)}
    for text in ("the cat", "cats at the sad teeth"):
        parts = list("▁" * prefix + text.replace(" ", "▁"))
        while pairs := [
            (PIECES[ids[a + b]][1], -i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids
        ]:
            i = -max(pairs)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        assert vocabulary.encode(text) == [ids[part] for part in parts]
        assert vocabulary.decode(vocabulary.encode(text)) == text


def test_fairseq_numbers(tmp_path: Path) -> None:
    data = model_file(1)
    vocabulary = open_file(tmp_path, "sentencepiece.bpe.model", data, "xlm-roberta")
    pieces = [piece for piece, _, _ in PIECES[3:]]
    assert [vocabulary._source.tokens[i] for i in range(4)] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert vocabulary._source.tokens[4 + pieces.index("▁cat")] == "▁cat"
    assert vocabulary.shown(vocabulary.n_ids - 1) == "<mask>"
    assert vocabulary.encode("the cat", special=True) == [0, 4, 5, 2]
    with pytest.raises(LexrayError, match=r"models of type 'mbart' .*download tokenizer\.json"):
        open_file(tmp_path, "sentencepiece.bpe.model", data, "mbart")


@pytest.mark.parametrize(
    "data",
    [b"nonsense", b"", b"\xff" * 20, model_file(1)[:50], model_file(4), b"\x0a\xff\xff\xff\x7f"],
)
def test_damaged_pieces(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(LexrayError, match="SentencePiece model"):
        open_file(tmp_path, "tokenizer.model", data)


def tekken(**changes: Any) -> bytes:
    words = [bytes([i]) for i in range(256)] + [
        b"th",
        b"the",
        b" t",
        b" the",
        b" c",
        b"at",
        b" cat",
    ]
    vocab = [{"rank": i, "token_bytes": b64encode(w).decode()} for i, w in enumerate(words)]
    config = {"default_vocab_size": 10 + len(words), "default_num_special_tokens": 10}
    special = [{"rank": 3, "token_str": "[INST]"}]
    return json.dumps(
        {"config": config, "vocab": vocab, "special_tokens": special} | changes
    ).encode()


def test_tekken(tmp_path: Path) -> None:
    """Within a word, the pair whose token has the lowest rank is joined first."""
    vocabulary = open_file(tmp_path, "tekken.json", tekken())
    rank = {vocabulary.bytes(i): i - 10 for i in range(10, vocabulary.n_ids)}
    assert [vocabulary.shown(i) for i in (0, 1, 3, 7)] == ["<unk>", "<s>", "[INST]", "<SPECIAL_7>"]
    for text in ("the cat", " the that é", "tthe"):
        expected: list[int] = []
        for word in text.replace(" ", "| ").split("|"):
            parts = [bytes([b]) for b in word.encode()]
            while pairs := [
                (rank[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in rank
            ]:
                i = min(pairs)[1]
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            expected += [10 + rank[part] for part in parts]
        assert vocabulary.encode(text) == expected
        assert vocabulary.decode(expected) == text
    assert vocabulary.encode("the", special=True)[0] == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config": {}}, "does not say how many tokens"),
        ({"config": {"default_vocab_size": 10**9, "default_num_special_tokens": 1}}, "how many"),
        ({"vocab": [{"token_bytes": "!"}]}, "bytes cannot be read"),
        ({"vocab": 3}, "vocab should be a list"),
    ],
)
def test_damaged_tekken(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(LexrayError, match=reason):
        open_file(tmp_path, "tekken.json", tekken(**changes))


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tekken.json", tekken()),
        ("spiece.model", model_file(1)),
        ("tokenizer.model", model_file(2)),
    ],
    ids=["tekken", "spiece", "model"],
)
def test_a_repository_with_one_rare_file_has_its_real_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, remote: bool
) -> None:
    """The Hub's list lacked these files, and the tokens were numbered without a word."""
    save("llama", tmp_path / "repos" / "org" / "one", n_tokens=None)
    (tmp_path / "repos" / "org" / "one" / name).write_bytes(data)
    with serve(tmp_path / "repos") as hub:
        hub.use(monkeypatch, tmp_path)
        vocabulary = Model.from_pretrained("org/one", remote=remote).vocabulary
        assert "the" in "".join(vocabulary.all_shown)
        assert not vocabulary.shown(17).startswith("#")


def test_every_tokenizer_file_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "repos" / "org" / "one"
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", *TOKENIZER_FILES):
        (folder / name).write_text("{}")
    with serve(tmp_path / "repos") as hub:
        hub.use(monkeypatch, tmp_path)
        found = {path.name for path in fetch_folder("org/one").iterdir()}
    assert found >= {*TOKENIZER_FILES}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_tokenizer_file_is_looked_at(tmp_path: Path, name: str) -> None:
    """One that cannot be read is an error, never a vocabulary of numbers."""
    save("llama", tmp_path, n_tokens=None)
    (tmp_path / name).write_bytes(b"\xff")
    with pytest.raises(LexrayError, match=name):
        _ = Model.from_pretrained(tmp_path).vocabulary.all_shown
