"""A model's tokens: which text each id stands for, and which id a text is."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor

from lexray.checkpoint.assets import TOKENIZERS
from lexray.checkpoint.plain import read_plain
from lexray.errors import LexrayError
from lexray.vocabulary.chat import Message, find_template, read_template, render_chat
from lexray.vocabulary.gguf import GgufSource
from lexray.vocabulary.pieces import sentencepiece_source
from lexray.vocabulary.sources import (
    JsonSource,
    LiveSource,
    TokenSource,
    bert_source,
    config_of,
    gpt2_source,
)
from lexray.vocabulary.tekken import tekken_source
from lexray.vocabulary.text import literal, shown, unshown

Bytes = bytes
"""The type, inside a class whose `bytes` is a method."""

_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


class Vocabulary:
    """The tokens of a model, as people read them.

    >>> vocabulary = model.vocabulary
    >>> vocabulary.id(" Paris"), vocabulary.id("·Paris"), vocabulary.id(3844)
    (3844, 3844, 3844)
    >>> vocabulary.text(3844), vocabulary.shown(3844), vocabulary.shown(199)
    (' Paris', '·Paris', '↵')
    >>> vocabulary.encode("This movie was great")
    [750, 359, 336, 598]

    One convention serves every tokenizer: a token that begins a word has a leading space, so BERT's
    `paris` is `·paris` and its `##ing` is `ing`. How other characters are shown, `shown` in
    `token_text` says. Tokens are looked up by what is shown first and by plain text second: `·` is
    the space, and the token that is a middle dot is `\\·`. Where two tokens stand for the same text
    (Gemma's `\\n` and `<0x0A>`), `id` gives the ordinary one: added, special and byte
    tokens come after it.
    """

    def __init__(self, source: TokenSource, template: Callable[[], Any] | None = None) -> None:
        self.source = self._source = source
        self._template = template or (lambda: None)
        self._remembered: dict[Hashable, Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self._source, self._template())

    # ------------------------------------------------------------------ where it comes from

    @classmethod
    def from_tokenizer_json(
        cls, path: Path, *, config: Mapping[str, Any] | None = None
    ) -> Vocabulary:
        """From a `tokenizer.json`; `config` is the `tokenizer_config.json` that belongs to it."""
        return cls(JsonSource(str(path), lambda: read_plain(path), config))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Vocabulary:
        """From the metadata of a GGUF file (`tokenizer.ggml.tokens` and so on)."""
        return cls(GgufSource(metadata), lambda: metadata.get("tokenizer.chat_template"))

    @classmethod
    def from_transformers(cls, tokenizer: Any) -> Vocabulary:
        """From a live tokenizer of transformers, as it is now."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
        template = getattr(tokenizer, "chat_template", None)
        if isinstance(template, dict):
            template = [{"name": key, "template": value} for key, value in template.items()]
        if backend is None:
            return cls(LiveSource(name, tokenizer), lambda: template)
        data = backend.to_str().encode()
        config = getattr(tokenizer, "special_tokens_map", None)
        return cls(JsonSource(name, lambda: data, config), lambda: template)

    @classmethod
    def from_files(cls, asset: Callable[[str], Path | None]) -> Vocabulary:
        """From whichever tokenizer files there are; `asset` gives a file's path, if it exists.

        >>> Vocabulary.from_files(checkpoint.asset)
        """
        vocabulary = cls._from_files(asset)
        vocabulary._template = lambda: find_template(asset, config_of(asset))
        return vocabulary

    @classmethod
    def _from_files(cls, asset: Callable[[str], Path | None]) -> Vocabulary:
        if path := asset("tokenizer.json"):
            return cls.from_tokenizer_json(path, config=config_of(asset))
        vocab, merges = asset("vocab.json"), asset("merges.txt")
        if vocab and merges:
            return cls(gpt2_source(vocab, merges, config_of(asset)))
        if path := asset("vocab.txt"):
            return cls(bert_source(path, config_of(asset)))
        if path := asset("tekken.json"):
            return cls(tekken_source(path))
        path = next((path for name in _SENTENCEPIECE if (path := asset(name))), None)
        if path is not None:
            return cls(sentencepiece_source(path, config_of(asset), asset))
        if vocab:
            raise LexrayError(f"{vocab} needs merges.txt, which is not beside it; download it too")
        raise LexrayError(
            "there is no tokenizer beside the weights: looked for "
            f"{', '.join(TOKENIZERS)}; Vocabulary.numbered(n) stands in for one"
        )

    @classmethod
    def numbered(cls, n: int) -> Vocabulary:
        """A stand-in where there is no tokenizer: the token 17 is shown as `#17`."""
        model = {"type": "WordLevel", "vocab": {f"#{i}": i for i in range(n)}, "unk_token": ""}
        data = json.dumps({"version": "1.0", "model": model, "added_tokens": []}).encode()
        return cls(JsonSource("a model without a tokenizer", lambda: data, None))

    # ------------------------------------------------------------------ how large it is

    @property
    def name(self) -> str:
        """Of the tokenizer that it comes from."""
        return self._source.name

    @property
    def caveat(self) -> str | None:
        """What to know if `encode` may differ from the model's own tokenizer; mostly None."""
        return self._source.caveat

    @property
    def n_ids(self) -> int:
        """The largest id with a token, plus one."""
        return len(self._source.tokens)

    def __len__(self) -> int:
        """How many ids have a token (fewer than `n_ids` if some in between have none)."""
        return self.n_ids - len(self._source.holes)

    def __contains__(self, token_id: int) -> bool:
        return 0 <= token_id < self.n_ids and token_id not in self._source.holes

    def __repr__(self) -> str:
        return f"<Vocabulary of {self.name}: {len(self)} tokens>"

    def mask(self, d_vocab: int) -> Bool[Tensor, "d_vocab"]:
        """True for each of the embedding's ids that has a token, special and added ones too."""
        mask = torch.zeros(d_vocab, dtype=torch.bool)
        mask[: self.n_ids] = True
        mask[[i for i in self._source.holes if i < d_vocab]] = False
        return mask

    @property
    def fingerprint(self) -> str:
        """The same for two vocabularies only if they encode alike."""
        return self._source.fingerprint

    # ------------------------------------------------------------------ from id to text

    def bytes(self, token_id: int) -> Bytes:
        """The bytes a token stands for; none for an id without a token."""
        token = self._source.tokens[token_id] if token_id in self else ""
        if token is None or token_id in self._source.special:
            return literal(token or "")
        if token_id in self._source.added and not self._source.spelling.marker:
            return literal(token)
        return self._source.spelling.decode(token)

    def text(self, token_id: int) -> str:
        """The text a token stands for; bytes that are no UTF-8 appear as `\\xf0`."""
        return self.bytes(token_id).decode("utf-8", "backslashreplace")

    def shown(self, token_id: int) -> str:
        """The token as people read it: `·Paris`, `↵`, `\\xf0`; `#50300` for an id without one."""
        return shown(self.bytes(token_id)) if token_id in self else f"#{token_id}"

    def folded(self, token_id: int) -> str:
        """The text without spaces around it and without case: equal for ` Law` and `law`."""
        return self.text(token_id).strip().casefold()

    def is_special(self, token_id: int) -> bool:
        """Whether it is a token such as `<|endoftext|>`, `[CLS]` or `<unk>`."""
        return token_id in self._source.special

    def is_added(self, token_id: int) -> bool:
        """Whether it was added to the tokenizer after training; special tokens mostly are."""
        return token_id in self._source.added

    def starts_word(self, token_id: int) -> bool:
        """Whether it is a space and then something else than a space."""
        return begins_word(self.text(token_id))

    @cached_property
    def all_bytes(self) -> list[Bytes]:
        """`bytes` of every id below `n_ids`."""
        table = self._source.spelling.decode_all(self._source.tokens)
        for i in {*self._source.special, *self._source.added}:
            table[i] = self.bytes(i)
        return table

    @cached_property
    def all_texts(self) -> list[str]:
        """`text` of every id below `n_ids`."""
        return [data.decode("utf-8", "backslashreplace") for data in self.all_bytes]

    @cached_property
    def all_shown(self) -> list[str]:
        """`shown` of every id below `n_ids`."""
        holes = self._source.holes
        return [f"#{i}" if i in holes else shown(data) for i, data in enumerate(self.all_bytes)]

    def groups(self, d_vocab: int | None = None) -> Int64[Tensor, "d_vocab"]:
        """For each id the first id with the same folded text; "same token" means "same group".

        Tokens without a text of their own (bytes that are no UTF-8, spaces, nothing) stay alone.
        """
        size = self.n_ids if d_vocab is None else d_vocab
        groups = np.arange(size)
        known = min(size, self.n_ids)
        groups[:known] = self._groups[:known]
        return torch.from_numpy(groups)

    @cached_property
    def _groups(self) -> NDArray[np.int64]:
        first: dict[str, int] = {}
        groups = np.arange(self.n_ids)
        for i, (text, data) in enumerate(zip(self.all_texts, self.all_bytes, strict=True)):
            key = text.strip().casefold()
            if key and ("\\x" not in text or _is_utf8(data)):
                groups[i] = first.setdefault(key, i)
        return groups

    # ------------------------------------------------------------------ from text to id

    def id(self, token: str | SupportsIndex) -> int:
        """The id of exactly this token, given as text, as it is shown, or as an id.

        >>> vocabulary.id(" Paris"), vocabulary.id("·Paris"), vocabulary.id("<|endoftext|>")
        (3844, 3844, 0)
        >>> vocabulary.id(" Parisian")
        Traceback (most recent call last):
        lexray.errors.LexrayError: ' Parisian' is 2 tokens, ·Paris (3844) + ian (688)...
        """
        if not isinstance(token, str):
            return self._check(operator.index(token))
        number = self.find(token)
        if number is None:
            raise LexrayError(self._explain(token))
        return number

    def find(self, token: str) -> int | None:
        """The id of exactly this token, given as text or as it is shown; None if there is none.

        >>> vocabulary.find(" Paris"), vocabulary.find(" Parisian")
        (3844, None)
        """
        for data in (unshown(token), literal(token)):
            if data in self._id_of:
                return self._id_of[data]
        return None

    def ids(self, tokens: Iterable[str | SupportsIndex]) -> list[int]:
        """The id of each token; one LexrayError explains all that are none."""
        ids, problems = [], []
        for token in tokens:
            try:
                ids.append(self.id(token))
            except LexrayError as error:
                problems.append(str(error))
        if problems:
            raise LexrayError("\n".join(problems))
        return ids

    def render_chat(self, messages: Sequence[Message]) -> str:
        """A conversation as the text that the model was trained on, by its own template.

        >>> messages = [{"role": "user", "content": "What is the capital of Japan?"}]
        >>> vocabulary.render_chat(messages)          # doctest: +SKIP
        """
        return render_chat(read_template(self._template()), messages, self._source.named)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text; `special=True` adds what the tokenizer adds itself (BOS, …)."""
        return self._source.encode([text], special)[0]

    def encode_many(self, texts: Sequence[str], *, special: bool = False) -> list[list[int]]:
        """The ids of several texts, encoded in parallel."""
        return self._source.encode(texts, special)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a list of ids, without the space that a tokenizer puts before the first word.

        >>> vocabulary.decode(vocabulary.encode("naïve"))
        'naïve'
        """
        data = b"".join(self.bytes(i) for i in ids)
        if self._source.spelling.drops_first_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "backslashreplace")

    @cached_property
    def _id_of(self) -> dict[Bytes, int]:
        """Ids by bytes; of tokens that stand for the same, the most ordinary and then the first."""
        table: dict[Bytes, int] = {}
        odd = self._odd_ids
        ordinary = set(range(self.n_ids)).difference(odd, self._source.holes)
        for i in (*sorted(ordinary), *odd):
            table.setdefault(self.all_bytes[i], i)
        return table

    @property
    def _odd_ids(self) -> list[int]:
        """Added tokens, then special ones, then those for single bytes."""
        source = self._source
        groups = [source.added - source.special, source.special]
        if source.spelling.byte_fallback:
            is_byte = source.spelling.is_byte
            spare = {i for i, t in enumerate(source.tokens) if t and t[0] == "<" and is_byte(t)}
            groups = [*(group - spare for group in groups), frozenset(spare)]
        return [i for group in groups for i in sorted(group)]

    def _check(self, token_id: int) -> int:
        if not 0 <= token_id < self.n_ids:
            raise LexrayError(
                f"there is no token {token_id}: the ids of {self.name} are 0–{self.n_ids - 1}"
            )
        return token_id

    def _explain(self, token: str) -> str:
        text = unshown(token).decode("utf-8", "replace")
        try:
            pieces = self.encode(text)
        except LexrayError:
            pieces = []
        near = self._near(text)
        if len(pieces) > 1:
            parts = " + ".join(self._label(i) for i in pieces)
            said = f"{token!r} is {len(pieces)} tokens, {parts}"
        else:
            said = f"{token!r} is not a token of {self.name}"
            near += [i for i in pieces if i not in near and not self.is_special(i)]
        return said + (f"; near it: {', '.join(map(self._label, near))}" if near else "")

    def _near(self, text: str) -> list[int]:
        """Single tokens that differ by the leading space or by case."""
        stem = text.strip()
        cases = dict.fromkeys((stem, stem.lower(), stem.capitalize(), stem.upper()))
        forms = (literal(space + case) for case in cases for space in (" ", ""))
        return [self._id_of[form] for form in forms if form in self._id_of]

    def _label(self, token_id: int) -> str:
        return f"{self.shown(token_id)} ({token_id})"

    def remember(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What `make` returns, made once for each key; filters keep their masks here."""
        if key not in self._remembered:
            self._remembered[key] = make()
        return self._remembered[key]


def begins_word(text: str) -> bool:
    """Whether a text is a space and then something else than a space."""
    return text[:1] == " " and text[1:2].strip() != ""


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _made_again(source: TokenSource, template: Any) -> Vocabulary:
    """What was pickled."""
    return Vocabulary(source, lambda: template)
