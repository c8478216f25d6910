"""Which tokens a search may return: filters, and their combinations.

A filter restricts the search itself: the result is the exact top-k among what it admits.

>>> from lexray.vocabulary import filters
>>> words = filters.alphanumeric & filters.starts_word
>>> common = filters.corpus(Path("reviews.txt"), minimum=5) | filters.among([" Paris", 198])
>>> (words & common).describe()
'alphanumeric and starts a word and (5 times or more in reviews.txt or among ·Paris, 198)'
>>> words.mask(model.vocabulary, d_vocab=4500).sum()
tensor(2790)
"""

from __future__ import annotations

import unicodedata
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from io import BytesIO, TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor

from lexray.errors import LexrayError
from lexray.files import cache_root, has_json_lines, open_text, read_json_lines, write_cache
from lexray.vocabulary.text import shown, unshown
from lexray.vocabulary.vocabulary import Vocabulary, begins_word

__all__ = [
    *("Filter", "FilterLike", "alphanumeric", "among", "ascii", "corpus", "read_filter"),
    "starts_word",
]


def __dir__() -> list[str]:
    return sorted(__all__)


class Filter(ABC):
    """Admits some tokens of a vocabulary. Filters combine: `a & b`, `a | b`, `~a`."""

    def mask(self, vocabulary: Vocabulary, d_vocab: int | None = None) -> Bool[Tensor, "d_vocab"]:
        """True for each id that the filter admits; ids without a token are never admitted.

        `d_vocab` is the embedding's size, if it is not the vocabulary's.
        """
        mask = vocabulary.mask(vocabulary.n_ids if d_vocab is None else d_vocab)
        kept = self.keeps(vocabulary)[: len(mask)]
        mask[: len(kept)] &= kept
        if not mask.any():
            raise LexrayError(
                f"no token of {vocabulary.name} passes this filter: {self.describe()}"
            )
        return mask

    def keeps(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]:
        """The mask over the vocabulary's own ids, found once for each vocabulary; may be empty."""
        return vocabulary.remember(self, lambda: self._find_kept(vocabulary))

    @abstractmethod
    def _find_kept(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]: ...

    @abstractmethod
    def describe(self) -> str:
        """What it admits, in words; results carry this."""

    def __and__(self, other: Filter) -> Filter:
        return _All((self, other))

    def __or__(self, other: Filter) -> Filter:
        return _Any((self, other))

    def __invert__(self) -> Filter:
        return _Not(self)

    def __str__(self) -> str:
        return self.describe()


FilterLike = Filter | Iterable[str | int] | Callable[[str], bool] | Path | None
"""What `filter=` takes."""


@dataclass(frozen=True)
class _All(Filter):
    filters: tuple[Filter, ...]

    def _find_kept(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]:
        return reduce(torch.logical_and, (f.keeps(vocabulary) for f in self.filters))

    def describe(self) -> str:
        return " and ".join(_bracket(f, _Any) for f in self.filters)


@dataclass(frozen=True)
class _Any(Filter):
    filters: tuple[Filter, ...]

    def _find_kept(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]:
        return reduce(torch.logical_or, (f.keeps(vocabulary) for f in self.filters))

    def describe(self) -> str:
        return " or ".join(_bracket(f, _All) for f in self.filters)


@dataclass(frozen=True)
class _Not(Filter):
    filter: Filter

    def _find_kept(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]:
        return ~self.filter.keeps(vocabulary)

    def describe(self) -> str:
        return f"not {_bracket(self.filter, _All, _Any)}"


def _bracket(filter: Filter, *kinds: type[Filter]) -> str:
    return f"({filter.describe()})" if isinstance(filter, kinds) else filter.describe()


# ------------------------------------------------------------------ by the token's text


@dataclass(frozen=True)
class _Looks(Filter):
    name: str
    test: Callable[[Vocabulary], Iterable[bool]]

    def _find_kept(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]:
        return torch.tensor(list(self.test(vocabulary)), dtype=torch.bool)

    def describe(self) -> str:
        return self.name


def _is_alphanumeric(text: str) -> bool:
    word = text.strip()
    if word.isalnum():
        return True
    marks = (unicodedata.category(char)[0] == "M" for char in word if not char.isalnum())
    return any(map(str.isalnum, word)) and all(marks)


