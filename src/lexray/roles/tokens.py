"""Words as tokens: which pairs of a relation a vocabulary can hold, whole or by a piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lexray.errors import LexrayError
from lexray.model.weights import Weights
from lexray.roles.relation import Relation
from lexray.vocabulary.vocabulary import Vocabulary


@dataclass(frozen=True)
class TokenPairs:
    """A relation's pairs as token ids: those whose words are whole tokens, or the others."""

    relation: Relation
    whole: bool
    """Else a source stands for its last token, a target for its first."""
    words: tuple[tuple[str, str], ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sources)


def tasks_of(weights: Weights, relations: Sequence[Relation]) -> list[TokenPairs]:
    """For each relation the pairs of whole words and those in pieces, where there are two."""
    both = (task for relation in relations for task in _tasks(weights, relation))
    return [task for task in both if len(task) > 1]


def _tasks(weights: Weights, relation: Relation) -> Iterator[TokenPairs]:
    """The pairs of whole words, then those in pieces."""
    kept: dict[bool, dict[tuple[int, int], tuple[str, str]]] = {True: {}, False: {}}
    for source, target in relation.pairs:
        (a, a_whole), (b, b_whole) = (token_ids(weights.vocabulary, w) for w in (source, target))
        if a and b and max(a[-1], b[0]) < weights.d_vocab:
            kept[a_whole and b_whole].setdefault((a[-1], b[0]), (source, target))
    for whole, words in kept.items():
        sources, targets = (tuple(pair[i] for pair in words) for i in (0, 1))
        yield TokenPairs(relation, whole, tuple(words.values()), sources, targets)


def token_ids(vocabulary: Vocabulary, word: str) -> tuple[list[int], bool]:
    """A word's token as it stands in a text, after a space; else without; else its pieces.

    Also whether it is one token. A piece that is the space alone is none of the word.
    """
    spaced = word if word[:1] in (" ", "·") else f" {word}"
    for form in (spaced, word):
        if (known := vocabulary.find(form)) is not None:
            return [known], True
    try:
        pieces = vocabulary.encode(spaced)
    except LexrayError:
        return [], False
    spare = len(pieces) > 1 and not vocabulary.text(pieces[0]).strip()
    return pieces[1:] if spare else pieces, False
