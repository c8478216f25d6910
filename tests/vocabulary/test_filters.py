"""Filters: which tokens a search may return."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lexray import filters
from lexray.errors import LexrayError
from lexray.vocabulary.vocabulary import Vocabulary

TOKENS = [
    "law", "Law", "ĠLaw", "Ġlaws", "Ġ", "ĠĠĠ", "Ċ", "42", "Ġ42", "!!", "Ġ(", "<|endoftext|>",
    "ð", "Ġð", "à¤¨à¤®à¤¸à¥į", "cafÃ©", "ĠĉÃ©", "",
]  # fmt: skip
WORDS = ["law", "Law", " Law", " laws", " ", "   ", "\n", "42", " 42", "!!", " (", "<|endoftext|>"]
WORDS += ["\\xf0", " \\xf0", "नमस्", "café", " \té", ""]


class Live:
    """What `from_transformers` sees of a fast tokenizer."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.backend_tokenizer = self
        self.name_or_path = "a test"
        self.to_str = lambda: json.dumps(description)


def vocabulary_of(tokens: list[str], merges: list[list[str]] | None = None) -> Vocabulary:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    vocab = {token: i for i, token in enumerate(tokens)}
    model = {"type": "BPE", "vocab": vocab, "merges": merges or [], "ignore_merges": True}
    stages = {"pre_tokenizer": byte_level, "decoder": byte_level, "added_tokens": []}
    return Vocabulary.from_transformers(Live({"version": "1.0", "model": model, **stages}))


@pytest.fixture
def vocabulary() -> Vocabulary:
    made = vocabulary_of(TOKENS)
    assert made.all_texts == WORDS
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def admitted(filter: filters.Filter, vocabulary: Vocabulary) -> list[str]:
    mask = filter.mask(vocabulary)
    assert mask.shape == (vocabulary.n_ids,)
    return [vocabulary.all_texts[i] for i in mask.nonzero().flatten().tolist()]


# ------------------------------------------------------------------ by the token's text


def test_ascii(vocabulary: Vocabulary) -> None:
    assert admitted(filters.ascii, vocabulary) == WORDS[:12]


def test_alphanumeric(vocabulary: Vocabulary) -> None:
    expected = ["law", "Law", " Law", " laws", "42", " 42", "नमस्", "café", " \té"]
    assert admitted(filters.alphanumeric, vocabulary) == expected


def test_starts_word(vocabulary: Vocabulary) -> None:
    expected = [" Law", " laws", " 42", " (", " \\xf0"]
    assert admitted(filters.starts_word, vocabulary) == expected


def test_combinations(vocabulary: Vocabulary) -> None:
    words = filters.alphanumeric & filters.starts_word & ~filters.among([" 42"])
    assert admitted(words, vocabulary) == [" Law", " laws"]
    either = filters.among(["law"]) | words
    assert admitted(either, vocabulary) == ["law", " Law", " laws"]
    assert words.describe() == "alphanumeric and starts a word and not among ·42"
    both = filters.ascii & either
    assert both.describe() == (
        "ascii and (among law or (alphanumeric and starts a word and not among ·42))"
    )
    assert str(~both).startswith("not (ascii and")


def test_filters_are_values(vocabulary: Vocabulary) -> None:
    assert filters.among(["law"]) == filters.among(["law"])
    assert len({filters.ascii & filters.starts_word, filters.ascii & filters.starts_word}) == 1
    once = filters.ascii.keeps(vocabulary)
    assert filters.ascii.keeps(vocabulary) is once
    filters.ascii.mask(vocabulary).zero_()
    assert once.any()


ATOMS = [filters.ascii, filters.alphanumeric, filters.starts_word, filters.among(["law", " ("])]
COMBINED = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] | p[1]),
        inner.map(lambda f: ~f),
    ),
    max_leaves=6,
)


@settings(max_examples=50)
@given(COMBINED, COMBINED)
def test_combinations_follow_logic(a: filters.Filter, b: filters.Filter) -> None:
    vocabulary = vocabulary_of(TOKENS)
    kept = {f: f.keeps(vocabulary) for f in (a, b)}
    assert (a & b).keeps(vocabulary).equal(kept[a] & kept[b])
    assert (a | b).keeps(vocabulary).equal(kept[a] | kept[b])
    assert (~(a & b)).keeps(vocabulary).equal((~a | ~b).keeps(vocabulary))
    assert a.describe()


# ------------------------------------------------------------------ sizes


