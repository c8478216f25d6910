"""What in a trace can be read as tokens, each thing through the weights that give it a meaning.

A head's output and its memory values mean something through W_O, as they are added to the residual
stream. A query means the directions that its head's keys respond to, q R(Δ) W_Kᵀ, and a key those
that queries look for it with, k R(Δ)ᵀ W_Qᵀ: these read from the residual stream. Δ is the key's
position less the query's. A neuron adds coefficient times value, so its sign is the coefficient's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.checkpoint import Checkpoint
from lexray.errors import LexrayError
from lexray.families import Block, Heads, Norm, QKNorm
from lexray.model import fold
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.trace.recording import LayerTrace, Recording

IN_BLOCK = ("pre", "self", "mid", "post")
SUB_BLOCKS = {
    "attention": "attn_out",
    "cross": "cross.out",
    "laurel": "laurel_out",
    "mixer": "mixer_out",
    "mlp": "mlp_out",
    "attn_in": "attn_in",
    "cross_in": "cross.read",
    "mixer_in": "mixer_in",
    "mlp_in": "mlp_in",
}
READERS = ("queries", "keys")
KINDS = (
    *("residual", *IN_BLOCK, *SUB_BLOCKS),
    *("heads", "cross_heads", "values", *READERS, "neurons"),
)
"""What `of=` may name."""
NEEDS = {
    "heads": ("heads",),
    "cross_heads": ("heads",),
    "values": ("attention",),
    "queries": ("attention",),
    "keys": ("attention",),
    "neurons": ("mlp",),
}
"""What of a trace, besides the residual stream, the kinds are made of."""


@dataclass(frozen=True, eq=False)
class VectorLine:
    """One thing at some positions: a layer's output, a head, a neuron."""

    name: str
    of: str
    layer: int | None
    vectors: Float[Tensor, "c d_model"]
    coefficient: float | None = None
    """A neuron's."""
    times: float = 1.0
    """So many times a neuron's value, as its view has it, the vectors are."""

    @property
    def side(self) -> Literal["writing", "reading"]:
        return "reading" if self.of in READERS else "writing"


