"""The parts of a model: thin views that read from the checkpoint when they are asked.

Names and shapes are the field's: `W_Q`, `W_K`, `W_V` are d_model × d_head, `W_O` d_head × d_model,
`W_in` and `W_gate` d_model × d_mlp, `W_out` d_mlp × d_model; rows are hidden states. An absent bias
or gate is None. Seen through a folded view the norms are part of the matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import torch
from jaxtyping import Float
from torch import Tensor

from lexray import families, fold
from lexray.address import Address
from lexray.errors import LexrayError
from lexray.families.activation import activation
from lexray.families.spec import ALL, Attention, Block, Experts, Linear, Norm

if TYPE_CHECKING:
    from lexray.model import Model

Part = TypeVar("Part")


class Parts(Sequence[Part]):
    """A lazy sequence of numbered parts: `model.layers`, `layer.heads`, `ff.neurons`."""

    def __init__(self, what: str, owner: str, make: Any, n: int) -> None:
        self._what, self._owner, self._make, self._n = what, owner, make, n

    @overload
    def __getitem__(self, i: int) -> Part: ...
    @overload
    def __getitem__(self, i: slice) -> list[Part]: ...
    def __getitem__(self, i: int | slice) -> Part | list[Part]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._n))]
        if not -self._n <= i < self._n:
            there = f"{self._what}s 0–{self._n - 1}" if self._n else f"no {self._what}s"
            raise LexrayError(f"there is no {self._what} {i}: {self._owner} has {there}")
        part: Part = self._make(i % self._n)
        return part

    def __iter__(self) -> Iterator[Part]:
        return (self[i] for i in range(self._n))

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<{self._n} {self._what}s of {self._owner}>"


class Component:
    """What all parts share: the model they belong to, and how they read through its view."""

    def __init__(self, model: Model, address: Address) -> None:
        self.model = model
        self.address = address

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} of {self.model.name}>"

    def _read(self, linear: Linear, norm: Norm | None, outputs: slice = ALL) -> Tensor:
        """A reader W[:, outputs] of what `norm` gives."""
        W = linear.read(self.model.checkpoint, outputs=outputs)
        if self.model.options.folded:
            W = fold.reader(W, norm, self.model.checkpoint)
        return self.model.place(W)

    def _read_bias(self, linear: Linear, norm: Norm | None, outputs: slice = ALL) -> Tensor | None:
        bias = linear.read_bias(self.model.checkpoint, outputs)
        if self.model.options.folded and norm is not None and norm.bias is not None:
            W = linear.read(self.model.checkpoint, outputs=outputs)
            bias = fold.reader_bias(bias, W, norm, self.model.checkpoint)
        return None if bias is None else self.model.place(bias)

    def _write(self, linear: Linear, norm: Norm | None, inputs: slice = ALL) -> Tensor:
        """A writer W[inputs] into what `norm` normalises."""
        W = linear.read(self.model.checkpoint, inputs=inputs)
        if self.model.options.folded:
            W = fold.writer(W, norm, self.model.checkpoint)
        return self.model.place(W)

    def _write_bias(self, linear: Linear, norm: Norm | None) -> Tensor | None:
        bias = linear.read_bias(self.model.checkpoint)
        if bias is None:
            return None
        if self.model.options.folded:
            bias = fold.writer(bias, norm, self.model.checkpoint)
        return self.model.place(bias)


class Head(Component):
    """One query head, with the keys and values of its group."""

    def __init__(self, model: Model, layer: int, index: int) -> None:
        super().__init__(model, Address(layer, head=index))
        self.layer, self.index = layer, index
        self.spec: Attention = model.architecture.blocks[layer].attention
        self.kv_index = index * len(self.spec.k.starts) // len(self.spec.q.starts)

    @property
    def d_head(self) -> int:
        return self.spec.q.d_head

    @property
    def W_Q(self) -> Float[Tensor, "d_model d_head"]:
        return self._read(self.spec.q.linear, self.spec.pre_norm, self.spec.q.outputs(self.index))

    @property
    def W_K(self) -> Float[Tensor, "d_model d_head"]:
        return self._read(
            self.spec.k.linear, self.spec.pre_norm, self.spec.k.outputs(self.kv_index)
        )

    @property
    def W_V(self) -> Float[Tensor, "d_model d_head"]:
        return self._read(
            self.spec.v.linear, self.spec.pre_norm, self.spec.v.outputs(self.kv_index)
        )

    @property
    def W_O(self) -> Float[Tensor, "d_head d_model"]:
        rows = slice(self.index * self.d_head, (self.index + 1) * self.d_head)
        return self._write(self.spec.o, self.spec.post_norm, rows)

    @property
    def b_Q(self) -> Float[Tensor, "d_head"] | None:
        return self._read_bias(
            self.spec.q.linear, self.spec.pre_norm, self.spec.q.outputs(self.index)
        )

    @property
    def b_K(self) -> Float[Tensor, "d_head"] | None:
        return self._read_bias(
            self.spec.k.linear, self.spec.pre_norm, self.spec.k.outputs(self.kv_index)
        )

    @property
    def b_V(self) -> Float[Tensor, "d_head"] | None:
        return self._read_bias(
            self.spec.v.linear, self.spec.pre_norm, self.spec.v.outputs(self.kv_index)
        )

    @property
    def b_O(self) -> Float[Tensor, "d_model"] | None:
        """The output bias, which all heads of the layer share."""
        return self._write_bias(self.spec.o, self.spec.post_norm)

    def queries(
        self, x: Float[Tensor, "n d_model"], *, bias: bool = True
    ) -> Float[Tensor, "n d_head"]:
        """What this head asks for at inputs x, QK-norm included, before rotation."""
        return self._projected(x, "Q", bias)

    def keys(
        self, x: Float[Tensor, "n d_model"], *, bias: bool = True
    ) -> Float[Tensor, "n d_head"]:
        """What this head offers at inputs x, QK-norm included, before rotation."""
        return self._projected(x, "K", bias)

    def rotation(self, offset: int | None = None) -> Float[Tensor, "d_head d_head"] | None:
        """R(offset), so that a score is q R kᵀ; offset = key − query position (the view's own
        unless given). None where there is nothing to turn."""
        offset = self.model.options.offset if offset is None else offset
        if self.spec.rotary is None:
            return None
        return self.spec.rotary.matrix(offset, self.d_head).to(self.model.device)

    @property
    def alibi_slope(self) -> float:
        """What each position of distance takes from the score (ALiBi); 0 elsewhere."""
        return self.spec.alibi * alibi_slopes(len(self.spec.q.starts))[self.index]

    def _projected(self, x: Tensor, side: Literal["Q", "K"], bias: bool) -> Tensor:
        heads, norm, index, W, b = (
            (self.spec.q, self.spec.q_norm, self.index, self.W_Q, self.b_Q if bias else None)
            if side == "Q"
            else (
                self.spec.k,
                self.spec.k_norm,
                self.kv_index,
                self.W_K,
                self.b_K if bias else None,
            )
        )
        y = x @ W.to(x)
        if b is not None:
            y = y + b.to(x)
        if self.spec.clip is not None:
            y = y.clamp(-self.spec.clip, self.spec.clip)
        if norm is None:
            return y
        if norm.joint is None:
            return norm.heads[index](y, self.model.checkpoint)
        return self._jointly_normed(x, y, heads, norm.joint, index, bias)

    def _jointly_normed(
        self, x: Tensor, y: Tensor, heads: families.Heads, norm: Norm, index: int, bias: bool
    ) -> Tensor:
        """One head's part of a norm that runs over all heads of the layer (OLMo 2)."""
        whole = x @ self._read(heads.linear, self.spec.pre_norm).to(x)
        if bias and (b := self._read_bias(heads.linear, self.spec.pre_norm)) is not None:
            whole = whole + b.to(x)
        if self.spec.clip is not None:
            whole = whole.clamp(-self.spec.clip, self.spec.clip)
        y = y * torch.rsqrt(whole.square().mean(-1, keepdim=True) + norm.eps)
        gain = norm.read_gain(self.model.checkpoint)
        return y if gain is None else y * gain[heads.outputs(index)].to(y)


