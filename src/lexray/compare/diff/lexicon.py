"""Words of praise and blame, and how many of a model's changes speak them (ES App. D).

The paper looks at differences of a sentiment classifier and finds words of praise and blame in
those of K, W_Q, W_K and W_V, but not of V and W_O. Here the words are counted: which share of the
top tokens of the farthest moved vectors, at both ends, is in a lexicon. As the lexicon holds whole
words, only tokens that begin a word count as candidates. The share is compared with

- chance: the lexicon's share of the vocabulary;
- rotation: the same vectors turned at random, all by the same rotation, so that whatever they
  have in common stays; this gives the p-value (one-sided, by permutation);
- before: the base model's own vectors at the same places.

A group reads as sentiment if its share is above that of rotated vectors with p ≤ 0.01, and at
least one and a half times both that and the share of the vectors before.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from math import log
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lexray.checkpoint.plain import parse_json, read_plain
from lexray.errors import LexrayError
from lexray.files import has_json_lines, read_json_lines
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.progress import track
from lexray.result.format import show_percent
from lexray.result.readings import Token
from lexray.result.table import Result, Table
from lexray.space.kinds import Kind
from lexray.vocabulary import filters
from lexray.vocabulary.filters import Filter
from lexray.vocabulary.vocabulary import Vocabulary

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
ROTATIONS = 99
SIGNIFICANT = 0.01
TIMES = 1.5
ENOUGH = 20
"""Tokens of the lexicon without which counting them makes no sense."""
SHIPPED = "lexicon_sentiment.json"
LETTERS = {"keys": "K", "gates": "gate", "values": "V"} | {x: f"W_{x}" for x in "QKVO"}
"""The paper's names of the groups."""


@dataclass(frozen=True)
class Lexicon:
    """Words of praise and of blame.

    >>> Lexicon.shipped()
    >>> Lexicon.from_reviews(Path("reviews.jsonl"), vocabulary=model.vocabulary, minimum=1)
    """

    praise: frozenset[str]
    blame: frozenset[str]
    made: str = ""
    """How it was made."""

    @classmethod
    def shipped(cls) -> Lexicon:
        """The list that comes along: words that are tokens of the demo models."""
        text = (files("lexray.compare.diff") / SHIPPED).read_text(encoding="utf-8")
        return cls._parse(json.loads(text), SHIPPED)

    @classmethod
    def from_file(cls, path: Path, *, vocabulary: Vocabulary | None = None) -> Lexicon:
        """From labelled reviews (`.jsonl`, `.jsonl.gz`), or a list of words as `to_json` writes."""
        if has_json_lines(path):
            return cls.from_reviews(path, vocabulary=vocabulary)
        try:
            parsed = parse_json(read_plain(path), str(path))
        except LexrayError as error:
            raise LexrayError(
                f"cannot read the lexicon {path}: {error}; give reviews as .jsonl or .jsonl.gz "
                'with the fields "label" and "text", or JSON with "praise" and "blame"'
            ) from error
        return cls._parse(parsed, str(path))

    @classmethod
    def _parse(cls, parsed: Any, name: str) -> Lexicon:
        lists = [parsed.get(side, []) if isinstance(parsed, dict) else [] for side in SIDES]
        if not all(isinstance(x, list) and x for x in lists):
            raise LexrayError(f'{name} should hold two lists of words, "praise" and "blame"')
        praise, blame = (frozenset(str(word).casefold() for word in x) for x in lists)
        return cls(praise, blame, str(parsed.get("made", name)))

    @classmethod
    def from_reviews(
        cls,
        path: Path,
        *,
        n: int = 150,
        minimum: int = 100,
        vocabulary: Vocabulary | None = None,
    ) -> Lexicon:
        """The n words each that tell praise from blame best, by log-odds of labelled reviews.

        The file has a JSON object a line with `label` (1 or 0) and `text`. A word counts once per
        review and must occur in `minimum` of them; names (mostly capitalised words) are left out,
        and, with a vocabulary, words that are not one of its tokens.
        """
        counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        reviews, capital, seen = [0, 0], Counter[str](), Counter[str]()
        for label, text in read_reviews(path):
            reviews[label] += 1
            words = WORD.findall(text)
            counts[label].update({word.casefold() for word in words})
            seen.update(word.casefold() for word in words)
            capital.update(word.casefold() for word in words if word[0].isupper())
        if not all(reviews):
            raise LexrayError(
                f"{path} has {reviews[1]} reviews of praise and {reviews[0]} of blame; give both"
            )
        known = None if vocabulary is None else {x.strip().casefold() for x in vocabulary.all_texts}
        odds = {
            word: _odds(counts[1][word], reviews[1]) - _odds(counts[0][word], reviews[0])
            for word in counts[0] | counts[1]
            if counts[0][word] + counts[1][word] >= minimum
            and 2 * capital[word] < seen[word]
            and len(word) > 2
            and (known is None or word in known)
        }
        order = sorted(odds, key=lambda word: (odds[word], word))
        praise = [word for word in order[::-1][:n] if odds[word] > 0]
        blame = [word for word in order[:n] if odds[word] < 0]
        if not praise or not blame:
            raise LexrayError(f"{path}: no words occur in {minimum} reviews; lower the minimum")
        made = (
            f"the {len(praise)} and {len(blame)} words with the largest difference of log-odds in "
            f"{sum(reviews):,} labelled reviews ({path.name}), each in at least {minimum} of them, "
            "names left out" + (", all tokens of the vocabulary" if vocabulary else "")
        )
        return cls(frozenset(praise), frozenset(blame), made)

    def to_json(self) -> str:
        entry = {"made": self.made, "praise": sorted(self.praise), "blame": sorted(self.blame)}
        return json.dumps(entry, ensure_ascii=False, indent=1)

    def side(self, token: Token) -> str:
        """praise, blame, or nothing."""
        word = token.text.strip().casefold()
        return "praise" if word in self.praise else "blame" if word in self.blame else ""

    def mask(self, vocabulary: Vocabulary, n: int) -> Bool[Tensor, "n"]:
        """Which tokens, in any case and with or without a leading space, are in it."""
        words = self.praise | self.blame
        mask = torch.zeros(n, dtype=torch.bool)
        for i, text in enumerate(vocabulary.all_texts[:n]):
            mask[i] = text.strip().casefold() in words
        return mask


