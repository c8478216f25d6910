"""Where a model keeps the vectors that a comparison looks at, group by group.

A place is one stack of vectors: a layer's keys, a head's queries, a norm's gain. Two models are
compared place by place, matched by address, whatever their tensors are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.families.shapes import block_shapes, check
from lexray.families.spec import ALL, Architecture, Heads, Linear, Norm, QKNorm
from lexray.model import fold
from lexray.model.feedforward import FeedForward, Mixture
from lexray.model.layer import Layer
from lexray.model.weights import Weights
from lexray.space.kinds import Kind

if TYPE_CHECKING:
    from lexray.model.model import Model

Group = Literal[
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
GROUPS: tuple[Group, ...] = get_args(Group)
CIRCUITS: tuple[Literal["VO", "QK"], ...] = ("VO", "QK")
Round = Callable[[Tensor], Tensor]
"""What is done to a tensor as it was stored, before norms are folded in."""


@dataclass(frozen=True)
class Place:
    """Some vectors of one group, and how they are read."""

    model: Weights
    group: Group
    layer: int | None
    name: str
    """By which the place is found in the other model: `L3H7.Q`, `L3.attn_norm`."""
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
        return self.folded(X)

    def folded(self, X: Float[Tensor, "n width"]) -> Float[Tensor, "n width"]:
        """Rows with the norm folded in, if the view is folded."""
        if self.norm is None or not self.model.options.folded:
            return X
        checkpoint = self.model.checkpoint
        if self.writes:
            return fold.writer(X, self.norm, checkpoint)
        return fold.reader(X.T, self.norm, checkpoint).T


def layer_places(model: Model, index: int) -> list[Place]:
    """All places of a layer."""
    layer = model.layers[index]
    _check_shapes(model, index)
    return [*_feed_forward(layer), *_attention(layer), *_norms(layer), *_biases(layer)]


def model_places(model: Model) -> list[Place]:
    """The small places outside the layers: norms, biases and positions."""
    a, checkpoint = model.architecture, model.checkpoint
    norms = {
        "embed_norm": a.embed_norm,
        "final_norm": a.final_norm,
        "head_norm": a.head.norm if a.head else None,
    }
    places = [place for name, norm in norms.items() for place in _norm(model, None, name, norm)]
    if a.unembed_bias is not None:
        places.append(_row(model, "biases", None, "b_U", None, a.unembed_bias))
    for name, tensor, offset in (
        ("W_pos", a.positions, a.position_offset),
        ("W_type", a.token_types, 0),
    ):
        if tensor is not None:
            rows = slice(offset or None, None)
            n = checkpoint.info(tensor).shape[0] - offset if tensor in checkpoint.names() else 0
            places.append(
                Place(
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
            places.append(_linear(model, "other", None, name, None, linear, ALL, None))
    return places


def described(a: Architecture) -> set[str]:
    """Every tensor that a family's description names."""
    return set(_names(a))


def _names(x: Any) -> Iterator[str]:
    if isinstance(x, Linear):
        yield from filter(None, (x.weight, x.bias))
    elif isinstance(x, Norm):
        yield from filter(None, (x.gain, x.bias))
    elif isinstance(x, tuple):
        for item in x:
            yield from _names(item)
    elif is_dataclass(x):
        if isinstance(x, Architecture):
            own = (x.embed, x.unembed, x.unembed_bias, x.positions, x.token_types)
            yield from filter(None, own)
        for field in fields(x):
            yield from _names(getattr(x, field.name))


# ---------------------------------------------------------------------- the parts of a layer


def _feed_forward(layer: Layer) -> Iterator[Place]:
    model, index = layer.weights, layer.index
    for ff in layer.feed_forwards:
        linears: dict[tuple[Group, Kind], Linear | None] = {
            ("keys", "key"): ff.spec.w_in,
            ("gates", "gate"): ff.spec.w_gate,
            ("values", "value"): ff.spec.w_out,
        }
        for (group, kind), linear in linears.items():
            if linear is not None:
                norm = ff.norms.post_norm if kind == "value" else ff.norms.pre_norm
                name = f"{ff.address}.{kind}"
                place = _linear(model, group, index, name, kind, linear, ALL, norm)
                yield replace(place, address_of=partial(_neuron, ff, kind))
    if isinstance(layer.ff, Mixture):
        spec, stem = layer.ff.spec, str(layer.address)
        router = _linear(
            model, "router", index, f"{stem}.router", "key", spec.router, ALL, spec.pre_norm
        )
        yield replace(router, address_of=lambda e: f"{stem}E{e}.router")
        if spec.shared_gate is not None:
            name = f"{stem}S.router"
            yield _linear(model, "router", index, name, "key", spec.shared_gate, ALL, spec.pre_norm)


def _neuron(ff: FeedForward, kind: str, i: int) -> str:
    return f"{replace(ff.address, neuron=i)}.{kind}"


def _attention(layer: Layer) -> Iterator[Place]:
    model, index, spec = layer.weights, layer.index, layer.spec.attention
    shared = len(spec.q.starts) // len(spec.k.starts)
    sides: tuple[tuple[Literal["Q", "K", "V"], Heads, int], ...] = (
        ("Q", spec.q, 1),
        ("K", spec.k, shared),
        ("V", spec.v, shared),
    )
    for side, heads, step in sides:
        for i in range(len(heads.starts)):
            yield _subheads(
                model, index, i * step, side, heads.linear, heads.outputs(i), spec.pre_norm
            )
    for i in range(len(spec.q.starts)):
        rows = slice(i * spec.q.d_head, (i + 1) * spec.q.d_head)
        yield _subheads(model, index, i, "O", spec.o, rows, spec.post_norm)