def alibi_slopes(n_heads: int) -> list[float]:
    """ALiBi's geometric series of slopes; where n is no power of two, interleaved from the next."""
    base = 2 ** (n_heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / base) for i in range(base)]
    return slopes + [2 ** (-4 * (2 * i + 1) / base) for i in range(n_heads - base)]


class Neuron(Component):
    """One feed-forward unit: it reads with its key (and gate), and writes its value."""

    def __init__(self, ff: FeedForward, index: int) -> None:
        super().__init__(ff.model, replace(ff.address, neuron=index))
        self.ff, self.index = ff, index
        self._at = slice(index, index + 1)

    @property
    def W_in(self) -> Float[Tensor, "d_model"]:
        """The key."""
        return self._read(self.ff.spec.w_in, self.ff.norms.pre_norm, self._at)[:, 0]

    @property
    def W_gate(self) -> Float[Tensor, "d_model"] | None:
        """The gate's key, in gated feed-forwards."""
        if self.ff.spec.w_gate is None:
            return None
        return self._read(self.ff.spec.w_gate, self.ff.norms.pre_norm, self._at)[:, 0]

    @property
    def W_out(self) -> Float[Tensor, "d_model"]:
        """The value."""
        return self._write(self.ff.spec.w_out, self.ff.norms.post_norm, self._at)[0]

    @property
    def b_in(self) -> Float[Tensor, ""] | None:
        bias = self._read_bias(self.ff.spec.w_in, self.ff.norms.pre_norm, self._at)
        return None if bias is None else bias[0]

    @property
    def b_gate(self) -> Float[Tensor, ""] | None:
        if self.ff.spec.w_gate is None:
            return None
        bias = self._read_bias(self.ff.spec.w_gate, self.ff.norms.pre_norm, self._at)
        return None if bias is None else bias[0]

    @property
    def b_out(self) -> Float[Tensor, "d_model"] | None:
        """The output bias, which all neurons of the feed-forward share."""
        return self.ff.b_out


