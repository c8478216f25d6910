"""The embedding space: projections into the vocabulary and the exact top-k engines."""

from lexray.space.topk.pairs import TopPairs, top_pairs
from lexray.space.topk.vectors import TopVectors, top_vectors

__all__ = ["TopPairs", "TopVectors", "top_pairs", "top_vectors"]
