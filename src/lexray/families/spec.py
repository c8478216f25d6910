"""What a family has to say: a frozen description of where each parameter lies and what it means.

Nothing here reads a weight; `lexray.families.linear` has the maps and norms that a description is
made of, which know how to read themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lexray.checkpoint import Checkpoint
from lexray.families.activation import activation
from lexray.families.linear import Heads, Linear, Norm
from lexray.families.relative import DistanceBias, DistanceVectors
from lexray.families.rotary import Rotary
from lexray.families.streams import AltUp, Streams


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
    v_norm: QKNorm | None = None
    """Values are normed too (Gemma 4): by what they are divided depends on what is read."""
    rotary: Rotary | None = None
    alibi: float = 0.0
    """ALiBi: what the slope times the key's position is multiplied by; 0 without ALiBi."""
    alibi_most: float = 8.0
    """The steepest of n slopes is 2^(−this / n), the flattest 2^−this."""
    relative: DistanceBias | DistanceVectors | None = None
    """What distances add to the scores (T5, MPNet, DeBERTa)."""
    cap: float | None = None
    """tanh cap of the attention scores."""
    sinks: str | None = None
    """One score per head that takes part in the softmax and belongs to no position: weights sum to
    less than one (gpt-oss). The tensor's name."""
    clip: float | None = None
    """Queries, keys and values are clamped to ± this."""
    window: int | None = None
    """Sliding window: position j is seen from i if |i − j| < window."""
    ahead: int | None = None
    """A window's width towards later positions, where it is another one (T5Gemma 2)."""
    chunk: int | None = None
    """Position j is seen from i only if both lie in the same so many positions (Llama 4)."""
    temperature: Temperature | None = None
    gate: Heads | None = None
    """Each head's sum of values is multiplied by the sigmoid of this before W_O (Qwen3-Next)."""
    crosses: bool = False
    """Its keys and values read what an encoder gives, not this stack's stream."""
    shares: int | None = None
    """The earlier layer whose keys and values it uses (Gemma 3n, 4): `k` and `v` are that one's."""
    chosen_by: int | None = None
    """The earlier layer by whose choice of positions it goes (GLM-5)."""
    source_norm: Norm | None = None
    """Normalises what keys and values read, where that is not this layer's stream: the encoder's
    final norm, or the norm of the layer that they belong to."""
    others: tuple[str, ...] = ()
    """Tensors that take part and are not read (the indexer of DeepSeek V3.2)."""

    def norm_of(self, kind: str) -> Norm | None:
        """What the readers of a kind ("Q", "K", "V") stand behind."""
        elsewhere = self.crosses or self.shares is not None
        return self.source_norm if elsewhere and kind in ("K", "V") else self.pre_norm

    @property
    def absent(self) -> bool:
        """Whether the layer has no heads: something else mixes its tokens, or nothing does."""
        return not self.q.starts

    @property
    def turns(self) -> bool:
        """Whether queries and keys are changed by their positions before they meet."""
        return self.rotary is not None or self.temperature is not None

    @property
    def called_again(self) -> bool:
        """Whether distances go through the maps of queries and keys too, after these (DeBERTa)."""
        distances = self.relative if isinstance(self.relative, DistanceVectors) else None
        return distances is not None and bool(
            {self.q, self.k} & {distances.as_key, distances.as_query}
        )

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
    sparsity: float = 0.0
    """This share of the gates, if they are spread normally, is cut off before the activation, and
    what is left counts from there (Gemma 3n)."""
    curve: tuple[str, ...] = ()
    """The tensors of an activation that has learned parameters (xIELU)."""
    pre_norm: Norm | None = None
    post_norm: Norm | None = None
    sum_norm: Norm | None = None

    @property
    def absent(self) -> bool:
        """Whether the layer has no neurons (Nemotron-H: one sub-block per layer)."""
        return self.d_mlp == 0


@dataclass(frozen=True)
class Mixer:
    """What mixes tokens without attention weights: a state space, linear attention, a convolution;
    or what else writes to the stream as one part.

    Between the maps that read the stream and the one that writes to it lies a recurrence, so no
    token-by-token table exists: it is one part, and the columns and rows of its maps are vectors.
    """

    inputs: tuple[Linear, ...]
    """The maps that read the stream; each says its `size`."""
    w_out: Linear
    d_inner: int
    """How many rows `w_out` has."""
    kind: str
    """What it is, in words."""
    others: tuple[str, ...] = ()
    """The tensors between them, which are not read."""
    last: bool = False
    """It stands behind the feed-forward, not in attention's place or beside it: what a gate lets in
    of a layer's own embedding of the token (Gemma 3n, 4)."""
    pre_norm: Norm | None = None
    post_norm: Norm | None = None
    sum_norm: ClassVar[None] = None

    @property
    def d_in(self) -> int:
        """How many columns the maps that read have together."""
        return sum(linear.size or 0 for linear in self.inputs)


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
    each: str | None = None
    """Each expert's weight is multiplied by a factor of its own: the tensor's name (Gemma 4)."""
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
    router_norm: Norm | None = None
    """What the router reads, where it is not what the experts read (Gemma 4)."""
    own_norm: Norm | None = None
    """Normalises what the chosen experts write together, and …"""
    shared_norm: Norm | None = None
    """… what the shared one does, before their sum (Gemma 4). Their gains are read as part of the
    experts' `w_out`; what they divide by is recorded, as part of the coefficients."""
    pre_norm: Norm | None = None
    post_norm: Norm | None = None
    sum_norm: Norm | None = None
    absent: ClassVar[bool] = False

    @property
    def sum_reader(self) -> str | None:
        """The module that reads what they write together, where none gives it."""
        return self.post_norm.module if self.own_norm and self.post_norm else None

    @property
    def around_shared(self) -> Experts:
        """The same with the norms around the shared expert, which may have one of its own."""
        own = None if self.shared is None else self.shared.pre_norm
        return self if own is None else replace(self, pre_norm=own)


