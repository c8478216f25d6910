"""Tiny tokenizers of every kind, and the vocabularies made of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

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


def description(vocab: dict[str, int], **rest: Any) -> bytes:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    stages = {"decoder": byte_level, "pre_tokenizer": byte_level, "added_tokens": []}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    return json.dumps({"version": "1.0", "model": model} | stages | rest).encode()


def written(tmp_path: Path, data: bytes, **options: Any) -> Vocabulary:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    return Vocabulary.from_tokenizer_json(path, **options)


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
