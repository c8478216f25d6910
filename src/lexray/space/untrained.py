"""Tokens that training never touched, found from the weights, and those nobody can read.

After "Fishing for Magikarp" (Land and Bartolo 2024). A token that never occurs gets the same
gradient as every other such token, so that

- rows which were never touched stay alike: they are found around tokens that cannot occur (rows
  without a token, reserved names, bytes that no UTF-8 text contains), where these are alike;
- the output rows of tokens that are never predicted are pushed away from all hidden states, along
  the mean embedding: they are the far end of that direction, where it is rare tokens (those with
  high ids, which come late in a tokenizer's merges) that lie there.

Pieces of characters (bytes that are no UTF-8 by themselves) are set aside with them, and so are
names that a tokenizer keeps for later ([unused7]): no text has them, however their rows were begun.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.model.cache import Drawer
from lexray.model.embedding import embedding, unembedding
from lexray.model.fold import at_least_float32
from lexray.model.kept import keep
from lexray.model.weights import Weights
from lexray.scratch import join_rows
from lexray.space.side import rows_at_once
from lexray.vocabulary.vocabulary import Vocabulary

Why = Literal["untouched", "never predicted", "piece of a character", "reserved"]
WHY: tuple[Why, ...] = get_args(Why)

ALIKE = 0.9
"""The least cosine of centred rows that training has not told apart."""
REFERENCES = 512
"""So many tokens that cannot occur are enough."""
LEAST_ALIKE = 3
FENCE = 2.0
"""How many interquartile ranges above the third quartile the far end begins."""
RARER = 0.1
"""The least correlation with the id for which the far end is that of rare tokens."""
RESERVED = re.compile(r"^[<\[].*(unused|reserved|extra_id|dummy|madeup).*[>\]]$", re.IGNORECASE)
NO_UTF8 = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})

FOUND: Drawer[None, dict[int, Why]] = Drawer(most=1)


def untrained(weights: Weights) -> dict[int, Why]:
    """The ids that standard lists leave out, and why; made once per model."""
    return FOUND.get(weights.cache, None, partial(_recall, weights))


def _recall(weights: Weights) -> dict[int, Why]:
    kept = keep(weights, "set-aside", lambda: _as_tensors(_find(weights)))
    ids, reasons = kept["ids"].tolist(), kept["reasons"].tolist()
    return {i: WHY[reason] for i, reason in zip(ids, reasons, strict=True)}


def _as_tensors(aside: dict[int, Why]) -> dict[str, Tensor]:
    reasons = [WHY.index(why) for why in aside.values()]
    return {
        "ids": torch.tensor(list(aside), dtype=torch.long),
        "reasons": torch.tensor(reasons, dtype=torch.uint8),
    }


def _find(weights: Weights) -> dict[int, Why]:
    a, vocabulary = weights.architecture, weights.vocabulary
    rows = unembedding(weights)
    names: dict[int, Why] = dict.fromkeys(_pieces(vocabulary), "piece of a character")
    there = _ids(vocabulary.mask(len(rows)))
    names |= dict.fromkeys((i for i in there if is_reserved(vocabulary, i)), "reserved")
    names |= dict.fromkeys(_ids(far_end(rows, vocabulary.mask(len(rows)))), "never predicted")
    matrices = [rows]
    if a.embed != a.unembed and a.embed in weights.checkpoint.names():
        matrices.append(embedding(weights, a.embed))
    for matrix in matrices:
        references = cannot_occur(vocabulary, len(matrix))
        names |= dict.fromkeys(_ids(is_untouched(matrix, references)), "untouched")
    return {i: why for i, why in sorted(names.items()) if i in vocabulary and i < len(rows)}


def _ids(mask: Bool[Tensor, "e"]) -> list[int]:
    ids: list[int] = mask.nonzero()[:, 0].tolist()
    return ids


def _pieces(vocabulary: Vocabulary) -> list[int]:
    """Tokens of bytes that are no text by themselves."""
    return [i for i, data in enumerate(vocabulary.all_bytes) if data and not _is_text(data)]


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def is_reserved(vocabulary: Vocabulary, token: int) -> bool:
    """Whether a token's name says that it is kept for later."""
    return RESERVED.match(vocabulary.text(token)) is not None


def cannot_occur(vocabulary: Vocabulary, n: int) -> Int[Tensor, "some"]:
    """Ids that no text gives: rows without a token, special and reserved ones, impossible bytes."""
    there = vocabulary.mask(n)
    ids = (~there).nonzero()[:, 0].tolist()
    for i in there.nonzero()[:, 0].tolist():
        data = vocabulary.bytes(i)
        byte = len(data) == 1 and data[0] in NO_UTF8 if data else False
        if byte or vocabulary.is_special(i) or is_reserved(vocabulary, i):
            ids.append(i)
    step = max(1, len(ids) // REFERENCES)
    return torch.tensor(sorted(ids)[::step], dtype=torch.long)


def is_untouched(
    rows: Float[Tensor, "e width"], references: Int[Tensor, "some"]
) -> Bool[Tensor, "e"]:
    """The rows like those of tokens that cannot occur, if several of these are alike."""
    none = torch.zeros(len(rows), dtype=torch.bool)
    if len(references) < LEAST_ALIKE:
        return none
    mean = _mean(rows)
    known = _units(rows[references], mean)
    alike = known @ known.T > ALIKE
    most = int(alike.sum(1).argmax())
    if int(alike[most].sum()) < LEAST_ALIKE:
        return none
    middle = known[alike[most]].mean(0)
    middle = middle / middle.norm().clamp(min=1e-30)
    blocks = torch.split(rows, rows_at_once(rows.shape[1]))
    return join_rows(len(rows), (_units(block, mean) @ middle > ALIKE for block in blocks))


def _mean(
    rows: Float[Tensor, "e width"], there: Bool[Tensor, "e"] | None = None
) -> Float[Tensor, "width"]:
    """Of all rows, or of those that are there, some at a time: no copy in full precision."""
    total, step = at_least_float32(rows[:0]).sum(0), rows_at_once(rows.shape[1])
    for start in range(0, len(rows), step):
        block = at_least_float32(rows[start : start + step])
        total += block.sum(0) if there is None else there[start : start + step].to(block) @ block
    return total / max(1, len(rows) if there is None else int(there.sum()))


def _units(
    rows: Float[Tensor, "n width"], mean: Float[Tensor, "width"]
) -> Float[Tensor, "n width"]:
    centred = at_least_float32(rows) - mean
    units: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return units


def far_end(rows: Float[Tensor, "e width"], there: Bool[Tensor, "e"]) -> Bool[Tensor, "e"]:
    """The rows far out along the mean one, if it is rare tokens that lie there."""
    mean = _mean(rows, there)
    towards = mean / mean.norm().clamp(min=1e-30)
    blocks = torch.split(rows, rows_at_once(rows.shape[1]))
    along = join_rows(len(rows), (at_least_float32(block) @ towards for block in blocks))
    listed = along[there].double()
    ids = there.nonzero()[:, 0].double()
    rarer = torch.corrcoef(torch.stack([ids, listed]))[0, 1]
    if not float(rarer) > RARER:
        return torch.zeros(len(rows), dtype=torch.bool)
    low, high = (float(listed.quantile(q)) for q in (0.25, 0.75))
    far: Tensor = (along > high + FENCE * (high - low)) & there
    return far