ascii: Filter = _Looks("ascii", lambda v: (bool(d) and d.isascii() for d in v.all_bytes))
"""Only ASCII characters, and at least one."""

alphanumeric: Filter = _Looks("alphanumeric", lambda v: map(_is_alphanumeric, v.all_texts))
"""Only letters and digits of any script, apart from spaces around them."""

starts_word: Filter = _Looks("starts a word", lambda v: map(begins_word, v.all_texts))
"""A space, then something else: `·Paris`, not `ing`."""


# ------------------------------------------------------------------ a user's list


@dataclass(frozen=True)
class _Among(Filter):
    tokens: tuple[str | int, ...]
    any_form: bool

    def _find_kept(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]:
        mask = torch.zeros(vocabulary.n_ids, dtype=torch.bool)
        mask[self._any_form(vocabulary) if self.any_form else vocabulary.ids(self.tokens)] = True
        return mask

    def _any_form(self, vocabulary: Vocabulary) -> list[int]:
        wanted = {_fold(token, vocabulary): token for token in self.tokens}
        forms: dict[str, list[int]] = {word: [] for word in wanted}
        for i, text in enumerate(vocabulary.all_texts):
            forms.get(text.strip().casefold(), []).append(i)
        vocabulary.ids(wanted[word] for word, ids in forms.items() if not ids)
        return [i for ids in forms.values() for i in ids]

    def describe(self) -> str:
        named = [_label(token) for token in self.tokens[:5]]
        more = f", … ({len(self.tokens)} in all)" if len(self.tokens) > 5 else ""
        forms = "any form of" if self.any_form else "among"
        return f"{forms} {', '.join(named)}{more}"


def among(tokens: Iterable[str | int] | Path, *, any_form: bool = False) -> Filter:
    """The tokens of a list, or of a file with one token a line; a LexrayError explains the others.

    >>> among([" cm", "·kg", 198])            # exactly these tokens
    >>> among(["cm", "kg"], any_form=True)     # with and without space, any case: ·CM, Kg, …
    >>> among(Path("words.txt"), any_form=True)
    """
    listed = _lines(tokens) if isinstance(tokens, Path) else tuple(tokens)
    if not listed:
        raise LexrayError(f"{tokens} names no token" if isinstance(tokens, Path) else "no tokens")
    return _Among(tuple(t if isinstance(t, str) else int(t) for t in listed), any_form)


def _lines(path: Path) -> tuple[str, ...]:
    with open_text(path) as stream:
        lines = stream.read().splitlines()
    return tuple(line for line in lines if line.strip())


def _fold(token: str | int, vocabulary: Vocabulary) -> str:
    if isinstance(token, int):
        return vocabulary.folded(vocabulary.id(token))
    return unshown(token).decode("utf-8", "replace").strip().casefold()


def _label(token: str | int) -> str:
    return str(token) if isinstance(token, int) else shown(unshown(token))


@dataclass(frozen=True)
class _Test(Filter):
    test: Callable[[str], bool]

    def _find_kept(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]:
        return torch.tensor([bool(self.test(text)) for text in vocabulary.all_texts])

    def describe(self) -> str:
        return f"by {getattr(self.test, '__name__', 'a test').replace('<lambda>', 'a test')}"


def read_filter(given: FilterLike) -> Filter | None:
    """A filter as people give it: one, a list of words, or a test of a token's text.

    >>> read_filter([" Paris", " London"]).describe()
    'among ·Paris, ·London'
    >>> model["L2H1"].vo.top(5, filter=str.istitle)
    >>> model["L2H1"].vo.top(5, filter=lambda text: text.startswith(" a"))
    """
    if given is None or isinstance(given, Filter):
        return given
    if callable(given):
        return _Test(given)
    if isinstance(given, str):
        raise LexrayError(
            f"a filter is filters.ascii and the like, a list of words, or a test of a text; the "
            f"one word {given!r} is [{given!r}]"
        )
    return among(given)


# ------------------------------------------------------------------ a corpus

_KIND_OF_CACHE = "corpus-1"
_SUFFIXES = (".txt", ".jsonl", ".gz")
_CHUNK = 1 << 16
_BATCH = 256


