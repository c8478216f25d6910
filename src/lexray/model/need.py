"""What a sweep over all heads holds at most, from shapes alone.

Rows of the embedding, in the form in which they are held; by the standard view what makes columns
comparable, and the first block, which is run once; the factors of as many heads as are multiplied
together; and what a search makes of one head's, on each core. What lies in files counts as nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from lexray.checkpoint.safetensors import MAPPED_FROM
from lexray.families import Attention
from lexray.families.walk import tensor_names
from lexray.model.sweep import heads_together
from lexray.model.weights import Weights
from lexray.scratch import PART, is_held
from lexray.space.side import NUMBERS_AT_ONCE, ROWS_AT_ONCE
from lexray.space.space import UPCAST_BELOW

TOKEN = 400
"""Bytes of a token's name and what is known of it."""
SPREADS = 7
"""Moments that are kept: of Q, K, V and O, and of those of the first layer that read."""
COPIES = 4
"""What a search holds of a head, in factors: both sorted, and in another basis."""
TILES = 2**24
"""Bytes of tiles and of what is found in them."""
STATES = 2**21
"""Numbers of the widest thing that the first block makes of tokens at once,"""
STEPS = 4
"""and how many things of that width exist together."""


def plan_memory(weights: Weights, attentions: Sequence[Attention], e: int, cores: int) -> int:
    """Bytes beside Python and torch, mapped and temporary files not among them."""
    a, d = weights.architecture, weights.d_model
    heads = max(
        (_count_head_bytes(spec, e, cores, weights.device) for spec in attentions), default=0
    )
    block = _count_block_bytes(d)
    names = [a.unembed] if a.tied else [a.embed, a.unembed]
    rows = sum(_count_row_bytes(weights, name) for name in names)
    if weights.options.reading == "effective":
        rows = _count_row_bytes(weights, a.unembed) + 2 * _held(e * d, 2)
    made = 0
    if weights.options.standardised:
        moments = 8 * d * d
        rows += SPREADS * _filed(moments) + 4 * e * (SPREADS + 1)
        made = max(6 * block, _count_first_block_bytes(weights))
    return e * TOKEN + rows + heads + made + block


def _held(numbers: int, itemsize: int) -> int:
    """Bytes of an embedding, as `EmbeddingSpace` holds it."""
    if numbers < UPCAST_BELOW:
        return max(4, itemsize) * numbers
    return 0 if numbers * itemsize >= MAPPED_FROM else numbers * itemsize


def _count_row_bytes(weights: Weights, name: str) -> int:
    """The same, with the tensor as it was read, before it is converted; a quantised one is made in
    a file."""
    checkpoint = weights.checkpoint
    if name not in checkpoint.names():
        return 0
    info = checkpoint.info(name)
    numbers, size = prod(info.shape), info.dtype.itemsize
    if checkpoint.size(name) < numbers * size:
        return _filed(numbers * size)
    return _held(numbers, size) + (numbers * size if size < 4 and numbers < UPCAST_BELOW else 0)


def _filed(size: int) -> int:
    """Bytes that are held of so many."""
    return size if is_held(size) else 0


def _count_block_bytes(d: int) -> int:
    """Some rows of an embedding in float32."""
    return 4 * min(ROWS_AT_ONCE * d, max(d, NUMBERS_AT_ONCE))


def _count_head_bytes(spec: Attention, e: int, cores: int, device: torch.device) -> int:
    """The factors of heads that are multiplied together, those of the heads before that are still
    searched, and their searches."""
    queries, keys, values = spec.q, spec.k, spec.v
    widest = max(queries.d_head, values.d_head)
    n = min(len(queries.starts), heads_together(e, queries.d_head, device))
    shared = -(-n * len(keys.starts) // max(1, len(queries.starts)))
    factors = (n + shared) * sum(_filed(4 * e * h.d_head) for h in (queries, values))
    product = 8 * ROWS_AT_ONCE * n * widest
    each = max(_filed(4 * e * widest), min(PART, 4 * e * widest))
    searched = min(cores, 2 * n)
    before = 2 * searched * _filed(4 * e * widest) if cores > 1 else 0
    return factors + before + max(product, searched * (COPIES * each + TILES))


def _count_first_block_bytes(weights: Weights) -> int:
    """Its weights in float32, as far as they are held, and what it makes of tokens."""
    block, checkpoint = weights.architecture.blocks[0], weights.checkpoint
    shapes = [checkpoint.info(n).shape for n in tensor_names(block) if n in checkpoint.names()]
    widest = max((max(shape[-2:]) for shape in shapes if shape), default=1)
    states = 4 * min(ROWS_AT_ONCE * widest, max(widest, STATES))
    small = sum(_filed(4 * prod(shape)) for shape in shapes)
    return _filed(small) + STEPS * states
