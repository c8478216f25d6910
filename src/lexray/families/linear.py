"""Where one weight lies and how it is read: linear maps, the heads inside them, and norms.

`Linear` and `Norm` know how to read themselves from a checkpoint, so that the orientation on disk,
fused matrices and stacked experts are settled in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lexray.checkpoint import Checkpoint

ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x W + b, read as W: (inputs, outputs) whatever its orientation on disk.

    `start` is the first output inside a fused matrix, `size` their number; `expert` is the index
    on the leading axis of stacked experts.
    """

    weight: str
    bias: str | None = None
    in_first: bool = False
    """Stored as (in, out), as GPT-2's Conv1D; PyTorch's Linear is (out, in)."""
    start: int = 0
    size: int | None = None
    expert: int | None = None
    step: int = 1
    """Its outputs are every `step`-th of the matrix (gates and keys in turn: gpt-oss)."""
    factor: float = 1.0
    """What comes out of its module is multiplied by this (Falcon-H1); it is read as part of W."""
    rows: tuple[int, int] | None = None
    """The first of its inputs and their number, in a matrix where the experts' lie end to end."""
    gain: str | None = None
    """What comes out is multiplied by the gain of a norm behind it (Gemma 4's experts); this is
    read as part of W. The tensor's name."""

    @property
    def module(self) -> str:
        """The name of the module that owns the weight."""
        return self.weight.rpartition(".")[0]

    @property
    def reader(self) -> str:
        """The name of the module that reads the residual stream."""
        return self.module

    def index(self, inputs: slice, outputs: slice) -> tuple[slice, ...]:
        """The slices to read from disk for these inputs and outputs."""
        outputs = self._shift(outputs)
        if self.rows is not None:
            first, n = self.rows
            start, stop, _ = inputs.indices(n)
            inputs = slice(first + start, first + stop)
        plane = (inputs, outputs) if self.in_first else (outputs, inputs)
        return plane if self.expert is None else (slice(self.expert, self.expert + 1), *plane)

    def read(self, checkpoint: Checkpoint, inputs: slice = ALL, outputs: slice = ALL) -> Tensor:
        """W[inputs, outputs]."""
        tensor = checkpoint.read(self.weight, *self.index(inputs, outputs))
        if self.expert is not None:
            tensor = tensor[0]
        tensor = tensor if self.in_first else tensor.T
        tensor = tensor if self.factor == 1 else tensor * self.factor
        if self.gain is not None:
            tensor = tensor.float() * checkpoint.read(self.gain, self._shift(outputs)).float()
        return tensor[:, :: self.step] if self.step > 1 else tensor

    def cost(self, checkpoint: Checkpoint, inputs: slice = ALL, outputs: slice = ALL) -> int:
        """The bytes that `read` would read."""
        return checkpoint.cost(self.weight, *self.index(inputs, outputs))

    def read_bias(self, checkpoint: Checkpoint, outputs: slice = ALL) -> Tensor | None:
        """b[outputs], or None."""
        if self.bias is None:
            return None
        outputs = self._shift(outputs)
        if self.expert is None:
            bias = checkpoint.read(self.bias, outputs)[:: self.step] * self.factor
            return bias if self.gain is None else bias * checkpoint.read(self.gain, outputs)
        each = checkpoint.read(self.bias, slice(self.expert, self.expert + 1), outputs)
        return each[0, :: self.step]

    def _shift(self, outputs: slice) -> slice:
        if outputs == ALL and self.size is None:
            return slice(self.start or None, None)
        start = self.start + self.step * (outputs.start or 0)
        stop = outputs.stop if outputs.stop is not None else self.size
        return slice(start, None if stop is None else self.start + self.step * (stop - 1) + 1)


@dataclass(frozen=True, slots=True)
class Latent(Linear):
    """A linear map behind another and a norm: x → N(x `down`) W, as DeepSeek's attention has them.

    Read as one matrix it is `down` diag(γ) W, whose rank is at most the latent's width; what the
    norm divides by depends on x and is left out. With a `tail`, each head's outputs are `content`
    columns of W (a head's begin every `spacing`) and then the tail, which all heads share.
    """

    down: Linear = Linear("")
    norm: Norm | None = None
    tail: Linear | None = None
    content: int = 0
    spacing: int = 0

    @property
    def reader(self) -> str:
        return self.down.module

    @property
    def width(self) -> int:
        """How many dimensions the latent has."""
        return self.down.size or 0

    def parts(self, outputs: slice) -> tuple[slice, slice]:
        """Which columns of W, and which of the tail."""
        if self.tail is None or outputs == ALL:
            return outputs, slice(0, 0)
        each = self.content + (self.tail.size or 0)
        head, first = divmod(outputs.start, each)
        last, base = first + outputs.stop - outputs.start, head * self.spacing
        split = self.content
        own = slice(base + min(first, split), base + min(last, split))
        return own, slice(max(first - split, 0), max(last - split, 0))

    def read(self, checkpoint: Checkpoint, inputs: slice = ALL, outputs: slice = ALL) -> Tensor:
        own, shared = self.parts(outputs)
        up = self.read_up(checkpoint, own).float()
        down = self.down.read(checkpoint, inputs=inputs).float()
        gain = None if self.norm is None else self.norm.read_gain(checkpoint)
        W = down @ (up if gain is None else gain.float()[:, None] * up)
        if self.tail is None or shared.start == shared.stop:
            return W
        return torch.cat([W, self.tail.read(checkpoint, inputs, shared).float()], 1)

    def read_up(self, checkpoint: Checkpoint, outputs: slice = ALL) -> Tensor:
        """W[:, outputs] alone: from the latent on."""
        if outputs != ALL and outputs.start == outputs.stop:
            return torch.zeros(self.width, 0)
        return Linear(self.weight).read(checkpoint, outputs=outputs)

    def cost(self, checkpoint: Checkpoint, inputs: slice = ALL, outputs: slice = ALL) -> int:
        own, shared = self.parts(outputs)
        total = self.down.cost(checkpoint, inputs) + Linear(self.weight).cost(checkpoint, ALL, own)
        return total + (self.tail.cost(checkpoint, inputs, shared) if self.tail else 0)


