"""An attention head's matrices and biases, and the maps by which it asks and offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.families import Attention, Heads, Latent, Linear, Norm, QKNorm
from lexray.families.linear import ALL
from lexray.model.component import Wired
from lexray.model.groups import Group, attention_of, head_group
from lexray.model.weights import Weights
from lexray.space.kinds import Kind
from lexray.space.topk.arithmetic import has_float64
from lexray.space.topk.products import rows_by

Map = Callable[[Tensor], Tensor]


class HeadMatrices(Wired):
    """One query head, with the keys and values of its group."""

    def __init__(self, weights: Weights, layer: int, index: int, *, cross: bool = False) -> None:
        super().__init__(weights, weights.at(layer, head=index, cross=cross))
        self.layer, self.index = layer, index
        self.spec: Attention = attention_of(weights, layer, cross=cross)
        self.kv_index = index * len(self.spec.k.starts) // len(self.spec.q.starts)

    @property
    def d_head(self) -> int:
        """The width of its queries and keys."""
        return self.spec.q.d_head

    def _columns(self, kind: Kind) -> Float[Tensor, "d_model d_head"]:
        return self.group(kind).tensor.T

    def group(self, kind: Kind) -> Group:
        """Its subheads of a kind."""
        return head_group(self.weights, self.layer, self.index, kind, cross=self.spec.crosses)

    @property
    def W_Q(self) -> Float[Tensor, "d_model d_head"]:
        """What it asks with, as the view reads it."""
        return self._columns("Q")

    @property
    def W_K(self) -> Float[Tensor, "d_model d_head"]:
        """What it offers itself with; heads of a group share it."""
        return self._columns("K")

    @property
    def W_V(self) -> Float[Tensor, "d_model d_head"]:
        """What it takes from where it looks."""
        return self._columns("V")

    @property
    def W_O(self) -> Float[Tensor, "d_head d_model"]:
        """What it writes of that."""
        return self._columns("O").T

    def _bias(self, heads: Heads, index: int) -> Float[Tensor, "d_head"] | None:
        return self.weights.read_bias(heads.linear, self._norm(heads), heads.outputs(index))

    def _norm(self, heads: Heads) -> Norm | None:
        """What a projection stands behind."""
        return self.spec.norm_of("Q" if heads is self.spec.q else "K")

    @property
    def b_Q(self) -> Float[Tensor, "d_head"] | None:
        """The bias of its queries; None without one."""
        return self._bias(self.spec.q, self.index)

    @property
    def b_K(self) -> Float[Tensor, "d_head"] | None:
        """The bias of its keys."""
        return self._bias(self.spec.k, self.kv_index)

    @property
    def b_V(self) -> Float[Tensor, "d_head"] | None:
        """The bias of its values."""
        return self._bias(self.spec.v, self.kv_index)

    @property
    def b_O(self) -> Float[Tensor, "d_model"] | None:
        """The output bias, which all heads of the layer share."""
        return self.weights.write_bias(self.spec.o, self.spec.post_norm)

    @property
    def sink(self) -> float | None:
        """The score that takes attention and belongs to no position; None in most models."""
        if self.spec.sinks is None:
            return None
        return float(self.weights.checkpoint.read(self.spec.sinks)[self.index])

    def queries(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_head"]:
        """What this head asks for at inputs x, QK-norm included, before rotation."""
        return self.query_map()(x)

    def keys(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_head"]:
        """What this head offers at inputs x, QK-norm included, before rotation."""
        return self.key_map()(x)

    def values(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_value"]:
        """What this head takes from inputs x where it looks, before W_O."""
        return self.value_map()(x)

    def value_map(self, *, bias: bool = True) -> Map:
        """`values` as a function that has read its weights."""
        spec = self.spec
        return self._map(spec.v, spec.v_norm, self.kv_index, bias, clip=bias)

    def query_map(self, *, bias: bool = True, clip: bool = True) -> Map:
        """`queries` as a function that has read its weights."""
        spec = self.spec
        return self._map(spec.q, spec.q_norm, self.index, bias, clip)

    def key_map(self, *, bias: bool = True, clip: bool = True) -> Map:
        """`keys` as a function that has read its weights."""
        spec = self.spec
        return self._map(spec.k, spec.k_norm, self.kv_index, bias, clip)

    def rotation(self, offset: int | None = None) -> Float[Tensor, "d_head d_head"] | None:
        """R(offset), so that a score is q R kᵀ; offset = key − query position (the view's own
        unless given). None where there is nothing to turn.

        Where norms of queries and keys stand behind the rotary embedding (Hunyuan), their gains
        are part of R, and the score depends on both positions: R is that of a key at position 0.
        """
        offset = self.weights.options.offset if offset is None else offset
        if self.spec.rotary is None:
            return None
        R, device = self.spec.rotary.matrix(offset, self.d_head), self.weights.device
        if (gains := self.turned_gains) is not None:
            R = R * gains.cpu().double()
        return (R if has_float64(device) else R.float()).to(device)

    @property
    def turned_gains(self) -> Float[Tensor, "d_head"] | None:
        """What each rotated dimension of a score is multiplied by: the gains of norms of queries
        and keys that stand behind the rotary embedding; None elsewhere."""
        q, k = self.spec.q_norm, self.spec.k_norm
        if q is None or k is None or not q.turned:
            return None
        norms = (q.heads[self.index], k.heads[self.kv_index])
        ours, theirs = (norm.read_gain(self.weights.checkpoint) for norm in norms)
        return None if ours is None or theirs is None else self.weights.place(ours * theirs)

    @property
    def alibi_slope(self) -> float:
        """What each position of distance takes from the score (ALiBi); 0 elsewhere."""
        spec = self.spec
        return spec.alibi * alibi_slopes(len(spec.q.starts), spec.alibi_most)[self.index]

    def distance_scores(
        self, q: Float[Tensor, "n d_head"], k: Float[Tensor, "n d_head"], at: Int[Tensor, "n"]
    ) -> Float[Tensor, "n n"]:
        """What distances add to the scores of these queries and keys (T5, MPNet, DeBERTa); nothing
        elsewhere."""
        if self.spec.relative is None:
            return q.new_zeros(len(q), len(k))
        n, checkpoint = len(self.spec.q.starts), self.weights.checkpoint
        many, other = (x[:, None].expand(-1, n, -1) for x in (q, k))
        return self.spec.relative.scores(checkpoint, many, other, at, at)[self.index]

    def _plain(self, heads: Heads, index: int, bias: bool, limit: float | None) -> Map:
        """A head's projection: affine, or through a latent and its norm (DeepSeek)."""
        weights, linear, norm = self.weights, heads.linear, self._norm(heads)
        at = heads.outputs(index)
        if not isinstance(linear, Latent):
            b = self._bias(heads, index) if bias else None
            return Affine(weights.reader(self.layer, linear, norm, at), b, limit)
        own, shared = linear.parts(at)

        def affine(part: Linear, outputs: slice) -> Affine:
            b = weights.read_bias(part, norm, outputs) if bias else None
            return Affine(weights.reader(self.layer, part, norm, outputs), b)

        return Narrow(
            affine(linear.down, ALL),
            None if linear.norm is None else linear.norm.read(weights.checkpoint),
            weights.place(linear.read_up(weights.checkpoint, own)),
            affine(linear.tail, shared) if linear.tail is not None else None,
        )

    def _map(self, heads: Heads, norm: QKNorm | None, index: int, bias: bool, clip: bool) -> Map:
        limit = self.spec.clip if clip else None
        plain = self._plain(heads, index, bias, limit)
        if norm is None:
            return plain
        checkpoint = self.weights.checkpoint
        if norm.joint is None:
            own = norm.heads[index] if bias else replace(norm.heads[index], bias=None)
            normed = (replace(own, gain=None) if norm.turned else own).read(checkpoint)
            return lambda x: normed(plain(x))
        whole = Affine(
            self.weights.reader(self.layer, heads.linear, self._norm(heads)),
            self.weights.read_bias(heads.linear, self._norm(heads)) if bias else None,
            limit,
        )
        gain, eps = norm.joint.read_gain(checkpoint), norm.joint.eps
        part = None if gain is None else gain[heads.outputs(index)]

        def jointly(x: Tensor) -> Tensor:
            """One head's part of a norm that runs over all heads of the layer (OLMo 2)."""
            y = plain(x) * torch.rsqrt(whole(x).square().mean(-1, keepdim=True) + eps)
            return y if part is None else y * part.to(y)

        return jointly


