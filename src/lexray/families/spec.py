"""What a family has to say: a frozen description of where each parameter lies and what it means.

Nothing here reads a weight. `Linear` and `Norm` know how to read themselves from a checkpoint, so
that the orientation on disk, fused matrices and stacked experts are settled in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import torch
from torch import Tensor

from lexray.checkpoint import Checkpoint
from lexray.families.activation import activation
from lexray.families.rotary import Rotary

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
        plane = (inputs, outputs) if self.in_first else (outputs, inputs)
        return plane if self.expert is None else (slice(self.expert, self.expert + 1), *plane)

    def read(self, checkpoint: Checkpoint, inputs: slice = ALL, outputs: slice = ALL) -> Tensor:
        """W[inputs, outputs]."""
        tensor = checkpoint.read(self.weight, *self.index(inputs, outputs))
        if self.expert is not None:
            tensor = tensor[0]
        tensor = tensor if self.in_first else tensor.T
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
            return checkpoint.read(self.bias, outputs)[:: self.step]
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
        x = self.bare(x)
        if (gain := self.read_gain(checkpoint)) is not None:
            x = x * gain.to(x)
        if (bias := self.read_bias(checkpoint)) is not None:
            x = x + bias.to(x)
        return x


@dataclass(frozen=True)
class QKNorm:
    """A norm on queries or keys: over each head (`heads` has one per head), or over all jointly."""

    heads: tuple[Norm, ...] = ()
    joint: Norm | None = None
    turned: bool = False
    """Its gains stand behind the rotary embedding (Hunyuan), not before it."""


@dataclass(frozen=True)
class Temperature:
    """Queries grow with their position m: by 1 + rate · log(1 + ⌊(m + first) / length⌋)."""

    rate: float
    length: float
    first: int = 0

    def __call__(self, positions: Tensor) -> Tensor:
        return 1 + self.rate * torch.log1p(((positions + self.first) / self.length).floor())


@dataclass(frozen=True)
class Attention:
    """One attention sub-block. Query head h reads the keys and values of head h // (n_q / n_kv)."""

    q: Heads
    k: Heads
    v: Heads
    o: Linear
    """Its inputs are the heads in order."""
    scale: float
    """What the product of query and key is multiplied by before the softmax."""
    pre_norm: Norm | None = None
    """Normalises what the sub-block reads."""
    post_norm: Norm | None = None
    """Normalises what it writes, before the sum with the residual stream."""
    sum_norm: Norm | None = None
    """Normalises the sum (post-norm models such as BERT)."""
    q_norm: QKNorm | None = None
    k_norm: QKNorm | None = None
    rotary: Rotary | None = None
    alibi: float = 0.0
    """ALiBi: what the slope times the key's position is multiplied by; 0 without ALiBi."""
    alibi_most: float = 8.0
    """The steepest of n slopes is 2^(−this / n), the flattest 2^−this."""
    cap: float | None = None
    """tanh cap of the attention scores."""
    sinks: str | None = None
    """One score per head that takes part in the softmax and belongs to no position: weights sum to
    less than one (gpt-oss). The tensor's name."""
    clip: float | None = None
    """Queries, keys and values are clamped to ± this."""
    window: int | None = None
    """Sliding window: position j is seen from i if |i − j| < window."""
    chunk: int | None = None
    """Position j is seen from i only if both lie in the same so many positions (Llama 4)."""
    temperature: Temperature | None = None
    others: tuple[str, ...] = ()
    """Tensors that take part and are not read (the indexer of DeepSeek V3.2)."""

    @property
    def turns(self) -> bool:
        """Whether queries and keys are changed by their positions before they meet."""
        return self.rotary is not None or self.temperature is not None

    @property
    def module(self) -> str:
        """The name of the module that computes the attention: the one that owns the queries."""
        return self.q.linear.module.rpartition(".")[0]


