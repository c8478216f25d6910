"""The feed-forward of a block, or its experts, as nodes: keys, gates and values of neurons."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.flow.build.draft import Draft
from lexray.flow.build.prune import Shown
from lexray.flow.graph import EdgeKind, NodeKind
from lexray.flow.options import BlockOptions
from lexray.model import fold
from lexray.model.feedforward import FeedForward
from lexray.model.fold import at_least_float32
from lexray.trace.attribute.step import Step

Reader = Literal["key", "gate"]


@dataclass(frozen=True)
class FeedForwardDrawing:
    """Draws one block's feed-forward into a draft."""

    draft: Draft
    step: Step
    shown: Shown
    options: BlockOptions

    @property
    def at(self) -> str:
        return f"L{self.step.index}"

    def draw(self, source: str) -> str:
        """From the feed-forward's input to what it wrote, before any norm."""
        step = self.step
        whole = step.output_of("ff")
        behind = step.spec.ff.post_norm
        out = f"{self.at}.ff_out"
        self.draft.node(out, NodeKind.FF_OUT, step.index, "feed-fwd", whole, behind=behind)
        rest = whole - self._neurons(source, out)
        for active in step.active:
            if (b_out := active.ff.b_out) is not None:
                bias = step.moment.place(b_out)
                rest = rest - self._bias(active.ff, bias, active.weight, out)
        count = int((step.coefficients != 0).sum()) - len(self.shown.neurons)
        if count > 0:
            id = f"{self.at}.ff.others"
            self.draft.node(
                id, NodeKind.OTHERS, step.index, "others", rest, behind=behind, count=count
            )
            self.draft.link(id, out, EdgeKind.OTHERS, factor=1.0)
        return out

    def _neurons(self, source: str, out: str) -> Float[Tensor, "d_model"]:
        """Draws the neurons that are shown; what they add together."""
        by_owner: dict[str, list[int]] = defaultdict(list)
        for owner, neuron in self.shown.neurons:
            by_owner[owner].append(neuron)
        parts = [
            self._of(self.step.feed_forward(owner), neurons, source, out)
            for owner, neurons in by_owner.items()
        ]
        nothing = self.step.W_out.new_zeros(self.step.W_out.shape[1])
        return torch.stack([nothing, *parts]).sum(0)

    def _of(
        self, ff: FeedForward, neurons: list[int], source: str, out: str
    ) -> Float[Tensor, "d_model"]:
        indices = [self.step.index_of((str(ff.address), neuron)) for neuron in neurons]
        coefficients, values = self.step.coefficients[indices], self.step.W_out[indices]
        signs = [-1 if c < 0 else 1 for c in coefficients.tolist()]
        for neuron, c, sign, value in zip(
            neurons, coefficients.tolist(), signs, values, strict=True
        ):
            id = self._node(ff, neuron, "value", sign * value, (value, sign))
            self.draft.link(id, out, EdgeKind.SUM, factor=abs(c))
            if self.options.merge_neurons:
                self.draft.link(source, id, EdgeKind.ACTIVATION, score=abs(c), sign=sign)
        if not self.options.merge_neurons:
            self._readers(ff, neurons, "key", source, coefficients)
            if ff.spec.w_gate is not None:
                self._readers(ff, neurons, "gate", source, coefficients)
        return coefficients @ values

    def _readers(
        self,
        ff: FeedForward,
        neurons: list[int],
        name: Reader,
        source: str,
        coefficients: Float[Tensor, "n"],
    ) -> None:
        """Keys or gates: what they find in the input leads to them, the neuron's coefficient on to
        the value. Where the input has the opposite of a key, the node is the opposite."""
        whole, b = (ff.W_in, ff.b_in) if name == "key" else (ff.W_gate, ff.b_gate)
        assert whole is not None
        W = at_least_float32(whole[:, neurons])
        recorded = self.step.recorded
        read = recorded.shared_in if ff.address.shared else recorded.mlp_in
        activations = self.step.at(read) @ W
        if b is not None:
            activations = activations + b[neurons].to(activations)
        norm = ff.norms.pre_norm if self.options.norm else None
        readers = fold.reader(W, norm, self.step.layer.weights.checkpoint).T
        for neuron, x, c, reader, raw in zip(
            neurons, activations.tolist(), coefficients.tolist(), readers, W.T, strict=True
        ):
            sign = -1 if x < 0 else 1
            id = self._node(ff, neuron, name, sign * reader, (raw, sign))
            self.draft.link(source, id, EdgeKind.ACTIVATION, score=abs(x), sign=sign)
            value = self._id(ff, neuron, "value")
            onward = -1 if c < 0 else 1
            self.draft.link(id, value, EdgeKind.ACTIVATION, score=abs(c), sign=onward)

    def _node(
        self,
        ff: FeedForward,
        neuron: int,
        name: Literal["key", "gate", "value"],
        vector: Float[Tensor, "d_model"],
        stored: tuple[Float[Tensor, "d_model"], int],
    ) -> str:
        writes = name == "value"
        kind = {"key": NodeKind.FF_KEY, "gate": NodeKind.FF_GATE, "value": NodeKind.FF_VALUE}[name]
        return self.draft.node(
            self._id(ff, neuron, name),
            kind,
            self.step.index,
            "gate" if name == "gate" else f"{_short(ff)}{neuron}",
            vector,
            side="writing" if writes else "reading",
            behind=self.step.spec.ff.post_norm if writes else None,
            parameter=(name, *stored),
            address=f"{replace(ff.address, neuron=neuron)}.{name}",
        )

    def _id(self, ff: FeedForward, neuron: int, name: str) -> str:
        short = _short(ff)
        return f"{self.at}{f'.{short[:-1]}' if short else ''}.N{neuron}.{name}"

    def _bias(
        self, ff: FeedForward, bias: Float[Tensor, "d_model"], weight: float, out: str
    ) -> Float[Tensor, "d_model"]:
        short = _short(ff)
        expert = f".{short[:-1]}" if short else ""
        address = None if short else f"L{self.step.index}.b_out"
        id = self.draft.node(
            f"{self.at}{expert}.b_out",
            NodeKind.FF_BIAS,
            self.step.index,
            f"bias {short[:-1]}".rstrip(),
            bias,
            behind=self.step.spec.ff.post_norm,
            parameter=("bias", bias, 1),
            address=address,
        )
        self.draft.link(id, out, EdgeKind.BIAS, factor=weight)
        return weight * bias


def _short(ff: FeedForward) -> str:
    """An expert's name before a neuron's number: "E2:", "S:" for the shared one, else nothing."""
    if ff.address.shared:
        return "S:"
    return "" if ff.address.expert is None else f"E{ff.address.expert}:"
