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

from lexray.checkpoint.fields import Fields, brief
from lexray.errors import LexrayError
from lexray.vocabulary.guard import charsmap_growth, rust
from lexray.vocabulary.sources import Encode, TokenSource, rust_encode
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
MOST_CUTS = 2_000_000_000
"""The squares of all tokens' lengths: what finding every way to cut them takes."""
NORMAL, _UNKNOWN, CONTROL, _USER_DEFINED, _UNUSED_TYPE = 1, 2, 3, 4, 5


class GgufSource(TokenSource):
    """The tokenizer in a GGUF file's metadata, and an encoder built from it as llama.cpp does."""

    def __init__(self, metadata: Mapping[str, Any], name: str = "this GGUF file"):
        self.name = name
        if "tokenizer.ggml.tokens" not in metadata:
            raise LexrayError(f"{name} has no tokenizer: no tokenizer.ggml.tokens in it")
        self._metadata = metadata
        self._fields = Fields(metadata, self.name)
        self.kind = self._fields.text(_key("model")) or "gpt2"
        self._pre = self._fields.text(_key("pre")) or "default"
        self.caveat = self._split_caveat()

    def _strings(self, key: str) -> Sequence[str]:
        """A list of texts, empty where there is none."""
        strings = self._metadata.get(_key(key), ())
        if not isinstance(strings, Sequence) or isinstance(strings, (str, bytes)):
            raise LexrayError(f"{self.name}: {_key(key)} should be a list of texts")
        return strings

    def _numbers(self, key: str) -> NDArray[Any]:
        """A list of numbers, empty where there is none."""
        numbers = np.asarray(self._metadata.get(_key(key), ()))
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iufb"):
            raise LexrayError(f"{self.name}: {_key(key)} should be a list of numbers")
        return numbers

    def _id(self, name: str) -> int | None:
        """A special token's id, if there is one among the tokens."""
        number = self._fields.whole(_key(f"{name}_token_id"))
        return number if number is not None and 0 <= number < len(self._strings("tokens")) else None

    def _flag(self, key: str, default: bool) -> bool:
        flag = self._fields.flag(_key(key))
        return default if flag is None else flag

    def _split_caveat(self) -> str | None:
        if self.kind != "gpt2" or self._pre in _SPLIT_OF:
            return None
        return (
            f"words are cut as for GPT-2: how {brief(self._pre)} cuts them is not known to lexray"
        )

    @cached_property
    def spelling(self) -> Spelling:
        if self.kind == "gpt2":
            return Spelling(byte_level=True)
        if self.kind not in ("llama", "t5", "gemma4", "bert"):
            return Spelling()
        prefix = self._flag("add_space_prefix", self.kind != "gemma4")
        return Spelling(marker="▁", byte_fallback=self.kind != "bert", drops_first_space=prefix)

    @cached_property
    def _types(self) -> NDArray[np.int64]:
        with np.errstate(invalid="ignore"):
            types = self._numbers("token_type").astype(np.int64)
        size = len(self._strings("tokens"))
        return types if len(types) == size else np.ones(size, dtype=np.int64)

    def _of_type(self, *types: int) -> set[int]:
        return {int(i) for i in np.flatnonzero(np.isin(self._types, types))}

    @cached_property
    def holes(self) -> frozenset[int]:
        """Converters fill ids that have no token with unused ones such as `[PAD151700]`."""
        tokens = self._strings("tokens")
        return frozenset(i for i in self._of_type(_UNUSED_TYPE) if tokens[i] == f"[PAD{i}]")

    @cached_property
    def tokens(self) -> Sequence[str | None]:
        tokens = self._strings("tokens")
        if not self.holes:
            return tokens
        return [None if i in self.holes else token for i, token in enumerate(tokens)]

    @cached_property
    def named(self) -> dict[str, str]:
        ids = {f"{name}_token": self._id(name) for name in ("bos", "eos")}
        return {name: self._strings("tokens")[i] for name, i in ids.items() if i is not None}

    @cached_property
    def special(self) -> frozenset[int]:
        names = ("bos", "eos", "unknown", "padding", "seperator", "cls", "mask")
        ids = {i for name in names if (i := self._id(name)) is not None}
        return frozenset(ids | self._of_type(_UNKNOWN, CONTROL))

    @cached_property
    def added(self) -> frozenset[int]:
        return self.special | self._of_type(_USER_DEFINED)

    @cached_property
    def fingerprint(self) -> str:
        digest = sha256(repr((self.kind, self._pre, self.spelling)).encode())
        for key in ("tokens", "merges"):
            digest.update("\0".join(self._strings(key)).encode("utf-8", "replace"))
        digest.update(self._types.tobytes())
        return digest.hexdigest()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """As the library `tokenizers` knows it; the tokens around a text are not part of it."""
        builders = {
            "gpt2": self._byte_level_bpe,
            "llama": self._sentencepiece_bpe,
            "gemma4": self._sentencepiece_bpe,
            "t5": self._unigram,
            "bert": self._word_piece,
        }
        if self.kind not in builders:
            known = ", ".join(builders)
            raise LexrayError(
                f"GGUF tokenizers of kind {brief(self.kind)} cannot encode; {known} can"
            )
        charsmap_growth(self._charsmap)  # raises for what would end the process
        with rust(f"the tokenizer of {self.name} is damaged"):
            tokenizer = builders[self.kind]()
            self._add_tokens(tokenizer)
        return tokenizer

    @cached_property
    def encode(self) -> Encode:
        tokenizer = self.tokenizer
        factor = charsmap_growth(self._charsmap) if self.kind == "t5" else 3
        return rust_encode(tokenizer, *self._ends(), factor)

    def _vocab(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens) if token is not None}

    def _merges(self) -> list[tuple[str, str]]:
        cuts = ((merge, merge.index(" ", 1)) for merge in self._strings("merges"))
        return [(merge[:cut], merge[cut + 1 :]) for merge, cut in cuts]

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        """Tokens that are found whole in a text; SentencePiece merges runs of spaces itself."""
        whole = [(i, self.tokens[i] or "") for i in sorted(self.added)]
        # All at once: each call builds the search for all of them anew.
        tokenizer.add_tokens(
            [
                AddedToken(token, normalized=False, special=i in self.special)
                for i, token in whole
                if token.strip(" ") or self.spelling.byte_level
            ]
        )

    def _ends(self) -> tuple[list[int], list[int]]:
        """The special ids that go before and after a text."""
        begins = self.kind in ("llama", "gemma4", "bert") or self._pre in _WHOLE_WORDS_FIRST
        ends = self.kind in ("t5", "bert")
        begin = self._id("cls") if self.kind == "bert" else None
        begin = self._id("bos") if begin is None else begin
        end = self._id("seperator" if self.kind == "bert" else "eos")
        return (
            [begin] if self._flag("add_bos_token", begins) and begin is not None else [],
            [end] if self._flag("add_eos_token", ends) and end is not None else [],
        )

    def _unknown(self, default: int) -> int:
        number = self._id("unknown")
        return default if number is None else number

    def _byte_level_bpe(self) -> Tokenizer:
        whole = self._pre in _WHOLE_WORDS_FIRST
        tokenizer = Tokenizer(models.BPE(self._vocab(), self._merges(), ignore_merges=whole))
        tokenizer.pre_tokenizer = _split(_SPLIT_OF.get(self._pre, "gpt-2"))
        return tokenizer

    def _sentencepiece_bpe(self) -> Tokenizer:
        vocab = {"▁" * len(t) if set(t) == {" "} else t: i for t, i in self._vocab().items()}
        listed = "tokenizer.ggml.merges" in self._metadata
        merges = self._merges() if listed else self._infer_merges(vocab)
        unknown = self.tokens[self._unknown(0)]
        tokenizer = Tokenizer(
            models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        tokenizer.normalizer = _spaces_to_marker(self.spelling.drops_first_space)
        return tokenizer

    def _infer_merges(self, vocab: dict[str, int]) -> list[tuple[str, str]]:
        """Every way to make a token of two, the best-scored token first.

        Gemma's scores do not follow its merges; the order of its tokens does.
        """
        scores = self._numbers("scores").astype(np.float64)
        by_order = len(scores) != len(self._types)
        by_order |= str(self._metadata.get("general.architecture", "")).startswith("gemma")
        odd = self._of_type(_UNKNOWN, CONTROL, _UNUSED_TYPE, 6)
        pieces = {token: i for token, i in vocab.items() if i not in odd}
        if sum(len(token) ** 2 for token in pieces) > MOST_CUTS:
            raise LexrayError("its tokens are longer than tokens are")
        merges = [
            (i if by_order else -scores[i], -cut, cut - len(token), token[:cut], token[cut:])
            for token, i in pieces.items()
            for cut in range(1, len(token))
            if token[:cut] in pieces and token[cut:] in pieces
        ]
        merges.sort(key=lambda merge: merge[:3])
        return [merge[3:] for merge in merges]

    @cached_property
    def _charsmap(self) -> bytes:
        return self._numbers("precompiled_charsmap").astype(np.uint8).tobytes()

    def _unigram(self) -> Tokenizer:
        scores = self._numbers("scores").astype(np.float64).tolist()
        pieces = [(token or f"[PAD{i}]", scores[i]) for i, token in enumerate(self.tokens)]
        unknown = self._unknown(2)
        tokenizer = Tokenizer(
            models.Unigram(pieces, unknown, byte_fallback="<0x0A>" in self.tokens)
        )
        if self._charsmap:
            tokenizer.normalizer = normalizers.Precompiled(self._charsmap)
        scheme = "always" if self.spelling.drops_first_space else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", scheme)
        return tokenizer

    def _word_piece(self) -> Tokenizer:
        vocab = {self._word_piece_token(token, i): i for token, i in self._vocab().items()}
        lower = not any(t != t.lower() for t, i in vocab.items() if i not in self.special)
        unknown = self.tokens[self._unknown(100)]
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=unknown))
        lower = self._flag("normalizer.lowercase", lower)
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer

    def _word_piece_token(self, token: str, token_id: int) -> str:
        if token_id in self.special or re.fullmatch(r"\[.+\]", token):
            return token
        return token[1:] if token.startswith("▁") else "##" + token


def _key(name: str) -> str:
    return f"tokenizer.ggml.{name}"


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