@dataclass(frozen=True)
class Block:
    """One layer; `parallel`: attention and feed-forward read the same residual stream.

    Attention and feed-forward may be `absent`; a mixer stands in attention's place, beside it, or
    last.
    """

    attention: Attention
    ff: FeedForward | Experts
    parallel: bool = False
    mixer: Mixer | None = None
    laurel: Mixer | None = None
    """A narrow map beside attention (Gemma 3n). What both read is added to the sum of the two and
    of the stream, before and behind the norm, and all is divided by √2."""
    altup: AltUp | None = None
    """Where there are several streams: how the layer reads and writes them."""
    cross: Attention | None = None
    """A decoder's attention to what its encoder gives, between the other two."""
    others: tuple[str, ...] = ()
    """Tensors that take part and are not read (an indexer, a router)."""
    factor: Norm | None = None
    """All that leaves the block is multiplied by this (Gemma 4)."""
    path: str | None = None
    """The name of the block's module, where it is not what its parts have in common (T5)."""

    @property
    def merged(self) -> bool:
        """Whether cross-attention is the same maps as the other, and one softmax weighs the
        positions of both (T5Gemma 2)."""
        return self.cross is not None and self.cross.o == self.attention.o

    @property
    def module(self) -> str:
        """The name of the block's module: what the names of its parts have in common."""
        if self.path is not None:
            return self.path
        inner = self.ff.module if isinstance(self.ff, Experts) else self.ff.w_out.module
        names = [self.attention.q.linear.module, self.attention.o.module, inner]
        if self.mixer is not None:
            names.append(self.mixer.w_out.module)
        if "" in names:  # a sub-block alone does not show where the layer begins; its norm does
            parts = (self.attention, self.mixer, self.ff)
            norms = (part.pre_norm for part in parts if part is not None)
            names += [norm.module for norm in norms if norm is not None and norm.module]
        steps = zip(*(name.split(".") for name in names if name), strict=False)
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
class LayerInputs:
    """A second embedding, of which each layer has a part of its own (Gemma 3n, 4): the mixer that
    stands last in a layer writes by it."""

    table: str
    """(d_vocab, layers · width) on disk."""
    project: Linear
    """What the token's first embedding adds to it."""
    norm: Norm
    """Normalises that, layer by layer."""
    width: int


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
    embedder: str | None = None
    """The module that embeds tokens, where it is not the one that owns the tensor; empty where the
    embedding is scaled behind it."""
    unembed_bias: str | None = None
    tied: bool = False
    final_norm: Norm | None = None
    logit_scale: float = 1.0
    logit_cap: float | None = None
    head: HeadTransform | None = None
    project_in: Linear | None = None
    """From the embedding's width to d_model, where they differ (OPT-350m)."""
    project_out: Linear | None = None
    projects_last: bool = False
    """`project_in` stands behind positions, types and their norm, which have the embedding's
    width (ALBERT, ELECTRA), not before them."""
    embed_scale: float = 1.0
    embed_norm: Norm | None = None
    positions: str | None = None
    """Learned position embeddings."""
    position_offset: int = 0
    """Position p is row p + offset."""
    sinusoids: str | None = None
    """The module that calculates position embeddings, where they are not learned (XGLM)."""
    token_types: str | None = None
    layer_inputs: LayerInputs | None = None
    streams: Streams | None = None
    """Several residual streams, of which a layer works on one and corrects all (Gemma 3n)."""
    others: tuple[str, ...] = ()
    """Tensors that take part and are not read."""
    causal: bool = True
    n_ctx: int | None = None
    """The longest context of the config, if it says so."""
    encoder: Architecture | None = None
    """The stack that a decoder's cross-attention reads, described as a model of its own that reads
    both ways: with its blocks, its ends, and the embeddings that it shares."""
    sourced: bool = False
    """The decoder's module runs only beside a source (T5Gemma)."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Entries that the config may leave out, and without which it says another model."""
    alone: tuple[tuple[str, Any], ...] = ()
    """The entries of a config by which its first block can stand alone."""
    unrolled: tuple[tuple[str, Any], ...] = ()
    """Where layers share their weights (ALBERT): the entries of a config by which each has its
    own."""

    @property
    def own_layers(self) -> list[int]:
        """The layers that have weights of their own, or share them with later ones only."""
        if not self.unrolled:
            return list(range(len(self.blocks)))
        first = {block.module: n for n, block in reversed([*enumerate(self.blocks)])}
        return sorted(first.values())
