"""Which tokens are function words: they hold sentences together, and speak of no topic."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Bool
from torch import Tensor

from lexray.model.model import Model
from lexray.vocabulary.words import is_function_word


def function_words(model: Model) -> Bool[Tensor, "rows"]:
    """Which rows of the embedding are function words; rows that stand for no token are none."""
    admitted = model.vocabulary.mask(model.space.n_rows).tolist()
    return torch.tensor(
        [there and is_function_word(model.space.token(i).text) for i, there in enumerate(admitted)]
    )


def share(ids: Iterable[int], words: Bool[Tensor, "rows"]) -> float:
    """How many of these tokens are function words."""
    hits = words[torch.tensor(list(ids), dtype=torch.long)]
    return float(hits.double().mean())
