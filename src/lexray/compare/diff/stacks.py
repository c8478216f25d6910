"""Where a model keeps the vectors that a comparison looks at, group by group.

A stack is some vectors that lie together: a layer's keys, a head's queries, a norm's gain. Two
models are compared stack by stack, matched by address, whatever their tensors are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.families.linear import ALL, Heads, Linear, Norm
from lexray.families.shapes import block_shapes, check
from lexray.families.spec import QKNorm
from lexray.families.walk import linears
from lexray.model import fold
from lexray.model.feedforward import Mixture
from lexray.model.groups import AGAIN, layer_groups
from lexray.model.layer import Layer
from lexray.model.model import Model
from lexray.model.weights import Weights
from lexray.scratch import is_held, rows_at_once
from lexray.space.kinds import GROUPS as NAMES
from lexray.space.kinds import Kind

DiffGroup = Literal[
    "keys",
    "gates",
    "values",
    "Q",
    "K",
    "V",
    "O",
    "VO",
    "QK",
    "router",
    "norms",
    "biases",
    "embedding",
    "unembedding",
    "positions",
    "classifier",
    "other",
]
GROUPS: tuple[DiffGroup, ...] = get_args(DiffGroup)
CIRCUITS: tuple[Literal["VO", "QK"], ...] = ("VO", "QK")
SUBHEADS: tuple[Literal["Q", "K", "V", "O"], ...] = ("Q", "K", "V", "O")
VECTORS: dict[DiffGroup, Kind] = {group: NAMES[group] for group in GROUPS if group in NAMES}
"""The groups of vectors that `model.groups` finds, and their kinds."""
Round = Callable[[Tensor], Tensor]
"""What is done to a tensor as it was stored, before norms are folded in."""


@dataclass(frozen=True)
class Stack:
    """Some vectors of one group, and how they are read."""

    model: Weights
    group: DiffGroup
    layer: int | None
    name: str
    """By which the stack is found in the other model: `L3H7.Q`, `L3.attn_norm`."""
    kind: Kind | None
    """As what its vectors are read; None if they do not live in the residual stream."""
    tensors: tuple[str, ...]
    """The tensors that its vectors come from."""
    stored: Callable[[], Tensor]
    """Its vectors as the checkpoint has them, (n, width)."""
    norm: Norm | None = None
    """What is folded in, in a folded view."""
    writes: bool = False
    """Folded like a writer, not like a reader."""
    linear: Linear | None = None
    at: slice | None = None
    """Which inputs (of writers) or outputs (of readers) of `linear` they are; None for all."""
    address_of: Callable[[int], str] | None = None
    n: int = 1
    """How many vectors it has."""

    def address(self, i: int) -> str:
        return self.name if self.address_of is None else self.address_of(i)

    @property
    def missing(self) -> list[str]:
        """Those of its tensors that the checkpoint lacks."""
        names = self.model.checkpoint.names()
        return [name for name in self.tensors if name not in names]

    def read(self, rounded: Round) -> Float[Tensor, "n width"]:
        """The vectors under the model's view, in float32 or better."""
        X = fold.at_least_float32(rounded(self.model.place(self.stored())))
        return self.fold(X)

    def parts(self) -> list[Stack]:
        """The same vectors in several stacks, if they are too many to be held; in one, where
        reading some of them reads much of a tensor again."""
        linear, checkpoint = self.linear, self.model.checkpoint
        width = 4 * self.model.d_model
        if linear is None or self.kind is None or is_held(self.n * width) or checkpoint.remote:
            return [self]
        first, step = (self.at or ALL).start or 0, rows_at_once(width)
        slices = [slice(first + i, first + min(i + step, self.n)) for i in range(0, self.n, step)]
        costs = [linear.cost(checkpoint, **_kept(self.writes, at)) for at in slices]
        if sum(costs) > AGAIN * linear.cost(checkpoint, **_kept(self.writes, self.at or ALL)):
            return [self]
        about = self.model, self.group, self.layer, self.name, self.kind, linear
        return [_linear(*about, at, self.norm) for at in slices]

    def fold(self, X: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        """Rows with the norm folded in, if the view is folded."""
        if self.norm is None or not self.model.options.folded:
            return X
        checkpoint = self.model.checkpoint
        if self.writes:
            return fold.writer(X, self.norm, checkpoint)
        return fold.reader(X.T, self.norm, checkpoint).T


def layer_stacks(model: Model, index: int) -> list[Stack]:
    """All stacks of a layer."""
    layer = model.layers[index]
    _check_shapes(model, index)
    return [*_vectors(layer), *_routers(layer), *_norms(layer), *_biases(layer)]


def model_stacks(model: Model) -> list[Stack]:
    """The small stacks outside the layers: norms, biases and positions."""
    a, checkpoint = model.architecture, model.checkpoint
    norms = {
        "embed_norm": a.embed_norm,
        "final_norm": a.final_norm,
        "head_norm": a.head.norm if a.head else None,
    }
    stacks = [stack for name, norm in norms.items() for stack in _norm(model, None, name, norm)]
    if a.unembed_bias is not None:
        stacks.append(_row(model, "biases", None, "b_U", None, a.unembed_bias))
    for name, tensor, offset in (
        ("W_pos", a.positions, a.position_offset),
        ("W_type", a.token_types, 0),
    ):
        if tensor is not None:
            rows = slice(offset or None, None)
            n = checkpoint.info(tensor).shape[0] - offset if tensor in checkpoint.names() else 0
            stacks.append(
                Stack(
                    *(model, "positions", None, name, "bias", (tensor,)),
                    partial(checkpoint.read, tensor, rows),
                    address_of=lambda i, name=name: f"{name}[{i}]",  # type: ignore[misc]
                    n=n,
                )
            )
    dense = a.head.dense if a.head else None
    for name, linear in (
        ("W_head", dense),
        ("project_in", a.project_in),
        ("project_out", a.project_out),
    ):
        if linear is not None:
            stacks.append(_linear(model, "other", None, name, None, linear, ALL, None))
    return stacks


# ---------------------------------------------------------------------- the parts of a layer


def _vectors(layer: Layer) -> Iterator[Stack]:
    """The keys, gates and values of each feed-forward, and the subheads of each head."""
    for group, kind in VECTORS.items():
        crossing = layer.cross_heads if kind in ("K", "V") else ()
        own = layer_groups(layer.weights, layer.index, kind)
        for part in (*own, *(head.group(kind) for head in crossing)):
            at, name = slice(part.start, part.start + part.n), f"{part.owner}.{kind}"
            stack = _linear(
                layer.weights, group, layer.index, name, kind, part.linear, at, part.norm
            )
            yield replace(stack, address_of=part.address_of)


def _routers(layer: Layer) -> Iterator[Stack]:
    """What chooses among experts: a direction for each."""
    if not isinstance(layer.ff, Mixture):
        return
    spec, stem = layer.ff.spec, str(layer.address)
    router = partial(_linear, layer.weights, "router", layer.index)
    each = router(f"{stem}.router", "key", spec.router, ALL, spec.pre_norm)
    yield replace(each, address_of=lambda e: f"{stem}E{e}.router")
    if spec.shared_gate is not None:
        yield router(f"{stem}S.router", "key", spec.shared_gate, ALL, spec.pre_norm)


def _linear(
    model: Weights,
    group: DiffGroup,
    layer: int | None,
    name: str,
    kind: Kind | None,
    linear: Linear,
    at: slice,
    norm: Norm | None,
) -> Stack:
    """The rows of a matrix that writes (values, O), or the columns of one that reads."""
    writes = kind in ("value", "O")
    checkpoint = model.checkpoint

    def stored() -> Tensor:
        W = linear.read(checkpoint, **_kept(writes, at))
        return W if writes else W.T

    gain = (norm.gain,) if norm is not None and norm.gain and model.options.folded else ()
    return Stack(
        *(model, group, layer, name, kind, (linear.weight, *gain), stored, norm, writes),
        linear=linear,
        at=at,
        address_of=lambda i: f"{name}[{i}]",
        n=_number(model, linear, at, writes),
    )


def _kept(writes: bool, at: slice) -> dict[str, slice]:
    """What of a matrix some vectors are."""
    return {"inputs": at} if writes else {"outputs": at}


def _number(model: Weights, linear: Linear, at: slice, writes: bool) -> int:
    """How many inputs (of writers) or outputs (of readers) are meant."""
    if at != ALL:
        return int(at.stop - at.start)
    if linear.size is not None and not writes:
        return linear.size
    if linear.weight not in model.checkpoint.names():
        return 0
    shape = model.checkpoint.info(linear.weight).shape[-2:]
    return shape[0 if writes == linear.in_first else 1]


def _norms(layer: Layer) -> Iterator[Stack]:
    """The first norm of a sub-block has the address that `lexray.address` gives it."""
    spec = layer.spec
    for part, block in (("attn", spec.attention), ("cross", spec.cross), ("mlp", spec.ff)):
        if block is None:
            continue
        norms = {"pre": block.pre_norm, "post": block.post_norm, "sum": block.sum_norm}
        present = {where: norm for where, norm in norms.items() if norm is not None}
        for i, (where, norm) in enumerate(present.items()):
            label = f"{part}_{where}_norm" if i else f"{part}_norm"
            yield from _norm(layer.weights, layer.index, f"{layer.address}.{label}", norm)
    for side, joined in (("Q", spec.attention.q_norm), ("K", spec.attention.k_norm)):
        for i, norm in enumerate(dict.fromkeys(_each(joined))):
            name = f"{layer.address}.{side}_norm" + (f"[{i}]" if i else "")
            yield from _norm(layer.weights, layer.index, name, norm, kind=None)


def _each(norm: QKNorm | None) -> tuple[Norm, ...]:
    if norm is None:
        return ()
    return norm.heads if norm.joint is None else (norm.joint,)


def _norm(
    model: Weights, layer: int | None, name: str, norm: Norm | None, kind: Kind | None = "norm"
) -> Iterator[Stack]:
    if norm is None:
        return
    for tensor, ending, read in (
        (norm.gain, "", norm.read_gain),
        (norm.bias, "_bias", norm.read_bias),
    ):
        if tensor is not None:
            yield Stack(
                model, "norms", layer, name + ending, kind, (tensor,), partial(_one, model, read)
            )


def _one(model: Weights, read: Callable[[Any], Tensor | None]) -> Tensor:
    tensor = read(model.checkpoint)
    assert tensor is not None
    return tensor[None]


def _biases(layer: Layer) -> Iterator[Stack]:
    model, stem, spec = layer.weights, str(layer.address), layer.spec.attention
    for side, heads in (("Q", spec.q), ("K", spec.k), ("V", spec.v)):
        bias = heads.linear.bias
        if bias is not None:
            yield Stack(
                *(model, "biases", layer.index, f"{stem}.b_{side}", None, (bias,)),
                partial(_head_biases, model, heads),
            )
    others: list[tuple[str, Linear | None, Kind | None, Norm | None]] = [
        (f"{stem}.b_O", spec.o, "bias", spec.post_norm)
    ]
    for ff in layer.feed_forwards:
        others += [
            (f"{ff.address}.b_in", ff.spec.w_in, None, None),
            (f"{ff.address}.b_gate", ff.spec.w_gate, None, None),
            (f"{ff.address}.b_out", ff.spec.w_out, "bias", ff.norms.post_norm),
        ]
    for name, linear, kind, norm in others:
        if linear is not None and linear.bias is not None:
            yield Stack(
                *(model, "biases", layer.index, name, kind, (linear.bias,)),
                partial(_one, model, linear.read_bias),
                norm=norm,
                writes=True,
            )


def _head_biases(model: Weights, heads: Heads) -> Tensor:
    biases = [heads.read_bias(model.checkpoint, i) for i in range(len(heads.starts))]
    return torch.cat([bias for bias in biases if bias is not None])[None]


def _row(
    model: Model, group: DiffGroup, layer: int | None, name: str, kind: Kind | None, tensor: str
) -> Stack:
    return Stack(
        *(model, group, layer, name, kind, (tensor,)),
        lambda: model.tensor(tensor).flatten()[None],
    )


def _check_shapes(model: Model, layer: int) -> None:
    """Raises if a weight of the layer is not as large as the config says."""
    block = model.architecture.blocks[layer]
    shapes = block_shapes(model.architecture, block)
    names = model.checkpoint.names()
    for linear in linears(block):
        if linear.weight in names:
            check(linear, model.checkpoint, shapes)


def choose_groups(groups: tuple[str, ...]) -> tuple[DiffGroup, ...]:
    """The groups that were asked for; all if none were."""
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        raise LexrayError(
            f"no group {', '.join(map(repr, unknown))} of parameters; there are {', '.join(GROUPS)}"
        )
    return tuple(group for group in GROUPS if not groups or group in groups)
