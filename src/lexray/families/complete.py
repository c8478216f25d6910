"""Does a checkpoint have every tensor that its config speaks of, and each in its size?

Looked at when a model is opened, from names and headers alone: a config is a few bytes that may
claim a thousand layers, and a slice of a tensor of another size would mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from lexray.checkpoint import Checkpoint
from lexray.checkpoint.quant.find import hint_at
from lexray.errors import LexrayError
from lexray.families.linear import Latent, Linear, Norm
from lexray.families.registry import CORRECT
from lexray.families.relative import DistanceBias
from lexray.families.shapes import block_shapes, check, refuse_packed
from lexray.families.spec import Architecture, Attention, Block, Experts, LayerInputs, QKNorm
from lexray.families.walk import linears

Vectors = Iterator[tuple[str | None, int]]
"""Names of gains and biases, and how many values each should have."""


INSIDE = ("source_norm", "router_norm", "own_norm", "shared_norm")
"""Norms that only some sub-blocks have."""


def check_complete(a: Architecture, checkpoint: Checkpoint) -> None:
    """Raises for what is missing or of another size. The output embedding may be missing: base
    models have none, and say so when it is asked for."""
    if a.encoder is not None:
        check_complete(a.encoder, checkpoint)
    _check_ends(a, checkpoint)
    names = checkpoint.names()
    for block in a.blocks:
        shapes = block_shapes(a, block)
        expected = dict(shapes)
        for linear in linears(block):  # 10⁵ of them in a large mixture
            if linear.weight not in names:
                raise _missing(linear.weight, checkpoint, f"the config's {len(a.blocks)} layers")
            if linear.weight in shapes and (info := checkpoint.peek(linear.weight)) is not None:
                check(linear, checkpoint, shapes, info)
            if linear.bias is not None and linear.weight in expected:
                _check_vector(linear.bias, expected[linear.weight][1], checkpoint, linear.expert)
        for name, size in _norms(a, block):
            _check_vector(name, size, checkpoint)
        if isinstance(block.ff, Experts):
            _check_experts(a, block.ff, checkpoint)
        _check_distances(a, block.attention, checkpoint)


def _check_ends(a: Architecture, checkpoint: Checkpoint) -> None:
    """Embeddings, positions, and what stands before the first and after the last layer."""
    inner, outer = (_inner_width(p, a, checkpoint) for p in (a.project_in, a.project_out))
    _check_matrix(a.embed, inner, checkpoint)
    if a.unembed in checkpoint.names():
        _check_matrix(a.unembed, outer, checkpoint)
        rows = checkpoint.peek(a.unembed)
        _check_vector(a.unembed_bias, rows.shape[0] if rows else None, checkpoint)
    entering = inner if a.projects_last else a.d_model
    for name in (a.positions, a.token_types):
        if name is not None:
            _check_matrix(name, entering, checkpoint)
    head = a.head
    norms = (
        (a.embed_norm, entering),
        (a.final_norm, a.d_model),
        (head.norm if head else None, outer),
    )
    for norm, width in norms:
        for vector in _of(norm, width):
            _check_vector(*vector, checkpoint)
    if head is not None:
        _check_matrix(head.dense.weight, a.d_model, checkpoint, outer)
        _check_vector(head.dense.bias, outer, checkpoint)
    if a.projects_last and a.project_in is not None:
        _check_vector(a.project_in.bias, a.d_model, checkpoint)
    if a.layer_inputs is not None:
        _check_layer_inputs(a, a.layer_inputs, checkpoint)


def _check_layer_inputs(a: Architecture, x: LayerInputs, checkpoint: Checkpoint) -> None:
    whole = len(a.blocks) * x.width
    _check_matrix(x.table, whole, checkpoint)
    _check_matrix(x.project.weight, a.d_model, checkpoint, whole)
    for vector in _of(x.norm, x.width):
        _check_vector(*vector, checkpoint)


def _inner_width(project: Linear | None, a: Architecture, checkpoint: Checkpoint) -> int:
    """The embedding's own width: the model's, or what a projection makes of it."""
    if project is None:
        return a.d_model
    if project.weight not in checkpoint.names():
        raise _missing(project.weight, checkpoint, "the config's projection of the embedding")
    info = checkpoint.peek(project.weight)
    if info is not None and (len(info.shape) != 2 or a.d_model not in info.shape):
        raise _wrong(project.weight, info.shape, f"{a.d_model} on one side", checkpoint)
    if info is None:
        return a.d_model
    return info.shape[0] if info.shape[1] == a.d_model else info.shape[1]


def _norms(a: Architecture, block: Block) -> Vectors:
    x, ff = block.attention, block.ff
    for part in (x, block.cross, block.mixer, block.laurel, ff, getattr(ff, "shared", None)):
        for name in ("pre_norm", "post_norm", "sum_norm", *INSIDE):
            if part is not block.cross or name != "source_norm":  # the encoder's own
                yield from _of(getattr(part, name, None), a.d_model)
    yield from _of(block.factor, 1)
    for heads in (x.q, x.k, x.v):
        if isinstance(heads.linear, Latent):
            yield from _of(heads.linear.norm, heads.linear.width)
    yield x.sinks, len(x.q.starts)
    yield from _qk_norms(x)
    if block.cross is not None:
        yield from _qk_norms(block.cross)


def _qk_norms(x: Attention) -> Vectors:
    for norms, heads in ((x.q_norm, x.q), (x.k_norm, x.k), (x.v_norm, x.v)):
        if norms is None:
            continue
        yield from _of(norms.joint, len(heads.starts) * heads.d_head)
        yield from _head_norms(norms, heads.d_head).items()


def _head_norms(norms: QKNorm, d_head: int) -> dict[str, int]:
    """Each tensor once: all heads may share one, or each have a part of it."""
    sizes: dict[str, int] = {}
    for norm in norms.heads:
        last = 1 if norm.part is None else norm.part[1]
        for name in (norm.gain, norm.bias):
            if name is not None:
                sizes[name] = max(sizes.get(name, 0), last * d_head)
    return sizes


def _of(norm: Norm | None, size: int) -> Vectors:
    if norm is not None and norm.part is None:
        yield norm.gain, size
        yield norm.bias, size


def _check_distances(a: Architecture, x: Attention, checkpoint: Checkpoint) -> None:
    if isinstance(x.relative, DistanceBias):
        _check_matrix(x.relative.table, len(x.q.starts), checkpoint, x.relative.buckets)
    elif x.relative is not None:
        _check_matrix(x.relative.table, a.d_model, checkpoint)
        for vector in _of(x.relative.norm, a.d_model):
            _check_vector(*vector, checkpoint)


def _check_experts(a: Architecture, ff: Experts, checkpoint: Checkpoint) -> None:
    _check_matrix(ff.router.weight, a.d_model, checkpoint, len(ff.experts))
    _check_vector(ff.routing.each, len(ff.experts), checkpoint)
    if ff.shared_gate is not None:
        _check_matrix(ff.shared_gate.weight, a.d_model, checkpoint, 1)
    stack = ff.experts[-1].w_in
    info = checkpoint.peek(stack.weight) if stack.expert is not None else None
    if info is not None and info.shape[0] != len(ff.experts):
        raise _wrong(stack.weight, info.shape, f"{len(ff.experts)} experts", checkpoint)


def _check_matrix(name: str, width: int, checkpoint: Checkpoint, rows: int | None = None) -> None:
    """A matrix whose rows have this width, as embeddings have."""
    if name not in checkpoint.names():
        raise _missing(name, checkpoint, "the config's model")
    if (info := checkpoint.peek(name)) is None:
        return
    refuse_packed(info, name, checkpoint)
    sound = len(info.shape) == 2 and info.shape[1] == width and info.shape[0] > 0
    if not sound or rows not in (None, info.shape[0]):
        count = "rows" if rows is None else str(rows)
        raise _wrong(name, info.shape, f"{count} × {width}", checkpoint)


def _check_vector(
    name: str | None, size: int | None, checkpoint: Checkpoint, expert: int | None = None
) -> None:
    if name is None:
        return
    if name not in checkpoint.names():
        raise _missing(name, checkpoint, "the config's model")
    if (info := checkpoint.peek(name)) is None or size is None:
        return
    refuse_packed(info, name, checkpoint)
    shape = info.shape if expert is None else info.shape[1:]
    if prod(shape) != size or len(shape) > 2:
        raise _wrong(name, info.shape, f"{size} values", checkpoint)


def _missing(name: str, checkpoint: Checkpoint, what: str) -> LexrayError:
    why = hint_at(checkpoint.names()) or (
        f"the files are incomplete, or they belong to another config; {CORRECT}"
    )
    return LexrayError(f"{checkpoint.missing(name)}, but {what} need it: {why}")


def _wrong(
    name: str, stored: tuple[int, ...], expected: str, checkpoint: Checkpoint
) -> LexrayError:
    shape = " × ".join(map(str, stored)) or "no axes"
    return LexrayError(
        f"{checkpoint.name}: {name} has {shape}, where the config makes it {expected}; {CORRECT}"
    )