@dataclass(frozen=True)
class FeedForward:
    """A dense feed-forward: act(x W_in) W_out, or act(x W_gate) · (x W_in) W_out."""

    w_in: Linear
    w_out: Linear
    activation: str
    d_mlp: int
    w_gate: Linear | None = None
    curve: tuple[str, ...] = ()
    """The tensors of an activation that has learned parameters (xIELU)."""
    pre_norm: Norm | None = None
    post_norm: Norm | None = None
    sum_norm: Norm | None = None


@dataclass(frozen=True)
class Routing:
    """How experts are chosen by what the router says of each, and weighted."""

    score: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    correction: str | None = None
    """Added to the scores for the choice alone: the tensor's name (DeepSeek V3)."""
    groups: int = 1
    """Experts are chosen from the best `kept` of so many groups …"""
    kept: int = 1
    best: int = 2
    """… a group being as good as the sum of so many of its scores."""
    scale: float = 1.0
    """What the weights are multiplied by in the end."""
    on_input: bool = False
    """They multiply what an expert reads, not what it writes (Llama 4)."""
    jitter: float = 0.01
    """The sparse mixer leaves out of its softmax what falls short of the best by twice that."""


@dataclass(frozen=True)
class Experts:
    """A mixture: the router picks `top_k` experts per token; a shared expert always runs."""

    router: Linear
    experts: tuple[FeedForward, ...]
    top_k: int
    normalise: bool
    """The chosen experts' weights are scaled to sum to one."""
    module: str
    """The name of the module that holds them all."""
    routing: Routing = Routing()
    shared: FeedForward | None = None
    shared_gate: Linear | None = None
    shared_beside: bool = False
    """The shared expert is not in `module`, but its output is added to the module's (Granite)."""
    share: float = 1.0
    """What all of them write together is multiplied by this (Cohere: the mean with the shared)."""
    pre_norm: Norm | None = None
    post_norm: Norm | None = None
    sum_norm: Norm | None = None


@dataclass(frozen=True)
class Block:
    """One layer; `parallel`: attention and feed-forward read the same residual stream."""

    attention: Attention
    ff: FeedForward | Experts
    parallel: bool = False

    @property
    def module(self) -> str:
        """The name of the block's module: what the names of its parts have in common."""
        inner = self.ff.module if isinstance(self.ff, Experts) else self.ff.w_out.module
        names = (self.attention.q.linear.module, self.attention.o.module, inner)
        steps = zip(*(name.split(".") for name in names), strict=False)
        shared = takewhile(lambda parts: len(set(parts)) == 1, steps)
        return ".".join(parts[0] for parts in shared)


@dataclass(frozen=True)
class HeadTransform:
    """BERT's non-linear LM head: dense, activation, norm, before the decoder."""

    dense: Linear
    activation: str
    norm: Norm

    def __call__(self, x: Tensor, checkpoint: Checkpoint) -> Tensor:
        """What the decoder gets, in x's dtype and on its device."""
        x = x @ self.dense.read(checkpoint).to(x)
        if (bias := self.dense.read_bias(checkpoint)) is not None:
            x = x + bias.to(x)
        return self.norm(activation(self.activation)(x), checkpoint)


@dataclass(frozen=True)
class Architecture:
    """A whole model, described."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_mlp: int
    d_vocab: int
    blocks: tuple[Block, ...]
    embed: str
    """The input embedding, (d_vocab, d_model) on disk."""
    unembed: str
    """The output embedding, likewise; the same tensor when tied."""
    unembed_bias: str | None = None
    tied: bool = False
    final_norm: Norm | None = None
    logit_scale: float = 1.0
    logit_cap: float | None = None
    head: HeadTransform | None = None
    project_in: Linear | None = None
    """From the embedding's width to d_model, where they differ (OPT-350m)."""
    project_out: Linear | None = None
    embed_scale: float = 1.0
    embed_norm: Norm | None = None
    positions: str | None = None
    """Learned position embeddings."""
    position_offset: int = 0
    """Position p is row p + offset."""
    sinusoids: str | None = None
    """The module that calculates position embeddings, where they are not learned (XGLM)."""
    token_types: str | None = None
    causal: bool = True
    n_ctx: int | None = None
    """The longest context of the config, if it says so."""