SIDES = ("praise", "blame")
LABELS: dict[str | float, int] = {
    0: 0,
    1: 1,
    "negative": 0,
    "neg": 0,
    "positive": 1,
    "pos": 1,
}
"""How files of reviews say what a review is."""


def _odds(count: int, total: int) -> float:
    """Log-odds of a word's presence, smoothed by half a review."""
    return log((count + 0.5) / (total - count + 0.5))


def read_reviews(path: Path) -> Iterator[tuple[int, str]]:
    """The label and text of each line."""
    expected = 'a review is a JSON object with "label" (0 or 1) and "text"'
    for where, value in read_json_lines(path, expected):
        match value:
            case {"label": str() | int() | float() as label, "text": str(text)} if label in LABELS:
                yield LABELS[label], text
            case _:
                raise LexrayError(f"{where}: {expected}")


@dataclass(frozen=True)
class Share:
    """How many of a group's words are words of praise or blame."""

    group: str
    vectors: int
    share: float
    rotated: float
    before: float
    p: float

    @property
    def reads(self) -> bool:
        above = self.share >= TIMES * max(self.rotated, self.before)
        return self.p <= SIGNIFICANT and self.share > 0 and above

    @property
    def letter(self) -> str:
        return LETTERS.get(self.group, self.group)


