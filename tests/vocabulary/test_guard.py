"""Tokenizers that mean harm: what would fill the memory, take for ever or panic is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from lexray.errors import LexrayError
from lexray.vocabulary.gguf import GgufSource
from lexray.vocabulary.guard import growth, rust
from lexray.vocabulary.sources import JsonSource
from lexray.vocabulary.vocabulary import Vocabulary


def described(**stages: Any) -> dict[str, Any]:
    model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    return {"version": "1.0", "added_tokens": [], "model": model} | stages


def vocabulary(config: dict[str, Any] | None = None, **stages: Any) -> Vocabulary:
    data = json.dumps(described(**stages)).encode()
    return Vocabulary(JsonSource("this file", lambda: data, config))


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


GROWS = {
    "ten times ten": [replace({"String": "a"}, "a" * 10)] * 10,
    "between all": [replace({"Regex": ""}, "a" * 10)] * 6,
    "long content": [replace({"String": "a"}, "a" * 10**6)],
    "long text before": [{"type": "Prepend", "prepend": "a" * 10**6}],
    "byte level": [{"type": "ByteLevel"}] * 40,
    "many steps": [{"type": "Lowercase"}] * 1000,
    "charsmap": [
        {
            "type": "Precompiled",
            "precompiled_charsmap": b64encode(b"\4\0\0\0" + b"\0" * 4 + b"x" * 10**4).decode(),
        }
    ],
}


@pytest.mark.parametrize("steps", GROWS.values(), ids=GROWS)
def test_steps_that_would_fill_the_memory(steps: list[dict[str, Any]]) -> None:
    """The first would make 10 GB of one letter, and the process would be gone."""
    found = vocabulary(normalizer={"type": "Sequence", "normalizers": steps})
    assert found.shown(0) == "a", "what needs no encoding is read all the same"
    with pytest.raises(LexrayError, match=r"times as long|no tokenizer has|character"):
        found.encode("a")


@pytest.mark.parametrize("data", [b"\0\0\xb0\xc1", b"\5\0\0\0" + bytes(9), b"\0\0\0\0x"])
def test_a_trie_that_is_not_there(data: bytes) -> None:
    """For the first, `tokenizers` asks for 6.5 GB and ends the process."""
    step = {"type": "Precompiled", "precompiled_charsmap": b64encode(data).decode()}
    with pytest.raises(LexrayError, match="bytes for its trie and has"):
        vocabulary(normalizer=step).encode("a")
    metadata = {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": ["<unk>", "a"],
        "tokenizer.ggml.scores": [0.0, 0.0],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.precompiled_charsmap": list(data),
    }
    with pytest.raises(LexrayError, match="bytes for its trie and has"):
        Vocabulary(GgufSource(metadata)).encode("a")


@pytest.mark.parametrize("nested", [False, True])
def test_templates_that_would_fill_the_memory(nested: bool) -> None:
    special = {"X": {"id": "X", "ids": [1] * 3000, "tokens": ["X"] * 3000}}
    pieces: list[Any] = [{"SpecialToken": {"id": "X", "type_id": 0}}] * 3000
    step = {"type": "TemplateProcessing", "single": pieces, "pair": [], "special_tokens": special}
    if nested:
        text = [{"Sequence": {"id": "A", "type_id": 0}}] * 9
        step = {"type": "Sequence", "processors": [step | {"single": text}] * 9}
    with pytest.raises(LexrayError, match=r"special tokens around a text|times as long"):
        vocabulary(post_processor=step).encode("a")


def test_what_real_tokenizers_do_is_allowed() -> None:
    normalizer = {
        "type": "Sequence",
        "normalizers": [
            {"type": "NFKC"},
            replace({"Regex": " {2,}"}, " "),
            {"type": "Prepend", "prepend": "▁"},
            replace({"String": " "}, "▁"),
        ],
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False}
    described_ = described(normalizer=normalizer, pre_tokenizer=byte_level)
    assert growth(described_, "this") <= 100


@pytest.mark.parametrize("long", [False, True])
def test_long_texts(long: bool) -> None:
    """A tokenizer that might grow a text a thousand times gets short ones only."""
    found = vocabulary(normalizer=replace({"String": "b"}, "c" * 1000))
    if not long:
        assert found.encode("a" * 100) == [1]
    else:
        with pytest.raises(LexrayError, match="cut it into pieces"):
            found.encode("a" * 10**6)


PANICS = {
    "type": "Split",
    "pattern": {"Regex": "(a+)+$"},
    "behavior": "Isolated",
    "invert": False,
}


@pytest.mark.slow
def test_a_panic_says_nothing_of_its_own() -> None:
    """In a process of its own: the Rust library writes to the stream itself."""
    code = (
        "import sys\n"
        "from lexray.errors import LexrayError\n"
        "from tests.vocabulary.test_guard import vocabulary\n"
        "try:\n"
        "    vocabulary(pre_tokenizer=SPLIT).encode('a' * 40 + 'b')\n"
        "except LexrayError as error:\n"
        "    print('ours:', error)\n"
        "print('and on', file=sys.stderr)\n"
    ).replace("SPLIT", repr(PANICS))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1800
    )
    assert done.stdout.startswith("ours: this text cannot be encoded"), done.stderr
    assert "panicked" not in done.stderr
    assert done.stderr.endswith("and on\n")


def test_what_others_say_meanwhile_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with rust("nothing is wrong"):
        os.write(2, b"a warning\n")
        assert not capfd.readouterr().err
    assert capfd.readouterr().err == "a warning\n"

    def panic() -> None:
        os.write(2, b"thread panicked\n")
        raise ValueError("here")

    with pytest.raises(LexrayError, match="wrong: here"), rust("wrong"):
        panic()
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "afterwards\n"


def test_a_panic_is_an_error() -> None:
    """Its own regular expression gives up, and the Rust library with it."""
    with pytest.raises(LexrayError, match=r"this text cannot be encoded: Onig"):
        vocabulary(pre_tokenizer=PANICS).encode("a" * 40 + "b")


def test_many_added_tokens_take_no_time() -> None:
    """20,000 of them, added one by one, took minutes."""
    listed = {str(i): {"content": f"<new {i}>"} for i in range(2, 20_002)}
    found = vocabulary({"added_tokens_decoder": listed})
    assert found.encode("<new 7>") == [found.id("<new 7>")]


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"9" * 5000: {"content": "x"}, "١": {"content": 3}}},
        {"eos_token": {"content": ["x"]}, "unk_token": 3},
    ],
)
def test_configs_of_the_wrong_kind(config: dict[str, Any]) -> None:
    assert vocabulary(config).all_shown == ["a", "[UNK]"]
    with pytest.raises(LexrayError, match="added_tokens_decoder should be an object"):
        _ = vocabulary({"added_tokens_decoder": [1]}).all_shown


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a", "unk_id": 10**9},
        {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": -7},
        {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": True},
    ],
)
def test_unknown_tokens_that_are_not_there(model: dict[str, Any]) -> None:
    assert vocabulary(model=model).all_shown == ["a"]


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Metaspace", "replacement": 5},
        {"type": "WordPiece", "prefix": ["x"]},
        {"type": "BPEDecoder", "suffix": {"a": 1}},
        {"type": 3},
    ],
)
def test_decoders_of_the_wrong_kind(decoder: dict[str, Any]) -> None:
    with pytest.raises(LexrayError, match="decoder that cannot be read"):
        _ = vocabulary(decoder=decoder).all_shown


def test_too_many_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lexray.vocabulary.sources.MOST_TOKENS", 100)
    (tmp_path / "vocab.txt").write_text("\n".join(f"w{i}" for i in range(101)))
    with pytest.raises(LexrayError, match="no vocabulary has"):
        Vocabulary.from_files(lambda name: asset(tmp_path, name))
    with pytest.raises(LexrayError, match="no vocabulary has"):
        _ = Vocabulary.numbered(101).all_shown


def asset(folder: Path, name: str) -> Path | None:
    return folder / name if (folder / name).is_file() else None


GGUF: dict[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "ab"]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": 3}, "tokens should be a list of texts"),
        ({"tokens": "abc"}, "tokens should be a list of texts"),
        ({"model": 7}, "model should be a text"),
        ({"token_type": ["x", "y", "z"]}, "token_type should be a list of numbers"),
        ({"token_type": 5}, "token_type should be a list of numbers"),
        ({"bos_token_id": "x"}, "bos_token_id should be a whole number"),
        ({"merges": [1, 2]}, "damaged"),
        ({"merges": 8}, "merges should be a list of texts"),
    ],
)
def test_gguf_metadata_of_the_wrong_kind(changes: dict[str, Any], reason: str) -> None:
    metadata = GGUF | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}

    def use() -> None:
        found = Vocabulary(GgufSource(metadata))
        assert found.all_shown
        found.encode("ab")

    with pytest.raises(LexrayError, match=reason):
        use()


def test_gguf_ids_that_are_not_there() -> None:
    metadata = GGUF | {"tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.add_bos_token": True}
    for wrong in (-1, 3, 10**12):
        found = Vocabulary(GgufSource(metadata | {"tokenizer.ggml.bos_token_id": wrong}))
        assert found.encode("ab", special=True) == [2]


def test_gguf_tokens_of_endless_length() -> None:
    """Every way to cut a token in two is tried, which takes the square of its length."""
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a", "b" * 10**5],
        "tokenizer.ggml.scores": [0.0, 0.0],
    }
    with pytest.raises(LexrayError, match="longer than tokens are"):
        Vocabulary(GgufSource(metadata)).encode("a")