@dataclass(frozen=True, slots=True)
class Nothing(Linear):
    """The map of a sub-block that a layer does not have: no outputs, or no inputs."""

    weight: str = ""
    shape: tuple[int, int] = (0, 0)

    def read(self, checkpoint: Checkpoint, inputs: slice = ALL, outputs: slice = ALL) -> Tensor:
        return torch.zeros(self.shape)[inputs, outputs]

    def cost(self, checkpoint: Checkpoint, inputs: slice = ALL, outputs: slice = ALL) -> int:
        return 0


@dataclass(frozen=True)
class Heads:
    """The heads inside a projection: head h has the outputs `starts[h] : starts[h] + d_head`."""

    linear: Linear
    starts: tuple[int, ...]
    d_head: int

    def outputs(self, head: int) -> slice:
        return slice(self.starts[head], self.starts[head] + self.d_head)

    def read(self, checkpoint: Checkpoint, head: int) -> Tensor:
        """This head's d_model × d_head matrix."""
        return self.linear.read(checkpoint, outputs=self.outputs(head))

    def read_bias(self, checkpoint: Checkpoint, head: int) -> Tensor | None:
        return self.linear.read_bias(checkpoint, self.outputs(head))


def in_order(linear: Linear, n: int, d_head: int) -> Heads:
    """Head after head."""
    return Heads(linear, tuple(h * d_head for h in range(n)), d_head)


def interleaved(linear: Linear, n: int, d_head: int, part: int, of: int = 3) -> Heads:
    """Each head's query, key and value side by side: (head, part, d_head)."""
    return Heads(linear, tuple((h * of + part) * d_head for h in range(n)), d_head)


@dataclass(frozen=True)
class Norm:
    """LayerNorm or RMSNorm; `gain` and `bias` are tensor names, or None where there are none."""

    kind: Literal["layer", "rms", "fixed"]
    """"fixed" measures nothing: a constant factor where other models have a norm (Granite)."""
    gain: str | None
    bias: str | None = None
    eps: float = 1e-5
    plus_one: bool = False
    """The gain is stored as w and used as 1 + w (Gemma)."""
    part: tuple[int, int] | None = None
    """The part of `gain` and `bias` along the first axis that is meant (per-head QK-norms)."""
    factor: float = 1.0
    """What the gain is multiplied by."""

    @property
    def centres(self) -> bool:
        return self.kind == "layer"

    @property
    def module(self) -> str | None:
        """The name of the module that owns the gain."""
        return None if self.gain is None else self.gain.rpartition(".")[0]

    def read_gain(self, checkpoint: Checkpoint) -> Tensor | None:
        gain = self._read(checkpoint, self.gain)
        if gain is not None and self.plus_one:
            gain = gain.float() + 1
        if self.factor == 1:
            return gain
        return torch.tensor([self.factor]) if gain is None else gain * self.factor

    def read_bias(self, checkpoint: Checkpoint) -> Tensor | None:
        return self._read(checkpoint, self.bias)

    def _read(self, checkpoint: Checkpoint, name: str | None) -> Tensor | None:
        if name is None:
            return None
        return checkpoint.read(name, *([slice(*self.part)] if self.part else [])).flatten()

    def bare(self, x: Tensor) -> Tensor:
        """The norm without gain and bias, over the last axis."""
        if self.centres:
            x = x - x.mean(-1, keepdim=True)
        return x * self.scale(x)

    def scale(self, x: Tensor) -> Tensor:
        """What `bare` multiplies x, centred if the norm centres, by."""
        if self.kind == "fixed":
            return torch.ones_like(x[..., :1])
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def __call__(self, x: Tensor, checkpoint: Checkpoint) -> Tensor:
        """The whole norm, in x's dtype and on its device."""
        return self.read(checkpoint)(x)

    def read(self, checkpoint: Checkpoint) -> Callable[[Tensor], Tensor]:
        """The same as a function that has read its weights."""
        gain, bias = self.read_gain(checkpoint), self.read_bias(checkpoint)

        def norm(x: Tensor) -> Tensor:
            x = self.bare(x)
            x = x if gain is None else x * gain.to(x)
            return x if bias is None else x + bias.to(x)

        return norm
