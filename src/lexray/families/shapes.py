"""Do the tensors have the sizes that the config speaks of? Slices of others would mean nothing."""

from __future__ import annotations

from collections.abc import Iterator

from lexray.checkpoint import Checkpoint
from lexray.errors import LexrayError
from lexray.families.registry import CORRECT
from lexray.families.spec import Architecture, Attention, Block, Experts, FeedForward, Linear

Shapes = dict[str, tuple[int, int]]
"""The inputs and outputs of each weight."""


def block_shapes(a: Architecture, block: Block) -> Shapes:
    """What the weights of a layer should be; fused ones end where their last part ends."""
    shapes: Shapes = {}
    for linear, inputs, outputs in (
        *_attention(a, block.attention),
        *(part for ff in _dense(block.ff) for part in _feed_forward(a, ff)),
    ):
        end = linear.start + outputs
        shapes[linear.weight] = inputs, max(end, shapes.get(linear.weight, (0, 0))[1])
    return shapes


def _attention(a: Architecture, x: Attention) -> Iterator[tuple[Linear, int, int]]:
    for heads in (x.q, x.k, x.v):
        yield heads.linear, a.d_model, max(heads.starts) + heads.d_head
    yield x.o, len(x.q.starts) * x.q.d_head, a.d_model


def _dense(ff: FeedForward | Experts) -> list[FeedForward]:
    if isinstance(ff, FeedForward):
        return [ff]
    return [*ff.experts, *([ff.shared] if ff.shared else [])]


def _feed_forward(a: Architecture, ff: FeedForward) -> Iterator[tuple[Linear, int, int]]:
    for linear in (ff.w_in, ff.w_gate):
        if linear is not None:
            yield linear, a.d_model, ff.d_mlp
    yield ff.w_out, ff.d_mlp, a.d_model


def check(linear: Linear, checkpoint: Checkpoint, shapes: Shapes) -> None:
    """Raises if a weight is not as large as it should be; each is looked at once."""
    if (expected := shapes.get(linear.weight)) is None:
        return
    stored = checkpoint.info(linear.weight).shape
    found = stored[-2:] if linear.in_first else stored[:-3:-1]
    if found != expected:
        raise LexrayError(
            f"{checkpoint.name}: {linear.weight} has {_words(found)}, where the config makes it "
            f"{_words(expected)}; {CORRECT}"
        )
    del shapes[linear.weight]


def _words(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) + " (in × out)"