@dataclass(frozen=True)
class Affine:
    """x W + b, clamped to ± limit."""

    W: Tensor
    b: Tensor | None = None
    limit: float | None = None

    def __call__(self, x: Tensor) -> Tensor:
        y = rows_by(x, self.W.to(x).T)
        if self.b is not None:
            y = y + self.b.to(x)
        return y if self.limit is None else y.clamp(-self.limit, self.limit)


@dataclass(frozen=True)
class Narrow:
    """N(x `down`) `up` with what the tail makes of x beside it."""

    down: Affine
    norm: Map | None
    up: Tensor
    tail: Affine | None

    def __call__(self, x: Tensor) -> Tensor:
        latent = self.down(x)
        if self.norm is not None:
            latent = self.norm(latent)
        y = rows_by(latent, self.up.to(x).T)
        return y if self.tail is None else torch.cat([y, self.tail(x)], -1)


def alibi_slopes(n_heads: int, most: float = 8.0) -> list[float]:
    """ALiBi's geometric series of slopes; where n is no power of two, interleaved from the next."""
    base = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-most * (i + 1) / base) for i in range(base)]
    return slopes + [2 ** (-most / 2 * (2 * i + 1) / base) for i in range(n_heads - base)]


def visible(spec: Attention, at: Tensor, seen: Tensor, causal: bool) -> Tensor:
    """Which keys (columns) each query (row) can see."""
    distance = at[:, None] - seen
    allowed = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    if spec.chunk is not None:
        allowed = allowed & (at[:, None] // spec.chunk == seen // spec.chunk)
    if spec.window is None:
        return allowed
    return allowed & (distance < spec.window) & (-distance < (spec.ahead or spec.window))