def test_embeddings_of_other_sizes(vocabulary: Vocabulary) -> None:
    mask = filters.ascii.mask(vocabulary, d_vocab=30)
    assert mask.tolist() == [True] * 12 + [False] * 18
    assert filters.ascii.mask(vocabulary, d_vocab=3).tolist() == [True] * 3
    assert (~filters.ascii).mask(vocabulary, d_vocab=30).sum() == 6


def test_ids_without_a_token_are_never_admitted() -> None:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 3}, "merges": []}
    vocabulary = Vocabulary.from_transformers(Live({"model": model, "decoder": byte_level}))
    assert (~filters.among(["a"])).mask(vocabulary, 5).tolist() == [False] * 3 + [True, False]


def test_nothing_left(vocabulary: Vocabulary) -> None:
    with pytest.raises(LexrayError, match="no token of a test passes this filter: ascii and not"):
        (filters.ascii & ~filters.ascii).mask(vocabulary)
    with pytest.raises(LexrayError, match="among नमस्"):
        filters.among(["नमस्"]).mask(vocabulary, d_vocab=4)


# ------------------------------------------------------------------ a user's list


def test_among(vocabulary: Vocabulary, tmp_path: Path) -> None:
    assert admitted(filters.among(["law", "·Law", 7]), vocabulary) == ["law", " Law", "42"]
    assert admitted(filters.among(["LAW"], any_form=True), vocabulary) == ["law", "Law", " Law"]
    assert admitted(filters.among([8], any_form=True), vocabulary) == ["42", " 42"]
    path = tmp_path / "words.txt"
    path.write_text("law\n Law\r\n\n42\n", encoding="utf-8")
    assert admitted(filters.among(path), vocabulary) == ["law", " Law", "42"]


def test_among_describes_itself() -> None:
    assert filters.among([" Paris", 198]).describe() == "among ·Paris, 198"
    many = filters.among(["a", "b", "c", "d", "e", "f"], any_form=True)
    assert many.describe() == "any form of a, b, c, d, e, … (6 in all)"


def test_unknown_tokens_are_explained(vocabulary: Vocabulary, tmp_path: Path) -> None:
    for any_form in (False, True):
        with pytest.raises(LexrayError, match=r"(?s)'zebra' is.*\n.*'law42' is 2 tokens, law"):
            filters.among(["law", "zebra", "law42"], any_form=any_form).mask(vocabulary)
    with pytest.raises(LexrayError, match="no token 99"):
        filters.among([99]).mask(vocabulary)
    with pytest.raises(LexrayError, match=r"words\.txt cannot be read"):
        filters.among(tmp_path / "words.txt")
    (tmp_path / "words.txt").write_text("\n")
    with pytest.raises(LexrayError, match=r"words\.txt names no token"):
        filters.among(tmp_path / "words.txt")


# ------------------------------------------------------------------ a corpus

TEXT = "law Law\n42 Law laws"


def write(path: Path, text: str) -> Path:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as stream:
        stream.write(text)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.txt", TEXT),
        ("c", TEXT),
        ("c.jsonl", json.dumps({"text": TEXT, "title": "(("}) + "\n\n"),
        ("c.jsonl", json.dumps({"label": 1, "parts": ["law Law", {"b": "\n42 Law laws"}]})),
        ("c.jsonl", "\n".join(map(json.dumps, ["law Law\n42", " Law laws", None, 3]))),
    ],
)
def test_corpus_formats(
    vocabulary: Vocabulary, tmp_path: Path, name: str, content: str, suffix: str
) -> None:
    path = write(tmp_path / (name + suffix), content)
    expected = ["law", "Law", " Law", " laws", "\n", "42", " 42"]
    assert admitted(filters.corpus(path), vocabulary) == expected
    assert admitted(filters.corpus(str(path)), vocabulary) == expected
    assert filters.corpus(path).describe() == f"occurs in {name}{suffix}"


def test_corpus_from_text(vocabulary: Vocabulary) -> None:
    corpus = filters.corpus(TEXT)
    assert " laws" in admitted(corpus, vocabulary)
    assert corpus.describe() == "occurs in a text of 19 characters"


def test_minimum_counts_all_forms_of_a_word(vocabulary: Vocabulary) -> None:
    assert admitted(filters.corpus(TEXT, minimum=3), vocabulary) == ["law", "Law", " Law"]
    corpus = filters.corpus(TEXT, minimum=4)
    assert corpus.describe() == "4 times or more in a text of 19 characters"
    with pytest.raises(LexrayError, match="passes this filter: 4 times or more"):
        corpus.mask(vocabulary)