@dataclass(frozen=True)
class Sentiment(Result):
    """App. D's count, and what it says."""

    shares: tuple[Share, ...]
    chance: float
    k: int
    words: int
    """How many tokens of the vocabulary are in the lexicon."""
    lexicon: Lexicon

    @property
    def verdict(self) -> str:
        ends = [[s.letter for s in self.shares if s.reads is reads] for reads in (True, False)]
        if not self.shares:
            return "nothing moved that could be read"
        said = [_list_names(ends[0]) + " differences read as sentiment"] if ends[0] else []
        if ends[1]:
            verb = "do" if len(ends[1]) > 1 else "does"
            rest = f"{_list_names(ends[1])} {verb} not"
            said.append(
                rest if said else f"{_list_names(ends[1])} differences do not read as sentiment"
            )
        return "; ".join(said)

    def tables(self) -> list[Table]:
        rows = tuple(
            (
                *(s.letter, s.vectors, show_percent(s.share, 1), show_percent(s.rotated, 1)),
                *(show_percent(s.before, 1), s.p, s.reads),
            )
            for s in self.shares
        )
        columns = ("group", "vectors", "share", "rotated", "before", "p", "sentiment")
        note = (
            f"{self.verdict} · share of the {self.k} words at each end of the most moved vectors "
            f"that are words of praise or blame; by chance {show_percent(self.chance, 1)} "
            f"({self.words} tokens)"
        )
        return [Table(columns, rows, title="Words of praise and blame (ES App. D)", note=note)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "chance": self.chance,
            "k": self.k,
            "words": self.words,
            "lexicon": self.lexicon.made,
            "groups": [
                {
                    "group": s.group,
                    "name": s.letter,
                    "vectors": s.vectors,
                    "share": s.share,
                    "rotated": s.rotated,
                    "before": s.before,
                    "p": s.p,
                    "sentiment": s.reads,
                }
                for s in self.shares
            ],
        }


def _list_names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def count_words(
    model: Model,
    lexicon: Lexicon,
    stacks: Mapping[str, tuple[Kind | None, Tensor, Tensor]],
    *,
    k: int = 20,
    rotations: int = ROTATIONS,
    filter: Filter | None = None,
    seed: int = 0,
) -> Sentiment:
    """The share of words of the lexicon at both ends of each group's vectors.

    `stacks`: for each group its kind, how its vectors moved, and what they were before.
    """
    space = model.space
    whole = filters.starts_word & filters.alphanumeric
    filter = whole if filter is None else filter & whole
    mask = lexicon.mask(model.vocabulary, space.n_rows)
    ids = space.list_ids(filter)
    words = int((mask if ids is None else mask[ids]).sum())
    if words < ENOUGH:
        raise LexrayError(
            f"only {words} words of the lexicon are tokens of {model.name}; make one for it with "
            "--lexicon FILE.jsonl, from labelled reviews"
        )
    chance = float((mask if ids is None else mask[ids]).float().mean())
    generator = torch.Generator().manual_seed(seed)
    shares = []
    for group, (kind, moved, before) in track(
        stacks.items(), len(stacks), "counting words of praise and blame"
    ):
        assert kind is not None
        side = space.whole(kind)

        def share(X: Tensor, side: Any = side) -> float:
            best = side.top(X, k, ids)
            ends = torch.cat([best.top_ids, best.bottom_ids], 1).cpu()
            return float(mask[ends].float().mean())

        own = share(moved)
        turned = [share(x) for x in rotations_of(moved, rotations, generator)]
        p = (1 + sum(x >= own for x in turned)) / (1 + rotations)
        mean = sum(turned) / max(1, rotations)
        shares.append(Share(group, len(moved), own, mean, share(before), p))
    return Sentiment(tuple(shares), chance, k, words, lexicon)


def rotations_of(
    X: Float[Tensor, "m d"], n: int, generator: torch.Generator
) -> Iterator[Float[Tensor, "m d"]]:
    """The rows turned by n random rotations: their lengths and angles stay.

    Only the space that they span is turned: X = L Qᵀ becomes L Wᵀ, W random and orthonormal.
    """
    X = at_least_float32(X)
    Q, R = torch.linalg.qr(X.T.cpu())
    for _ in range(n):
        W = torch.linalg.qr(torch.randn(Q.shape, generator=generator)).Q
        yield (R.T @ W.T.to(R)).to(X)


def suits(config: Mapping[str, Any]) -> bool:
    """Whether a model classifies sentiment, by what it calls its classes."""
    labels = config.get("id2label")
    names = {str(x).casefold() for x in labels.values()} if isinstance(labels, dict) else set()
    return {"positive", "negative"} <= names or {"pos", "neg"} <= names