def _subheads(
    model: Weights,
    layer: int,
    head: int,
    side: Literal["Q", "K", "V", "O"],
    linear: Linear,
    at: slice,
    norm: Norm | None,
) -> Place:
    def address_of(i: int) -> str:
        return str(Address(layer, head=head, subhead=side, index=i))

    name = f"L{layer}H{head}.{side}"
    place = _linear(model, side, layer, name, side, linear, at, norm)
    return replace(place, address_of=address_of)


def _linear(
    model: Weights,
    group: Group,
    layer: int | None,
    name: str,
    kind: Kind | None,
    linear: Linear,
    at: slice,
    norm: Norm | None,
) -> Place:
    """The rows of a matrix that writes (values, O), or the columns of one that reads."""
    writes = kind in ("value", "O")
    checkpoint = model.checkpoint

    def stored() -> Tensor:
        if writes:
            return linear.read(checkpoint, inputs=at)
        return linear.read(checkpoint, outputs=at).T

    gain = (norm.gain,) if norm is not None and norm.gain and model.options.folded else ()
    return Place(
        *(model, group, layer, name, kind, (linear.weight, *gain), stored, norm, writes),
        linear=linear,
        at=at,
        address_of=lambda i: f"{name}[{i}]",
        n=_number(model, linear, at, writes),
    )


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


def _norms(layer: Layer) -> Iterator[Place]:
    """The first norm of a sub-block has the address that `lexray.address` gives it."""
    spec = layer.spec
    for part, block in (("attn", spec.attention), ("mlp", spec.ff)):
        found = {"pre": block.pre_norm, "post": block.post_norm, "sum": block.sum_norm}
        present = {place: norm for place, norm in found.items() if norm is not None}
        for i, (place, norm) in enumerate(present.items()):
            label = f"{part}_{place}_norm" if i else f"{part}_norm"
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
) -> Iterator[Place]:
    if norm is None:
        return
    for tensor, ending, read in (
        (norm.gain, "", norm.read_gain),
        (norm.bias, "_bias", norm.read_bias),
    ):
        if tensor is not None:
            yield Place(
                model, "norms", layer, name + ending, kind, (tensor,), partial(_one, model, read)
            )


def _one(model: Weights, read: Callable[[Any], Tensor | None]) -> Tensor:
    found = read(model.checkpoint)
    assert found is not None
    return found[None]


def _biases(layer: Layer) -> Iterator[Place]:
    model, stem, spec = layer.weights, str(layer.address), layer.spec.attention
    for side, heads in (("Q", spec.q), ("K", spec.k), ("V", spec.v)):
        bias = heads.linear.bias
        if bias is not None:
            yield Place(
                *(model, "biases", layer.index, f"{stem}.b_{side}", None, (bias,)),
                partial(_head_biases, model, heads),
            )
    linears: list[tuple[str, Linear | None, Kind | None, Norm | None]] = [
        (f"{stem}.b_O", spec.o, "bias", spec.post_norm)
    ]
    for ff in layer.feed_forwards:
        linears += [
            (f"{ff.address}.b_in", ff.spec.w_in, None, None),
            (f"{ff.address}.b_gate", ff.spec.w_gate, None, None),
            (f"{ff.address}.b_out", ff.spec.w_out, "bias", ff.norms.post_norm),
        ]
    for name, linear, kind, norm in linears:
        if linear is not None and linear.bias is not None:
            yield Place(
                *(model, "biases", layer.index, name, kind, (linear.bias,)),
                partial(_one, model, linear.read_bias),
                norm=norm,
                writes=True,
            )


def _head_biases(model: Weights, heads: Heads) -> Tensor:
    found = [heads.read_bias(model.checkpoint, i) for i in range(len(heads.starts))]
    return torch.cat([bias for bias in found if bias is not None])[None]


def _row(
    model: Model, group: Group, layer: int | None, name: str, kind: Kind | None, tensor: str
) -> Place:
    return Place(
        *(model, group, layer, name, kind, (tensor,)),
        lambda: model.checkpoint.read(tensor).flatten()[None],
    )


def _check_shapes(model: Model, layer: int) -> None:
    """Raises if a weight of the layer is not as large as the config says."""
    block = model.architecture.blocks[layer]
    shapes = block_shapes(model.architecture, block)
    names = model.checkpoint.names()
    for linear in _linears(block):
        if linear.weight in names:
            check(linear, model.checkpoint, shapes)


def _linears(x: Any) -> Iterator[Linear]:
    if isinstance(x, Linear):
        yield x
    elif isinstance(x, tuple):
        for item in x:
            yield from _linears(item)
    elif is_dataclass(x):
        for field in fields(x):
            yield from _linears(getattr(x, field.name))


def chosen(groups: tuple[str, ...]) -> tuple[Group, ...]:
    """The groups that were asked for; all if none were."""
    unknown = [group for group in groups if group not in GROUPS]
    if unknown:
        raise LexrayError(
            f"no group {', '.join(map(repr, unknown))} of parameters; there are {', '.join(GROUPS)}"
        )
    return tuple(group for group in GROUPS if not groups or group in groups)
