"""Tokens as people read them, for every kind of tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    models,
    pre_tokenizers,
)

from lexray.errors import LexrayError
from lexray.vocabulary.text import Spelling
from lexray.vocabulary.vocabulary import Vocabulary
from tests.vocabulary.kinds import (
    KINDS,
    TEXTS,
    check_round_trip,
    description,
    made,
    vocabulary_of,
    written,
)


@pytest.fixture(params=KINDS)
def any_vocabulary(request: pytest.FixtureRequest, tmp_path: Path) -> Vocabulary:
    return vocabulary_of(made(request.param), tmp_path)


# ------------------------------------------------------------------ round trips


def test_every_token_is_found_by_what_is_shown(any_vocabulary: Vocabulary) -> None:
    check_round_trip(any_vocabulary)


def test_no_tokenizer_marker_is_ever_shown(any_vocabulary: Vocabulary) -> None:
    for text in any_vocabulary.all_shown:
        assert not text.startswith(("Ġ", "▁", "##", "Ċ"))
        assert not text.endswith("</w>")
        assert "<0x" not in text


@settings(max_examples=60)
@given(st.lists(st.binary(min_size=1, max_size=6), unique=True, min_size=1, max_size=20))
def test_round_trip_over_the_byte_alphabet(tokens: list[bytes]) -> None:
    letters = {byte: letter for letter in pre_tokenizers.ByteLevel.alphabet()
               for byte in Spelling(byte_level=True).decode(letter)}  # fmt: skip
    vocab = {"".join(letters[byte] for byte in token): i for i, token in enumerate(tokens)}
    vocabulary = Vocabulary.from_transformers(Live(description(vocab)))
    assert vocabulary.all_bytes == tokens
    check_round_trip(vocabulary)


WILD = st.one_of(
    st.text(min_size=1, max_size=6),
    st.sampled_from(["·", " ·", "<script>", "\n", "\\", "\\·", "▁", "##", "Ġ", "👩‍", "\ufeff"]),
)


@settings(max_examples=60)
@given(st.lists(WILD, unique=True, min_size=1, max_size=12), st.lists(WILD, unique=True))
def test_round_trip_over_any_strings(tokens: list[str], added: list[str]) -> None:
    vocab = {token: i for i, token in enumerate(tokens)}
    entries = [{"id": 0, "content": text, "special": len(text) % 2 == 0} for text in added]
    for decoder in ("ByteLevel", "Metaspace", "WordPiece", "BPEDecoder", "Fuse"):
        stages = {"decoder": {"type": decoder}, "pre_tokenizer": None, "added_tokens": entries}
        check_round_trip(Vocabulary.from_transformers(Live(description(vocab, **stages))))


class Live:
    """What `from_transformers` sees of a fast tokenizer."""

    def __init__(self, data: bytes) -> None:
        self.backend_tokenizer = self
        self.name_or_path = "live"
        self.to_str = data.decode


# ------------------------------------------------------------------ one convention for all


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_is_that_of_the_library(kind: str, tmp_path: Path) -> None:
    tokenizer = made(kind)
    vocabulary = vocabulary_of(tokenizer, tmp_path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text in TEXTS:
        for special in (False, True):
            expected = tokenizer.encode(text, add_special_tokens=special).ids
            assert vocabulary.encode(text, special=special) == expected
    assert vocabulary.encode_many(TEXTS) == [vocabulary.encode(text) for text in TEXTS]


@pytest.mark.parametrize("kind", ["byte_level", "roberta", "llama", "gemma", "metaspace"])
def test_decoding_gives_the_text_back(kind: str, tmp_path: Path) -> None:
    vocabulary = vocabulary_of(made(kind), tmp_path)
    for text in TEXTS:
        if kind == "metaspace" and text.startswith(" "):
            continue  # it puts no second space before a first one
        if kind == "llama" and text.startswith("<s>"):
            continue  # it puts a space after every special token too
        assert vocabulary.decode(vocabulary.encode(text)) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_leading_space_means_that_a_word_begins(kind: str, tmp_path: Path) -> None:
    vocabulary = vocabulary_of(made(kind), tmp_path)
    if kind == "word_end":
        assert vocabulary.shown(vocabulary.encode("paris capital")[-1]).endswith("·")
        return
    word = " the" if kind != "word_piece" else " of"
    token_id = vocabulary.id(word)
    assert vocabulary.shown(token_id) == word.replace(" ", "·")
    assert vocabulary.id(word.replace(" ", "·")) == token_id
    assert vocabulary.text(token_id) == word
    assert vocabulary.starts_word(token_id)
    assert vocabulary.folded(token_id) == word.strip()


def test_bert(tmp_path: Path) -> None:
    tokenizer = made("word_piece")
    vocabulary = vocabulary_of(tokenizer, tmp_path)
    pieces = {vocabulary.shown(i) for i in range(vocabulary.n_ids)}
    assert {"[CLS]", "[unused0]", "·,", "·of", "s"} <= pieces
    inside = tokenizer.token_to_id("##s")
    assert vocabulary.text(inside) == "s"
    assert not vocabulary.starts_word(inside)
    assert vocabulary.is_special(tokenizer.token_to_id("[CLS]"))
    assert vocabulary.groups()[inside] == vocabulary.groups()[tokenizer.token_to_id("s")]
    with pytest.raises(LexrayError, match=r"'of' is not a token of .*near it: ·of \(\d+\)"):
        vocabulary.id("of")


def test_special_and_added_tokens(tmp_path: Path) -> None:
    tokenizer = made("byte_level")
    vocabulary = vocabulary_of(tokenizer, tmp_path)
    end, spaces, think = (tokenizer.token_to_id(t) for t in ("<|endoftext|>", "    ", "<think>"))
    assert [vocabulary.shown(i) for i in (end, spaces, think)] == [
        "<|endoftext|>",
        "····",
        "<think>",
    ]
    assert [vocabulary.is_special(i) for i in (end, spaces, think)] == [True, False, False]
    assert [vocabulary.is_added(i) for i in (end, spaces, think)] == [True, True, True]
    assert not vocabulary.is_added(vocabulary.id("the"))
    assert vocabulary.id("<|endoftext|>") == end


def test_an_added_token_is_its_own_text_and_not_bytes(tmp_path: Path) -> None:
    added = [{"id": 1, "content": "é", "special": False}]
    vocabulary = written(tmp_path, description({"é": 5, "a": 0}, added_tokens=added))
    assert vocabulary.text(5) == "é"
    assert vocabulary.bytes(0) == b"a"


def test_gemma_newlines_and_bytes(tmp_path: Path) -> None:
    tokenizer = made("gemma")
    vocabulary = vocabulary_of(tokenizer, tmp_path)
    newline, byte = tokenizer.token_to_id("\n"), tokenizer.token_to_id("<0x0A>")
    assert vocabulary.shown(newline) == vocabulary.shown(byte) == "↵"
    assert vocabulary.id("↵") == vocabulary.id("\n") == newline
    assert vocabulary.id("···") == tokenizer.token_to_id("▁▁▁")
    assert vocabulary.shown(tokenizer.token_to_id("<0xF0>")) == "\\xf0"
    assert vocabulary.id("\\xf0") == tokenizer.token_to_id("<0xF0>")


def test_special_tokens_keep_their_own_marker(tmp_path: Path) -> None:
    added = [{"id": 1, "content": "<｜end▁of▁sentence｜>", "special": True}]
    data = description({"▁a": 0}, added_tokens=added, decoder={"type": "Metaspace"})
    assert written(tmp_path, data).all_shown == ["·a", "<｜end▁of▁sentence｜>"]


def test_old_files_without_a_model_type(tmp_path: Path) -> None:
    pieces = json.loads(description({"##a": 0, "b": 1}, decoder=None, pre_tokenizer=None))
    pieces["model"] = {"vocab": {"##a": 0, "b": 1}, "continuing_subword_prefix": "##"}
    assert written(tmp_path, json.dumps(pieces).encode()).all_texts == ["a", " b"]
    pieces["model"] = {"vocab": [["<unk>", 0.0], ["▁b", -1.0]], "unk_id": 0}
    pieces["pre_tokenizer"] = {"type": "Metaspace", "str_rep": "▁"}
    vocabulary = written(tmp_path, json.dumps(pieces).encode())
    assert vocabulary.all_texts == ["<unk>", " b"]
    assert vocabulary.is_special(0)


def test_words_without_a_marker_stay_plain(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "Paris": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    vocabulary = vocabulary_of(tokenizer, tmp_path)
    assert vocabulary.all_shown == ["[UNK]", "Paris"]
    assert vocabulary.is_special(0)
    assert vocabulary.encode("Paris Rome") == [1, 0]


# ------------------------------------------------------------------ size, groups


def test_holes_and_other_sizes_than_the_embedding(tmp_path: Path) -> None:
    vocabulary = written(tmp_path, description({"a": 0, "b": 1, "d": 3}))
    assert (len(vocabulary), vocabulary.n_ids) == (3, 4)
    assert [i in vocabulary for i in range(-1, 5)] == [False, True, True, False, True, False]
    assert vocabulary.mask(6).tolist() == [True, True, False, True, False, False]
    assert vocabulary.mask(4).tolist() == [True, True, False, True]
    assert vocabulary.mask(2).tolist() == [True, True]
    assert [vocabulary.shown(i) for i in (2, 3, 5)] == ["#2", "d", "#5"]
    assert vocabulary.text(2) == vocabulary.text(5) == ""
    assert vocabulary.groups(6).tolist() == [0, 1, 2, 3, 4, 5]
    check_round_trip(vocabulary)


@settings(max_examples=40)
@given(st.sets(st.integers(0, 12), min_size=1), st.lists(st.sampled_from("uvwab"), max_size=5))
def test_ids_are_those_of_the_library(ids: set[int], added: list[str]) -> None:
    vocab = {"abcdefghijklm"[i]: i for i in sorted(ids)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    entries = [{"id": 20 + i, "content": text, **flags} for i, text in enumerate(added)]
    data = description(vocab, added_tokens=entries)
    vocabulary = Vocabulary.from_transformers(Live(data))
    library = Tokenizer.from_buffer(data)
    for text in {*vocab, *added}:
        token_id = library.token_to_id(text)
        assert vocabulary.encode(text) == library.encode(text).ids
        alike = [other for other in {*vocab, *added} if library.token_to_id(other) == token_id]
        assert vocabulary.text(token_id) in alike  # the library may give one id twice


def test_groups_are_the_same_word(tmp_path: Path) -> None:
    letters = ["Law", "law", "ĠLAW", "Ġ", "ĠĠ", "ð", "Ð", "x", "ĊX", "Ġð"]
    vocabulary = written(tmp_path, description({token: i for i, token in enumerate(letters)}))
    groups = vocabulary.groups()
    assert groups.dtype == torch.int64
    assert groups.tolist() == [0, 0, 0, 3, 4, 5, 6, 7, 7, 9]
    assert [vocabulary.folded(i) for i in (0, 2, 4, 8)] == ["law", "law", "", "x"]
    assert vocabulary.groups(2).tolist() == [0, 0]


def test_numbered() -> None:
    vocabulary = Vocabulary.numbered(20)
    assert len(vocabulary) == 20
    assert vocabulary.shown(17) == "#17"
    assert vocabulary.id("#17") == vocabulary.id(17) == 17
    assert vocabulary.mask(20).all()
    with pytest.raises(LexrayError, match="'Paris' is not a token of a model without a tokenizer"):
        vocabulary.id("Paris")
    assert Vocabulary.numbered(0).n_ids == 0


# ------------------------------------------------------------------ mistakes


def test_several_tokens_are_explained(tmp_path: Path) -> None:
    vocabulary = vocabulary_of(made("byte_level"), tmp_path)
    pieces = " [+] ".join(rf"{vocabulary.shown(i)} \({i}\)" for i in vocabulary.encode(" PARIS"))
    near = rf"near it: .*·Paris \({vocabulary.id(' Paris')}\), Paris"
    for asked in (" PARIS", "·PARIS"):
        with pytest.raises(LexrayError, match=rf"'{asked}' is \d tokens, {pieces}; {near}"):
            vocabulary.id(asked)
    with pytest.raises(LexrayError, match=r"(?s)' zebra' is .*\n'qqqq' is 4 tokens"):
        vocabulary.ids([" the", " zebra", "qqqq", 3])
    assert vocabulary.ids([" the", 3]) == [vocabulary.id(" the"), 3]
    assert vocabulary.id(torch.tensor(3)) == 3


def test_a_word_that_only_begins_sentences_is_suggested(tmp_path: Path) -> None:
    vocabulary = vocabulary_of(made("llama"), tmp_path)
    texts = vocabulary.all_texts
    word = next(t[1:] for t in texts if t[:1] == " " and t[1:].isalpha() and t[1:] not in texts)
    with pytest.raises(LexrayError, match=rf"'{word}' is not a token .*near it: ·{word} \(\d+\)"):
        vocabulary.id(word)


@pytest.mark.parametrize("token_id", [-1, 4, 10**9])
def test_ids_out_of_range(tmp_path: Path, token_id: int) -> None:
    vocabulary = written(tmp_path, description({"a": 0, "d": 3}))
    with pytest.raises(LexrayError, match=r"no token .*0–3"):
        vocabulary.id(token_id)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b'{"model": 3}',
        b'{"model": {"vocab": {"a": -1}}}',
        b'{"model": {"vocab": {"a": 99999999999}}}',
        b'{"model": {"vocab": {"a": "b"}}}',
        b'{"model": {"vocab": [3]}}',
        b'{"model": {"vocab": [[3, 4]]}}',
        b'{"model": {"vocab": {}}, "added_tokens": 3}',
        b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": ["x"]}}',
        b'{"model": {"vocab": {"a": 0}}, "decoder": {"type": "Sequence", "decoders": 3}}',
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes) -> None:
    vocabulary = written(tmp_path, data)
    with pytest.raises(LexrayError, match=r"tokenizer\.json"):
        _ = vocabulary.all_texts


def test_a_file_that_only_the_library_refuses(tmp_path: Path) -> None:
    vocabulary = written(tmp_path, description({"a": 0}, decoder={"type": "NoSuch"}))
    assert vocabulary.all_texts == ["a"]
    with pytest.raises(LexrayError, match=r"tokenizer\.json cannot be read as a tokenizer"):
        vocabulary.encode("a")


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "model", "vocab", "added_tokens", "content", "decoder", "a"]),
        inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(JSON, st.sampled_from(["model", "decoder", "added_tokens", "pre_tokenizer", None]))
def test_any_json_is_a_vocabulary_or_an_error(value: Any, key: str | None) -> None:
    whole = json.loads(description({"a": 0}))
    data = json.dumps(value if key is None else whole | {key: value}).encode()
    vocabulary = Vocabulary.from_transformers(Live(data))
    try:
        assert len(vocabulary.all_shown) == vocabulary.n_ids
        vocabulary.encode("a")
    except LexrayError:
        pass