@dataclass(frozen=True)
class Selection:
    """Which vectors of a pass are wanted."""

    trace: Recording
    layers: tuple[int, ...] | None
    """None for all that were kept, and the embedding."""
    positions: tuple[int, ...]
    heads: tuple[int, ...] | None = None
    neurons: int = 10
    query: int = -1
    offset: int | None = None
    """Key position less query position for queries and keys; None for the actual one."""
    norm: bool = True

    def lines(self, kinds: Sequence[str]) -> list[VectorLine]:
        """All vectors of these kinds, layer by layer."""
        lines: list[VectorLine] = []
        layers = self.trace.layers if self.layers is None else self.layers
        if self.layers is None and "residual" in kinds:
            lines.append(VectorLine("embed", "residual", None, self._keep(self.trace.embed)))
        for index in layers:
            layer = self.trace[index]
            for kind in kinds:
                lines += self._of(kind, layer, len(kinds) > 1)
        return lines

    def _of(self, kind: str, layer: LayerTrace, several: bool) -> Iterator[VectorLine]:
        if not has_kind(layer.spec, kind):
            return
        if kind == "residual":
            name = f"L{layer.index} post" if several else f"L{layer.index}"
            yield VectorLine(name, kind, layer.index, self._keep(layer.resid_post))
        elif kind in IN_BLOCK or kind in SUB_BLOCKS:
            x: Tensor = attrgetter(SUB_BLOCKS.get(kind, f"resid_{kind}"))(layer)
            yield VectorLine(f"L{layer.index} {kind}", kind, layer.index, self._keep(x))
        elif kind == "neurons":
            yield from self._neurons(layer)
        else:
            yield from self._heads(kind, layer, several)

    def _heads(self, kind: str, layer: LayerTrace, several: bool) -> Iterator[VectorLine]:
        made = {
            "heads": self._outputs,
            "cross_heads": self._cross_outputs,
            "values": self._values,
            "queries": self._queries,
            "keys": self._keys,
        }[kind](layer)
        crosses = kind == "cross_heads"
        spec = layer.spec.cross if crosses else layer.spec.attention
        assert spec is not None
        heads = range(len(spec.q.starts)) if self.heads is None else self.heads
        for h in heads:
            own = f"L{layer.index}{'X' if crosses else 'H'}{h}"
            name = f"{own} {kind}" if several else own
            yield VectorLine(name, kind, layer.index, made(h))

    def _outputs(self, layer: LayerTrace) -> Callable[[int], Tensor]:
        norm, head_out = layer.spec.attention.post_norm, layer.head_out
        written = None if norm is None else self._keep(layer.attn_write)
        return lambda h: self._as_added(norm, self._keep(head_out[:, h]), written)

    def _cross_outputs(self, layer: LayerTrace) -> Callable[[int], Tensor]:
        head_out = layer.cross.head_out
        return lambda h: self._keep(head_out[:, h])

    def _values(self, layer: LayerTrace) -> Callable[[int], Tensor]:
        spec, v = layer.spec.attention, self._any(layer.v)
        heads = self.trace.weights.layers[layer.index].heads

        def through_output(h: int) -> Tensor:
            W_O = heads[h].W_O.to(v)
            return fold.writer(v[:, heads[h].kv_index] @ W_O, spec.post_norm, self._checkpoint)

        return through_output

    def _queries(self, layer: LayerTrace) -> Callable[[int], Tensor]:
        q, weights = self._keep(layer.q), self._keep(layer.pattern.transpose(0, 1))
        heads = self.trace.weights.layers[layer.index].heads
        at = torch.tensor(self.positions, device=q.device)

        def respond(h: int) -> Tensor:
            best = weights[:, h].argmax(-1) - at
            offsets = best if self.offset is None else torch.full_like(best, self.offset)
            return query_readers(heads[h], q[:, h], offsets, norm=self.norm)

        return respond

    def _keys(self, layer: LayerTrace) -> Callable[[int], Tensor]:
        k, query = self._any(layer.k), self.query % len(self.trace)
        heads = self.trace.weights.layers[layer.index].heads
        actual = torch.tensor(self.positions, device=k.device) - query
        offsets = actual if self.offset is None else torch.full_like(actual, self.offset)
        return lambda h: key_readers(heads[h], k[:, heads[h].kv_index], offsets, norm=self.norm)

    def _neurons(self, layer: LayerTrace) -> Iterator[VectorLine]:
        norm = layer.spec.ff.post_norm
        (position,) = self.positions
        written = None if norm is None else self._keep(layer.mlp_write)
        strengths, owners = [], []
        for active in layer.active(position):
            W_out = at_least_float32(active.ff.W_out)
            coefficients = active.coefficients.to(W_out)
            strengths.append(coefficients.abs() * W_out.norm(dim=1))
            owners += [(active, W_out, i) for i in range(len(coefficients))]
        if not strengths:
            return
        order = torch.cat(strengths).argsort(descending=True, stable=True)[: self.neurons]
        for place in order.tolist():
            active, W_out, i = owners[place]
            coefficient = float(active.coefficients[i])
            vector = self._as_added(norm, coefficient * W_out[[i]], written)
            name = f"{active.ff.address}N{i}"
            value = fold.writer(W_out[i], norm, self._checkpoint)
            size = float(vector.norm() / value.norm().clamp(min=1e-30)) or 1.0
            times = -size if coefficient < 0 else size
            yield VectorLine(name, "neurons", layer.index, vector, coefficient, times)

    def _as_added(self, norm: Norm | None, X: Tensor, written: Tensor | None) -> Tensor:
        """Parts of what a sub-block wrote, as its post-norm (at its recorded scale) adds them."""
        if norm is None or written is None:
            return X
        centred = written - written.mean(-1, keepdim=True) if norm.centres else written
        return fold.writer(X, norm, self._checkpoint) * norm.scale(centred)

    def _keep(self, x: Float[Tensor, "p *rest"]) -> Float[Tensor, "c *rest"]:
        rows = [self.trace.row(position) for position in self.positions]
        return self._place(x[rows])

    def _any(self, x: Float[Tensor, "n *rest"]) -> Float[Tensor, "c *rest"]:
        return self._place(x[list(self.positions)])

    def _place(self, x: Tensor) -> Tensor:
        return at_least_float32(x.to(self.trace.weights.device))

    @property
    def _checkpoint(self) -> Checkpoint:
        return self.trace.weights.checkpoint


OF_ATTENTION = frozenset({"attention", "attn_in", "heads", "values", *READERS})


