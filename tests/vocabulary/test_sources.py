"""Where a vocabulary comes from: files beside the weights, and live tokenizers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    Tokenizer,
    normalizers,
)

from lexray.errors import LexrayError
from lexray.vocabulary.vocabulary import Vocabulary
from tests.vocabulary.kinds import (
    CORPUS,
    KINDS,
    TEXTS,
    description,
    made,
    vocabulary_of,
)

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
