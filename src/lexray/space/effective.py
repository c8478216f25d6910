"""The effective embedding: each token as the blocks after the first one meet it.

    x = e + attn₀(e alone),   b = x + mlp₀(norm(x)),   column = norm(b),

with the reader's own norm, whose gain is folded into the reader. The first block itself reads
norm(e). Both are e × d matrices, made once per model and kept in half precision.
"""

from __future__ import annotations

from functools import partial

from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.families import Norm
from lexray.model.cache import Drawer
from lexray.model.kept import keep
from lexray.model.weights import Weights

Rows = Float[Tensor, "e d_model"]
MADE: Drawer[bool, tuple[Tensor | None, str]] = Drawer(most=2)


def effective_rows(weights: Weights, *, first: bool) -> tuple[Rows | None, str]:
    """What the first block, or what any later one reads of each token when it stands alone.

    None, and why, for a model whose first block cannot be run.
    """
    return MADE.get(weights.cache, first, partial(_make, weights, first))


def _make(weights: Weights, first: bool) -> tuple[Tensor | None, str]:
    name = "entering" if first else "effective"
    try:
        kept = keep(weights, name, lambda: {name: _norm_rows(weights, first)})
    except LexrayError as error:
        return None, f"no effective embedding: {error}"
    return kept[name], ""


def _norm_rows(weights: Weights, first: bool) -> Float[Tensor, "e d_model"]:
    norm = reader_norm(weights, first)

    def finish(states: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
        return (states if norm is None else norm.bare(states)).half()

    return weights.lone_states(entering=first, finish=finish)


def reader_norm(weights: Weights, first: bool) -> Norm | None:
    """The norm before a block's attention: the first block's, or that of the one after it.

    ModernBERT has none there in its first block. Its feed-forward has one, which only scales what
    a token reads: what it centres is folded into the weights.
    """
    blocks = weights.architecture.blocks
    block = blocks[0 if first or len(blocks) == 1 else 1]
    if block.attention.absent:
        return (block.mixer or block.ff).pre_norm
    return block.attention.pre_norm