def has_kind(block: Block, kind: str) -> bool:
    """Whether a layer has such vectors: in hybrids some have no heads, or no neurons."""
    if kind in OF_ATTENTION:
        return not block.attention.absent
    if kind.startswith("mixer"):
        return block.mixer is not None
    if kind == "laurel":
        return block.laurel is not None
    if kind.startswith("cross") or kind == "self":
        return block.cross is not None
    return not block.ff.absent or kind not in ("mlp", "mlp_in", "neurons")


def query_readers(
    head: Head,
    q: Float[Tensor, "n d_head"],
    offsets: Int[Tensor, "n"],
    *,
    norm: bool = True,
) -> Float[Tensor, "n d_model"]:
    """q R(Δ) W_Kᵀ, times the attention's scale: the directions that a head's keys respond to.

    Its product with the attention's input at a key's position is the attention score, but for the
    key's bias and, with a QK-norm, the key's own size. `norm=True` folds the attention's norm in,
    so that the residual stream itself can be multiplied instead.
    """
    x = query_directions(head, q, offsets)
    return _reader(head, x @ at_least_float32(head.W_K).to(x).T, "K", norm)


def key_readers(
    head: Head,
    k: Float[Tensor, "n d_head"],
    offsets: Int[Tensor, "n"],
    *,
    norm: bool = True,
) -> Float[Tensor, "n d_model"]:
    """k R(Δ)ᵀ W_Qᵀ, times the attention's scale: the directions that look for a key."""
    x = key_directions(head, k, offsets)
    return _reader(head, x @ at_least_float32(head.W_Q).to(x).T, "Q", norm)


def query_directions(
    head: Head, q: Float[Tensor, "n d_head"], offsets: Int[Tensor, "n"]
) -> Float[Tensor, "n d_head"]:
    """What a query multiplies x W_K + b_K with, but for a QK-norm's scale."""
    if (gains := head.turned_gains) is not None:
        return _turn(head, q, -offsets) * gains.to(q)
    return _behind(_turn(head, q, -offsets), head, head.spec.k_norm, head.spec.k, head.kv_index)


def key_directions(
    head: Head, k: Float[Tensor, "n d_head"], offsets: Int[Tensor, "n"]
) -> Float[Tensor, "n d_head"]:
    """What a key multiplies x W_Q + b_Q with, but for a QK-norm's scale."""
    if (gains := head.turned_gains) is not None:
        return _turn(head, k * gains.to(k), offsets)
    return _behind(_turn(head, k, offsets), head, head.spec.q_norm, head.spec.q, head.index)


def _turn(
    head: Head, x: Float[Tensor, "n d_head"], positions: Int[Tensor, "n"]
) -> Float[Tensor, "n d_head"]:
    """x R(−position); the second turn, by nothing, brings the rotary factor to its square."""
    rotary = head.spec.rotary
    if rotary is None:
        return x
    once = rotary.turn(x[:, None], positions)
    return rotary.turn(once, torch.zeros_like(positions))[:, 0]


def _behind(
    x: Float[Tensor, "n d_head"], head: Head, norm: QKNorm | None, heads: Heads, index: int
) -> Float[Tensor, "n d_head"]:
    """A direction behind a QK-norm, before it: C(γ ⊙ x)."""
    if norm is None:
        return x
    checkpoint = head.weights.checkpoint
    if norm.joint is None:
        return fold.reader(x.T, norm.heads[index], checkpoint).T
    gain = norm.joint.read_gain(checkpoint)
    return x if gain is None else x * gain[heads.outputs(index)].to(x)


def _reader(
    head: Head, x: Float[Tensor, "n d_model"], kind: str, norm: bool
) -> Float[Tensor, "n d_model"]:
    """Before the norm of what queries, or keys (of cross-attention the source's), are made of."""
    x = x * head.spec.scale
    return fold.reader(x.T, head.spec.norm_of(kind), head.weights.checkpoint).T if norm else x


def what_for(kinds: Sequence[str]) -> set[str]:
    """What a trace has to keep for these kinds: its `what=`."""
    return {"residual"}.union(*(NEEDS.get(kind, ()) for kind in kinds))


def choose_kinds(of: str | Sequence[str]) -> tuple[str, ...]:
    """The kinds of vectors that `of` names."""
    kinds = tuple(dict.fromkeys([of] if isinstance(of, str) else of))
    if not kinds or (unknown := [kind for kind in kinds if kind not in KINDS]):
        asked = ", ".join(map(repr, unknown if kinds else [of]))
        raise LexrayError(f"a lens cannot read {asked}; of= takes some of {', '.join(KINDS)}")
    return kinds
