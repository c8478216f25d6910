"""Words as tokens: which pairs of a relation a vocabulary can hold, whole or by a piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lexray.errors import LexrayError
from lexray.model.weights import Weights
from lexray.roles.relation import Relation
from lexray.vocabulary.vocabulary import Vocabulary


@dataclass(frozen=True)
class Task:
    """A relation's pairs as token ids: those whose words are whole tokens, or the others."""

    relation: Relation
    whole: bool
    """Else a source stands for its last token, a target for its first."""
    words: tuple[tuple[str, str], ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sources)


def tasks_of(weights: Weights, relations: Sequence[Relation]) -> list[Task]:
    """For each relation the pairs of whole words and those in pieces, where there are two."""
    found = []
    for relation in relations:
        for whole in (True, False):
            task = _task(weights, relation, whole)
            if len(task) > 1:
                found.append(task)
    return found


def _task(weights: Weights, relation: Relation, whole: bool) -> Task:
    kept: dict[tuple[int, int], tuple[str, str]] = {}
    for source, target in relation.pairs:
        (a, a_whole), (b, b_whole) = (token_ids(weights.vocabulary, w) for w in (source, target))
        inside = a and b and max(a[-1], b[0]) < weights.d_vocab
        if inside and (a_whole and b_whole) == whole:
            kept.setdefault((a[-1], b[0]), (source, target))
    ids = list(kept)
    return Task(
        relation,
        whole,
        tuple(kept.values()),
        tuple(a for a, _ in ids),
        tuple(b for _, b in ids),
    )


def token_ids(vocabulary: Vocabulary, word: str) -> tuple[list[int], bool]:
    """A word's token as it stands in a text, after a space; else without; else its pieces.

    Also whether it is one token. A piece that is the space alone is none of the word.
    """
    spaced = word if word[:1] in (" ", "·") else f" {word}"
    for form in (spaced, word):
        try:
            return [vocabulary.id(form)], True
        except LexrayError:
            continue
    try:
        pieces = vocabulary.encode(spaced)
    except LexrayError:
        return [], False
    spare = len(pieces) > 1 and not vocabulary.text(pieces[0]).strip()
    return pieces[1:] if spare else pieces, False
