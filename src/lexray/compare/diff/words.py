"""Whether what a change moves towards can be read: by the words in it, not by its pieces."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.space.kinds import Kind
from lexray.space.space import EmbeddingSpace
from lexray.vocabulary.words import telling

FIRST = 10
"""So many tokens are what a person sees of a list."""
FLOOR = 0.05
"""What a list counts that cannot be read: its changes come last, but in order."""


def words_of(space: EmbeddingSpace) -> Bool[Tensor, "e"]:
    """Which tokens are words that say something; all, in a vocabulary without such words."""
    vocabulary, n = space.weights.vocabulary, space.n_rows
    there = vocabulary.mask(n)
    words = telling(vocabulary, n) & there
    return words if int(words.sum()) > 1 else there


def readable(
    space: EmbeddingSpace, ids: Int[Tensor, "n k"], kind: Kind | None
) -> Float[Tensor, "n"]:
    """How well lists of tokens read, best first: their legibility times the share of words among
    the first ten. Bytes and pieces of words count for nothing."""
    words = words_of(space)[ids[:, :FIRST].cpu()].float().mean(1)
    return space.legibility(ids, kind).clamp(min=0) * words