class FeedForward(Component):
    """A dense feed-forward, or one expert of a mixture."""

    def __init__(
        self,
        model: Model,
        address: Address,
        spec: families.FeedForward,
        norms: families.FeedForward | Experts,
    ) -> None:
        super().__init__(model, address)
        self.spec = spec
        self.norms = norms
        """Whoever owns the norms around the sub-block: the feed-forward, or the mixture."""

    @property
    def d_mlp(self) -> int:
        return self.spec.d_mlp

    @property
    def neurons(self) -> Parts[Neuron]:
        return Parts("neuron", str(self.address), lambda i: Neuron(self, i), self.d_mlp)

    @property
    def W_in(self) -> Float[Tensor, "d_model d_mlp"]:
        return self._read(self.spec.w_in, self.norms.pre_norm)

    @property
    def W_gate(self) -> Float[Tensor, "d_model d_mlp"] | None:
        if self.spec.w_gate is None:
            return None
        return self._read(self.spec.w_gate, self.norms.pre_norm)

    @property
    def W_out(self) -> Float[Tensor, "d_mlp d_model"]:
        return self._write(self.spec.w_out, self.norms.post_norm)

    @property
    def b_in(self) -> Float[Tensor, "d_mlp"] | None:
        return self._read_bias(self.spec.w_in, self.norms.pre_norm)

    @property
    def b_gate(self) -> Float[Tensor, "d_mlp"] | None:
        if self.spec.w_gate is None:
            return None
        return self._read_bias(self.spec.w_gate, self.norms.pre_norm)

    @property
    def b_out(self) -> Float[Tensor, "d_model"] | None:
        return self._write_bias(self.spec.w_out, self.norms.post_norm)

    def coefficients(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_mlp"]:
        """By how much each neuron's value is added at inputs x."""
        act = activation(self.spec.activation)
        up = _affine(x, self.W_in, self.b_in)
        W_gate = self.W_gate
        return act(up) if W_gate is None else act(_affine(x, W_gate, self.b_gate)) * up

    def __call__(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
        """What the sub-block writes at inputs x."""
        return _affine(self.coefficients(x), self.W_out, self.b_out)


class Mixture(Component):
    """Experts and their router."""

    def __init__(self, model: Model, layer: int, spec: Experts) -> None:
        super().__init__(model, Address(layer))
        self.spec = spec

    @property
    def experts(self) -> Parts[FeedForward]:
        def make(e: int) -> FeedForward:
            address = replace(self.address, expert=e)
            return FeedForward(self.model, address, self.spec.experts[e], self.spec)

        return Parts("expert", str(self.address), make, len(self.spec.experts))

    @property
    def shared(self) -> FeedForward | None:
        """The expert that every token passes, if there is one."""
        if self.spec.shared is None:
            return None
        address = replace(self.address, shared=True)
        return FeedForward(self.model, address, self.spec.shared, self.spec)

    @property
    def W_router(self) -> Float[Tensor, "d_model n_experts"]:
        """One key per expert."""
        return self._read(self.spec.router, self.spec.pre_norm)

    def routing(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n n_experts"]:
        """The weight of each expert at inputs x; zero where it is not chosen."""
        weights = (x @ self.W_router.to(x)).softmax(-1)
        top, chosen = weights.topk(self.spec.top_k, dim=-1)
        if self.spec.normalise:
            top = top / top.sum(-1, keepdim=True)
        return torch.zeros_like(weights).scatter(-1, chosen, top)

    def __call__(self, x: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
        """What the sub-block writes at inputs x."""
        routing = self.routing(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            if routing[:, e].any():
                out = out + routing[:, e : e + 1] * expert(x)
        if (shared := self.shared) is None:
            return out
        extra = shared(x)
        if self.spec.shared_gate is not None:
            gate = self._read(self.spec.shared_gate, self.spec.pre_norm)
            extra = extra * (x @ gate.to(x)).sigmoid()
        return out + extra


class Layer(Component):
    """One block: its heads and its feed-forward."""

    def __init__(self, model: Model, index: int) -> None:
        super().__init__(model, Address(index))
        self.index = index
        self.spec: Block = model.architecture.blocks[index]

    @property
    def heads(self) -> Parts[Head]:
        n = len(self.spec.attention.q.starts)
        return Parts("head", str(self.address), lambda i: Head(self.model, self.index, i), n)

    @cached_property
    def ff(self) -> FeedForward | Mixture:
        """The feed-forward; in mixture-of-experts layers the `Mixture`."""
        if isinstance(self.spec.ff, Experts):
            return Mixture(self.model, self.index, self.spec.ff)
        return FeedForward(self.model, self.address, self.spec.ff, self.spec.ff)

    @property
    def feed_forwards(self) -> Iterator[FeedForward]:
        """The feed-forward, or each expert and then the shared one."""
        if isinstance(self.ff, FeedForward):
            yield self.ff
            return
        yield from self.ff.experts
        if self.ff.shared is not None:
            yield self.ff.shared


def _affine(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    y = x @ W.to(x)
    return y if b is None else y + b.to(x)
