"""From a logit back to everything that was added to it.

The logit is linear in what was added to the residual stream once every norm on the way is held at
its recorded scale: N(x) = γ ⊙ C x / σ + β, with σ as it was. So one direction is carried backwards
from the unembedding, through the final norm and, block by block, through the norms of the sums
(post-norm models) and of the sub-blocks' outputs, and each component is multiplied with the
direction at the place where it was added. Biases of norms are components of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.families import Norm
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32

if TYPE_CHECKING:
    from lexray.trace.trace import LayerTrace, Trace

Kind = Literal["embedding", "head", "neuron", "bias"]
KINDS: tuple[Kind, ...] = ("embedding", "head", "neuron", "bias")


@dataclass(frozen=True, eq=False)
class Group:
    """Components of one kind that lie together, and what each of them added."""

    kind: Kind
    layer: int | None
    name: str
    """The component, or what comes before the numbers of several."""
    values: Float[Tensor, "n"]
    numbered: bool = False
    by_source: bool = False
    """One head's values, one for each position that it looked at."""

    def component(self, i: int) -> str:
        return f"{self.name}{i}" if self.numbered else self.name

    @property
    def place(self) -> str:
        """Where it belongs: a layer, or what comes before and after all layers."""
        if self.layer is not None:
            return f"L{self.layer}"
        return "embedding" if self.name.startswith("embedding") else "last step"


@dataclass(frozen=True)
class Backwards:
    """The walk back from the logit of a token, or the difference of two, at a recorded position."""

    trace: Trace
    row: int
    token: int
    other: int | None
    sources: bool

    @cached_property
    def model(self) -> Anatomy:
        """The weights that made the trace."""
        return self.trace.model.view(folded=False, centred=False, calibrated=False)

    @cached_property
    def direction(self) -> Float[Tensor, "d_model"]:
        """The column of the unembedding, or the difference of two, with the logit scale."""
        side = self.model.space.writing
        u = side.column(self.token)
        u = u if self.other is None else u - side.column(self.other)
        return u * self.model.architecture.logit_scale

    @cached_property
    def bias(self) -> float | None:
        """The unembedding's own bias."""
        return None if (b_U := self.model.b_U) is None else self._difference(b_U)

    @property
    def logit(self) -> float:
        """As the model computed it; the decoder's alone where the LM head is not linear."""
        if self.model.architecture.head is None:
            return self._difference(self.trace.logits_uncapped[self.row])
        return float(self._at(self.trace.normed) @ self.direction) + (self.bias or 0.0)

    def groups(self) -> Iterator[Group]:
        """All components, the last ones first."""
        a, trace = self.model.architecture, self.trace
        path = Path(self.model, self.direction)
        if self.bias is not None:
            yield path.part("bias", None, "unembedding.bias", path.g.new_tensor([self.bias]))
        yield from path.back_through(a.final_norm, self._at(trace.final), None, "final_norm.bias")
        for index in reversed(range(len(a.blocks))):
            layer = trace[index]
            yield from self._feed_forward(layer, path)
            yield from self._attention(layer, path)
        parts = {name: self._at(part) for name, part in trace.embed_parts.items()}
        whole = torch.stack(list(parts.values())).sum(0)
        yield from path.back_through(a.embed_norm, whole, None, "embedding.norm_bias")
        for name, part in reversed(parts.items()):
            yield path.part("embedding", None, f"embedding.{name}", part[None] @ path.g)

    def _feed_forward(self, layer: LayerTrace, path: Path) -> Iterator[Group]:
        spec, index = layer.spec.ff, layer.index
        name = f"L{index}.mlp_norm_bias"
        if spec.sum_norm is not None:
            x = self._at(layer.resid_mid) + self._at(layer.mlp_out)
            yield from path.back_through(spec.sum_norm, x, index, name)
        aside = Path(self.model, path.g)
        if spec.post_norm is not None:
            yield from aside.back_through(spec.post_norm, self._at(layer.mlp_write), index, name)
        for active in layer.active(self.trace.positions[self.row]):
            stem = str(active.ff.address)
            if (b_out := active.ff.b_out) is not None:
                added = active.weight * aside.along(b_out[None])
                yield aside.part("bias", index, f"{stem}.b_out", added)
            added = active.coefficients.to(aside.g) * aside.along(active.ff.W_out)
            yield Group("neuron", index, f"{stem}N", added.cpu(), numbered=True)

    def _attention(self, layer: LayerTrace, path: Path) -> Iterator[Group]:
        spec, index = layer.spec.attention, layer.index
        name = f"L{index}.attn_norm_bias"
        if spec.sum_norm is not None:
            x = self._at(layer.resid_pre) + self._at(layer.attn_out)
            yield from path.back_through(spec.sum_norm, x, index, name)
        aside = Path(self.model, path.g)
        if spec.post_norm is not None:
            yield from aside.back_through(spec.post_norm, self._at(layer.attn_write), index, name)
        if (b_O := spec.o.read_bias(self.model.checkpoint)) is not None:
            yield aside.part("bias", index, f"L{index}.b_O", aside.along(b_O[None]))
        W_O = self.model.place(spec.o.read(self.model.checkpoint))
        readers = aside.along(W_O).view(len(spec.q.starts), -1)
        if not self.sources:
            added = (self._at(layer.z) * readers).sum(-1)
            yield Group("head", index, f"L{index}H", added.cpu(), numbered=True)
            return
        for head, row in reversed(list(enumerate(self._by_source(layer, readers)))):
            yield Group("head", index, f"L{index}H{head}", row.cpu(), by_source=True)

    def _by_source(
        self, layer: LayerTrace, readers: Float[Tensor, "n_heads d_head"]
    ) -> Float[Tensor, "n_heads n"]:
        """What each head added, position by position that it looked at."""
        v, weights = layer.v.to(readers), layer.pattern[:, self.row].to(readers)
        shared = len(readers) // v.shape[1]
        return weights * torch.einsum("nhr,hr->hn", v.repeat_interleave(shared, 1), readers)

    def _at(self, x: Float[Tensor, "p *rest"]) -> Float[Tensor, "*rest"]:
        """The recorded vector at the position, beside the weights."""
        return at_least_float32(x[self.row].to(self.model.device))

    def _difference(self, x: Float[Tensor, "d_vocab"]) -> float:
        there = float(x[self.token])
        return there if self.other is None else there - float(x[self.other])


class Path:
    """The direction on its way back through norms; `g` is where it is now."""

    def __init__(self, model: Anatomy, g: Float[Tensor, "d_model"]) -> None:
        self.model, self.g = model, g

    def back_through(
        self, norm: Norm | None, x: Float[Tensor, "d_model"], layer: int | None, name: str
    ) -> Iterator[Group]:
        """Takes the direction behind a norm whose input was x; the norm's bias is a component."""
        if norm is None:
            return
        checkpoint = self.model.checkpoint
        if (bias := norm.read_bias(checkpoint)) is not None:
            yield self.part("bias", layer, name, self.along(bias[None]))
        if (gain := norm.read_gain(checkpoint)) is not None:
            self.g = self.g * gain.to(self.g)
        if norm.centres:
            self.g, x = self.g - self.g.mean(), x - x.mean()
        self.g = self.g * torch.rsqrt(x.square().mean() + norm.eps)

    def along(self, X: Float[Tensor, "n d_model"]) -> Float[Tensor, "n"]:
        """Each row's part in the direction."""
        return X.to(self.g) @ self.g

    def part(self, kind: Kind, layer: int | None, name: str, added: Float[Tensor, "1"]) -> Group:
        return Group(kind, layer, name, added.cpu())
