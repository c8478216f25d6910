"""Do the tensors have the sizes that the config speaks of? Slices of others would mean nothing."""

from __future__ import annotations

from collections.abc import Iterator

from lexray.checkpoint import Checkpoint, TensorInfo
from lexray.checkpoint.quant.find import hint_at
from lexray.errors import LexrayError
from lexray.families.linear import Latent, Linear
from lexray.families.registry import CORRECT
from lexray.families.spec import Architecture, Attention, Block, Experts, FeedForward, Mixer

Shapes = dict[str, tuple[int, int]]
"""The inputs and outputs of each weight."""


def block_shapes(a: Architecture, block: Block) -> Shapes:
    """What the weights of a layer should be; fused ones end where their last part ends."""
    shapes: Shapes = {}
    for linear, inputs, outputs in (
        *_attention(a, block.attention),
        *_mixer(a, block.mixer),
        *_mixer(a, block.laurel),
        *(_attention(a, block.cross) if block.cross and not block.merged else ()),
        *(part for ff in dense_parts(block.ff) for part in _feed_forward(a, ff)),
    ):
        end, rows = linear.start + outputs, linear.rows[0] if linear.rows else 0
        known = shapes.get(linear.weight, (0, 0))
        shapes[linear.weight] = max(rows + inputs, known[0]), max(end, known[1])
    return shapes


def _mixer(a: Architecture, x: Mixer | None) -> Iterator[tuple[Linear, int, int]]:
    if x is not None:
        for linear in x.inputs:
            yield linear, a.d_model, linear.size or 0
        yield x.w_out, x.d_inner, a.d_model


def _attention(a: Architecture, x: Attention) -> Iterator[tuple[Linear, int, int]]:
    if x.absent:
        return
    source = a.encoder if x.crosses and a.encoder is not None else a  # which may be wider
    for heads in (x.q, x.k, x.v, *([x.gate] if x.gate else [])):
        last, linear = max(heads.starts) + heads.d_head, heads.linear
        if not isinstance(linear, Latent):
            yield linear, (source if heads in (x.k, x.v) else a).d_model, last
            continue
        yield linear.down, a.d_model, linear.width
        own, _ = linear.parts(slice(last - heads.d_head, last))
        yield linear, linear.width, own.stop
        if linear.tail is not None:
            yield linear.tail, a.d_model, linear.tail.size or 0
    yield x.o, len(x.q.starts) * x.v.d_head, a.d_model


def dense_parts(ff: FeedForward | Experts) -> list[FeedForward]:
    """The feed-forwards of a layer: one, or all experts and the shared one."""
    if isinstance(ff, FeedForward):
        return [] if ff.absent else [ff]
    return [*ff.experts, *([ff.shared] if ff.shared else [])]


def _feed_forward(a: Architecture, ff: FeedForward) -> Iterator[tuple[Linear, int, int]]:
    for linear in (ff.w_in, ff.w_gate):
        if linear is not None:
            yield linear, a.d_model, linear.step * (ff.d_mlp - 1) + 1
    yield ff.w_out, ff.d_mlp, a.d_model


def check(
    linear: Linear, checkpoint: Checkpoint, shapes: Shapes, info: TensorInfo | None = None
) -> None:
    """Raises if a weight is not as large as it should be; each is looked at once."""
    if (expected := shapes.get(linear.weight)) is None:
        return
    info = info or checkpoint.info(linear.weight)
    refuse_packed(info, linear.weight, checkpoint)
    stored = info.shape[-2:] if linear.in_first else info.shape[:-3:-1]
    if stored != expected or len(info.shape) != (2 if linear.expert is None else 3):
        raise LexrayError(
            f"{checkpoint.name}: {linear.weight} has {_words(info.shape, linear)}, where the "
            f"config makes it {_words(expected, None)}; {CORRECT}"
        )
    del shapes[linear.weight]


def _words(shape: tuple[int, ...], linear: Linear | None) -> str:
    if linear is not None and len(shape) == 2 and not linear.in_first:
        shape = shape[::-1]
    return " × ".join(map(str, shape)) + (" (in × out)" if len(shape) == 2 else "")


SCALES = ("scale", "scales", "scale_inv", "SCB", "absmax", "qzeros", "quant_map")
"""How tensors end in which quantisers keep their scales."""


def refuse_packed(info: TensorInfo, name: str, checkpoint: Checkpoint) -> None:
    """Raises for whole numbers and 8-bit floats: without their scales they are not the weights."""
    if info.dtype.is_floating_point and info.dtype.itemsize > 1:
        return
    stem = name.rpartition(".")[0]
    beside = (n for n in checkpoint.names() if n.startswith(stem) and n.endswith(SCALES))
    scale = next(beside, None)
    why = f"its scales seem to be in {scale}" if scale else "without scales it means nothing"
    what = hint_at(checkpoint.names()) or "take the original weights, or a GGUF file of the model"
    raise LexrayError(
        f"{checkpoint.name}: {name} is stored as {str(info.dtype).removeprefix('torch.')}, as "
        f"quantised weights are ({why}), but nothing says how; {what}"
    )