@dataclass(frozen=True)
class _Corpus(Filter):
    label: str
    stamp: str
    """Differs when the corpus has changed."""
    minimum: int
    texts: Callable[[], Iterator[str]] = field(compare=False, repr=False)

    def _find_kept(self, vocabulary: Vocabulary) -> Bool[Tensor, "n_ids"]:
        groups = vocabulary.groups()
        counts = torch.zeros_like(groups).index_add_(0, groups, self._counts(vocabulary))
        return counts[groups] >= self.minimum

    def _counts(self, vocabulary: Vocabulary) -> Int64[Tensor, "n_ids"]:
        """How often each id occurs, from the cache on disk if it is there."""
        key = sha256(f"{self.stamp} {vocabulary.fingerprint}".encode()).hexdigest()
        path = cache_root() / _KIND_OF_CACHE / f"{key}.npz"
        counts = _load_counts(path, vocabulary.n_ids)
        if counts is None:
            counts = self._count(vocabulary)
            _save_counts(path, counts)
        return torch.from_numpy(counts)

    def _count(self, vocabulary: Vocabulary) -> NDArray[np.int64]:
        counts = np.zeros(vocabulary.n_ids, dtype=np.int64)
        texts = self.texts()
        while batch := list(islice(texts, _BATCH)):
            ids = np.fromiter(chain.from_iterable(vocabulary.encode_many(batch)), np.int64)
            counts += np.bincount(ids, minlength=len(counts))
        if not counts.any():
            raise LexrayError(f"the corpus {self.label} holds no text")
        return counts

    def describe(self) -> str:
        times = "occurs" if self.minimum <= 1 else f"{self.minimum} times or more"
        return f"{times} in {self.label}"


def corpus(source: str | Path, *, minimum: int = 1) -> Filter:
    """Tokens that occur in a corpus at least `minimum` times, whatever their case and spaces.

    `source` is a path to a `.txt` or `.jsonl` file, perhaps with `.gz`, or the text itself. Of a
    line of `.jsonl` the field `text` counts, or all its strings if there is no such field. Counts
    are kept in lexray's cache (see `lexray.files`) until the file or the tokenizer changes.

    >>> corpus("reviews.txt", minimum=5)
    >>> corpus("It was the best of times, it was the worst of times")
    """
    if isinstance(source, Path) or _looks_like_path(source):
        path = Path(source).expanduser()
        label, stamp = path.name, _file_stamp(path)
        return _Corpus(label, stamp, minimum, lambda: _texts_of(path))
    text = str(source)
    label = f"a text of {len(text)} characters"
    stamp = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return _Corpus(label, stamp, minimum, lambda: iter([text] if text else []))


def _looks_like_path(source: str) -> bool:
    if len(source) > 1000 or "\n" in source:
        return False
    return source.endswith(_SUFFIXES) or Path(source).is_file()


def _file_stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError as error:
        raise LexrayError(f"the corpus {path} cannot be read: {error.strerror}") from error
    if not path.is_file():
        raise LexrayError(f"the corpus {path} is not a file: .txt and .jsonl, also .gz, are read")
    return f"{path.resolve()} {status.st_mtime_ns} {status.st_size}"


def _texts_of(path: Path) -> Iterator[str]:
    """A file's texts, in pieces of bounded size."""
    if has_json_lines(path):
        for _, value in read_json_lines(path):
            yield from _strings(value)
        return
    with open_text(path) as stream:
        yield from _chunks(stream)


def _chunks(stream: TextIOWrapper) -> Iterator[str]:
    """Pieces of about 64 KiB, cut before a space or a newline."""
    rest = ""
    while block := stream.read(_CHUNK):
        rest += block
        cut = max(rest.rfind(" "), rest.rfind("\n"))
        cut = len(rest) if cut < 1 and len(rest) > 16 * _CHUNK else cut
        if cut > 0 and len(block) == _CHUNK:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and isinstance(value.get("text"), str):
        yield value["text"]
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _load_counts(path: Path, n_ids: int) -> NDArray[np.int64] | None:
    """Cached counts; None if there are none, or if the file is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            counts = file["counts"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return counts if counts.dtype == np.int64 and counts.shape == (n_ids,) else None


def _save_counts(path: Path, counts: NDArray[np.int64]) -> None:
    """Keeps counts for the next time; where nothing can be written, the next time counts again."""
    packed = BytesIO()
    np.savez_compressed(packed, counts=counts)
    write_cache(path, packed.getvalue())