def test_tokens_without_a_text_count_for_themselves() -> None:
    halves = vocabulary_of([*TOKENS, "Ð", "¯", "ĊĊ"])  # Я is Ð¯
    assert admitted(filters.corpus("Я\n"), halves) == ["\n", "\\xd0", "\\xaf"]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts each call encoded."""
    calls: list[int] = []
    real = Vocabulary.encode_many

    def spy(self: Vocabulary, texts: list[str]) -> list[list[int]]:
        calls.append(len(texts))
        return real(self, texts)

    monkeypatch.setattr(Vocabulary, "encode_many", spy)
    return calls


def test_counts_are_cached(tmp_path: Path, cache: Path, encoded: list[int]) -> None:
    path = write(tmp_path / "c.txt", TEXT)
    first = filters.corpus(path).mask(vocabulary_of(TOKENS))
    again = filters.corpus(path, minimum=1).mask(vocabulary_of(TOKENS))
    filters.corpus(path, minimum=2).mask(vocabulary_of(TOKENS))
    assert encoded == [1]
    assert first.equal(again)
    assert [file.suffix for file in cache.rglob("*") if file.is_file()] == [".npz"]


def test_the_cache_notices_changes(tmp_path: Path, encoded: list[int]) -> None:
    path = write(tmp_path / "c.txt", TEXT)
    filters.corpus(path).mask(vocabulary_of(TOKENS))
    filters.corpus(path).mask(vocabulary_of([*TOKENS, "b"]))
    assert len(encoded) == 2
    write(path, "42 laws")
    os.utime(path, ns=(1, 1))
    assert admitted(filters.corpus(path), vocabulary_of(TOKENS)) == [" laws", "42", " 42"]
    assert len(encoded) == 3


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"PK\x03\x04junk", None])
def test_a_damaged_cache_is_made_anew(
    tmp_path: Path, cache: Path, encoded: list[int], damage: bytes | None
) -> None:
    path = write(tmp_path / "c.txt", TEXT)
    first = filters.corpus(path).mask(vocabulary_of(TOKENS))
    kept = next(cache.rglob("*.npz"))
    if damage is None:
        np.savez(kept, counts=np.zeros(3))
    else:
        kept.write_bytes(damage)
    assert filters.corpus(path).mask(vocabulary_of(TOKENS)).equal(first)
    assert len(encoded) == 2


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: Vocabulary
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LEXRAY_CACHE", str(tmp_path / "file"))
    assert "law" in admitted(filters.corpus(TEXT), vocabulary)


@pytest.mark.slow
def test_large_files_come_in_pieces(tmp_path: Path, encoded: list[int]) -> None:
    path = write(tmp_path / "c.txt", "Law 42 " * 60_000 + "laws")
    expected = ["law", "Law", " Law", " laws", "42", " 42"]
    found = admitted(filters.corpus(path), vocabulary_of(TOKENS))
    assert [text for text in found if text.strip()] == expected
    assert sum(encoded) > 5
    unbroken = write(tmp_path / "unbroken.txt", "42" * 700_000)
    assert admitted(filters.corpus(unbroken), vocabulary_of([*TOKENS, "4", "2"])) == ["4", "2"]


def test_mistakes_with_files(tmp_path: Path, vocabulary: Vocabulary) -> None:
    for missing in (tmp_path / "no.txt", str(tmp_path / "no.jsonl"), "no.txt.gz"):
        with pytest.raises(LexrayError, match=r"no\..* cannot be read: No such file"):
            filters.corpus(missing)
    with pytest.raises(LexrayError, match="is not a file"):
        filters.corpus(tmp_path)
    bad = {
        "latin.txt": ("é".encode("latin-1"), r"latin\.txt cannot be read as UTF-8 text"),
        "bad.jsonl": (b'{"text": "law"}\n{"text": ', r"bad\.jsonl, line 2: this is not JSON"),
        "bad.txt.gz": (b"not gzip", r"bad\.txt\.gz cannot be read"),
        "cut.txt.gz": (gzip.compress(b"law " * 1000)[:30], r"cut\.txt\.gz cannot be read"),
        "empty.txt": (b"", r"empty\.txt holds no text"),
        "numbers.jsonl": (b"[1, 2]\n", r"numbers\.jsonl holds no text"),
    }
    for name, (data, message) in bad.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(LexrayError, match=message):
            filters.corpus(tmp_path / name).mask(vocabulary)
