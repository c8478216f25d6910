"""The tokenizer inside a GGUF file; texts are cut as in llama.cpp's `llama-vocab.cpp`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from lexray.errors import LexrayError
from lexray.vocabulary.sources import Encode, Source, rust_encode
from lexray.vocabulary.text import Spelling

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


def _cased_words(ending: str) -> str:
    return rf"{_LEAD}{_UPPER}*{_LOWER}+{ending}|{_LEAD}{_UPPER}+{_LOWER}*{ending}"


_SPLITS = {
    "llama3": rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}{{1,3}}|{_SIGNS}|{_TAIL}",
    "qwen2": rf"{_CONTRACTIONS}|{_LEAD}\p{{L}}+|\p{{N}}|{_SIGNS}|{_TAIL}",
    "qwen35": rf"{_CONTRACTIONS}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}",
    "tekken": rf"{_cased_words('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",
    "gpt-4o": rf"{_cased_words(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
}
"""How the text is cut before merging, by llama.cpp's name; GPT-2's own way is in `tokenizers`."""

_SAME_SPLIT = {
    "llama3": "llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe "
    "chatglm-bpe glm4",
    "qwen2": "stablelm2 deepseek-r1-qwen megrez hunyuan solar-open grok-2",
    "gpt-4o": "llama4 kanana2 minimax-m2",
    "bloom": "poro-chat gpt3-finnish",
    "gpt-2": "default mpt olmo jais phi-2 gigachat roberta-bpe modern-bert jina-v1-en jina-v2-es "
    "jina-v2-de jina-v2-code a.x-4.0 mellum trillion exaone4 granite-docling",
    "digits": "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    "falcon": "",
}
_SPLIT_OF = {name: name for name in _SPLITS} | {
    alias: name for name, aliases in _SAME_SPLIT.items() for alias in (name, *aliases.split())
}
_WHOLE_WORDS_FIRST = {"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "tekken"}
"""Where a word that is a token is not cut, whatever the merges say; these also begin with BOS."""
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED_TYPE = 2, 3, 4, 5


class GgufSource(Source):
    """The tokenizer in a GGUF file's metadata, and an encoder built from it as llama.cpp does."""

    name = "this GGUF file"

    def __init__(self, metadata: Mapping[str, Any]):
        if "tokenizer.ggml.tokens" not in metadata:
            raise LexrayError("this GGUF file has no tokenizer: no tokenizer.ggml.tokens in it")
        self._metadata = metadata
        self.kind = str(self._get("model", "gpt2"))
        self._pre = str(self._get("pre", "default"))
        self.caveat = self._split_caveat()

    def _get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def _split_caveat(self) -> str | None:
        if self.kind != "gpt2" or self._pre in _SPLIT_OF:
            return None
        return f"words are cut as for GPT-2: how {self._pre!r} cuts them is not known to lexray"

    @cached_property
    def spelling(self) -> Spelling:
        if self.kind == "gpt2":
            return Spelling(byte_level=True)
        if self.kind not in ("llama", "t5", "gemma4", "bert"):
            return Spelling()
        prefix = bool(self._get("add_space_prefix", self.kind != "gemma4"))
        return Spelling(marker="▁", byte_fallback=self.kind != "bert", drops_first_space=prefix)

    @cached_property
    def _types(self) -> NDArray[np.int64]:
        types = np.asarray(self._get("token_type", ()), dtype=np.int64)
        size = len(self._get("tokens"))
        return types if len(types) == size else np.ones(size, dtype=np.int64)

    def _typed(self, *types: int) -> set[int]:
        return {int(i) for i in np.flatnonzero(np.isin(self._types, types))}

    @cached_property
    def holes(self) -> frozenset[int]:
        """Converters fill ids that have no token with unused ones such as `[PAD151700]`."""
        tokens = self._get("tokens")
        return frozenset(i for i in self._typed(_UNUSED_TYPE) if tokens[i] == f"[PAD{i}]")

    @cached_property
    def tokens(self) -> Sequence[str | None]:
        tokens: Sequence[str] = self._get("tokens")
        if not self.holes:
            return tokens
        return [None if i in self.holes else token for i, token in enumerate(tokens)]

    @cached_property
    def special(self) -> frozenset[int]:
        names = ("bos", "eos", "unknown", "padding", "seperator", "cls", "mask")
        named = {self._get(f"{name}_token_id") for name in names}
        ids = {int(i) for i in named if i is not None and 0 <= i < len(self._types)}
        return frozenset(ids | self._typed(_UNKNOWN, _CONTROL))

    @cached_property
    def added(self) -> frozenset[int]:
        return self.special | self._typed(_USER_DEFINED)

    @cached_property
    def fingerprint(self) -> str:
        digest = sha256(repr((self.kind, self._pre, self.spelling)).encode())
        for key in ("tokens", "merges"):
            digest.update("\0".join(self._get(key, ())).encode("utf-8", "replace"))
        digest.update(self._types.tobytes())
        return digest.hexdigest()

    @cached_property
    def encode(self) -> Encode:
        builders = {
            "gpt2": self._byte_level_bpe,
            "llama": self._sentencepiece_bpe,
            "gemma4": self._sentencepiece_bpe,
            "t5": self._unigram,
            "bert": self._word_piece,
        }
        if self.kind not in builders:
            known = ", ".join(builders)
            raise LexrayError(f"GGUF tokenizers of kind {self.kind!r} cannot encode; {known} can")
        try:
            tokenizer = builders[self.kind]()
        except Exception as error:  # the Rust library raises plain Exceptions
            raise LexrayError(f"the tokenizer of this GGUF file is damaged: {error}") from error
        self._add_tokens(tokenizer)
        return rust_encode(tokenizer, *self._ends())

    def _vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens) if token is not None}

    def _merges(self) -> list[tuple[str, str]]:
        cuts = ((merge, merge.index(" ", 1)) for merge in self._get("merges"))
        return [(merge[:cut], merge[cut + 1 :]) for merge, cut in cuts]

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        """Tokens that are found whole in a text; SentencePiece merges runs of spaces itself."""
        for i in sorted(self.added):
            token = self.tokens[i] or ""
            if token.strip(" ") or self.spelling.byte_level:
                special = i in self.special
                tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])

    def _ends(self) -> tuple[list[int], list[int]]:
        """The special ids that go before and after a text."""
        begins = self.kind in ("llama", "gemma4", "bert") or self._pre in _WHOLE_WORDS_FIRST
        ends = self.kind in ("t5", "bert")
        begin = self._get("cls_token_id") if self.kind == "bert" else None
        begin = self._get("bos_token_id") if begin is None else begin
        end = self._get("seperator_token_id" if self.kind == "bert" else "eos_token_id")
        return (
            [int(begin)] if self._get("add_bos_token", begins) and begin is not None else [],
            [int(end)] if self._get("add_eos_token", ends) and end is not None else [],
        )

    def _byte_level_bpe(self) -> Tokenizer:
        whole = self._pre in _WHOLE_WORDS_FIRST
        tokenizer = Tokenizer(models.BPE(self._vocab(), self._merges(), ignore_merges=whole))
        tokenizer.pre_tokenizer = _split(_SPLIT_OF.get(self._pre, "gpt-2"))
        return tokenizer

    def _sentencepiece_bpe(self) -> Tokenizer:
        vocab = {"▁" * len(t) if set(t) == {" "} else t: i for t, i in self._vocab().items()}
        listed = "tokenizer.ggml.merges" in self._metadata
        merges = self._merges() if listed else self._implied(vocab)
        unknown = self.tokens[int(self._get("unknown_token_id", 0))]
        tokenizer = Tokenizer(
            models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        tokenizer.normalizer = _spaces_to_marker(self.spelling.drops_first_space)
        return tokenizer

    def _implied(self, vocab: dict[str, int]) -> list[tuple[str, str]]:
        """Every way to make a token of two, the best-scored token first.

        Gemma's scores do not follow its merges; the order of its tokens does.
        """
        scores = np.asarray(self._get("scores", ()), dtype=np.float64)
        by_order = len(scores) != len(self._types)
        by_order |= str(self._metadata.get("general.architecture", "")).startswith("gemma")
        odd = self._typed(_UNKNOWN, _CONTROL, _UNUSED_TYPE, 6)
        pieces = {token: i for token, i in vocab.items() if i not in odd}
        found = [
            (i if by_order else -scores[i], -cut, cut - len(token), token[:cut], token[cut:])
            for token, i in pieces.items()
            for cut in range(1, len(token))
            if token[:cut] in pieces and token[cut:] in pieces
        ]
        found.sort(key=lambda merge: merge[:3])
        return [merge[3:] for merge in found]

    def _unigram(self) -> Tokenizer:
        scores = np.asarray(self._get("scores"), dtype=np.float64).tolist()
        pieces = [(token or f"[PAD{i}]", scores[i]) for i, token in enumerate(self.tokens)]
        unknown = int(self._get("unknown_token_id", 2))
        tokenizer = Tokenizer(
            models.Unigram(pieces, unknown, byte_fallback="<0x0A>" in self.tokens)
        )
        charsmap = self._get("precompiled_charsmap")
        if charsmap is not None:
            data = np.asarray(charsmap).astype(np.uint8).tobytes()
            tokenizer.normalizer = normalizers.Precompiled(data)
        scheme = "always" if self.spelling.drops_first_space else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme)
        return tokenizer

    def _word_piece(self) -> Tokenizer:
        vocab = {self._word_piece_token(token, i): i for token, i in self._vocab().items()}
        lower = not any(t != t.lower() for t, i in vocab.items() if i not in self.special)
        unknown = self.tokens[int(self._get("unknown_token_id", 100))]
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=unknown))
        lower = bool(self._get("normalizer.lowercase", lower))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def _word_piece_token(self, token: str, token_id: int) -> str:
        if token_id in self.special or re.fullmatch(r"\[.+\]", token):
            return token
        return token[1:] if token.startswith("▁") else "##" + token


def _split(name: str) -> Any:
    """The pre-tokenizer of byte-level BPE for one of the ways to cut text."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name not in _SPLITS)
    steps = {
        "digits": [pre_tokenizers.Digits(individual_digits=True), byte_level],
        "falcon": [
            pre_tokenizers.Punctuation("contiguous"),
            byte_level,
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ],
    }
    if name in _SPLITS:
        cut = pre_tokenizers.Split(Regex(_SPLITS[name]), "isolated")
        return pre_tokenizers.Sequence([cut, byte_level])
    return pre_tokenizers.Sequence(steps[name]) if name in steps else byte_level


def _spaces_to_marker(prefix: bool) -> Any:
    """SentencePiece's ▁ for every space, and one before the text."""
    replace = normalizers.Replace(" ", "▁")
    return normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
