"""From a logit back to every place where something was added to it.

The logit is linear in what was added to the residual stream once every norm on the way is held at
its recorded scale: N(x) = γ ⊙ C x / σ + β, with σ as it was. So one direction is carried backwards
from the unembedding, through the final norm and, block by block, through the norms of the sums
(post-norm models) and of the sub-blocks' outputs. Contributions are what each component has in the
direction at the place where it was added; a flow graph's shares are the same. Of several residual
streams (Gemma 3n) each has a direction of its own, and the numbers that mix them are held too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from lexray.checkpoint import Checkpoint
from lexray.families import Norm
from lexray.families.streams import SHRUNK
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.trace.attribute.heads import SubBlock
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step
from lexray.trace.attribute.streams import before_layer, before_spread, before_union, of_result


@dataclass(frozen=True, eq=False)
class Logit:
    """The logit of a token, or the difference of two: where the walk begins."""

    weights: Anatomy
    token: int
    other: int | None = None

    @cached_property
    def direction(self) -> Float[Tensor, "d_model"]:
        """The column of the unembedding, or the difference of two, with the logit scale."""
        u = self._column(self.token)
        u = u if self.other is None else u - self._column(self.other)
        return u * self.weights.architecture.logit_scale

    def _column(self, token: int) -> Float[Tensor, "d_model"]:
        weights, project = self.weights, self.weights.architecture.project_out
        u = at_least_float32(weights.place(weights.unembedding(slice(token, token + 1))[0]))
        return u if project is None else weights.place(project.read(weights.checkpoint)).to(u) @ u

    @cached_property
    def bias(self) -> float | None:
        """The unembedding's own bias."""
        return None if (b_U := self.weights.b_U) is None else self.of(b_U)

    def of(self, x: Float[Tensor, "d_vocab"]) -> float:
        """This logit among those of all tokens."""
        there = float(x[self.token])
        return there if self.other is None else there - float(x[self.other])

    def at(self, moment: Moment) -> float:
        """As the model computed it; the decoder's alone where the LM head is not linear."""
        recording = moment.recording
        if self.weights.architecture.head is None:
            return self.of(recording.logits_uncapped[moment.row])
        return float(moment.at(recording.normed) @ self.direction) + (self.bias or 0.0)


@dataclass(frozen=True, eq=False)
class Stop:
    """A place where something is added to the residual stream, met on the way back."""

    part: Literal["output", "embedding"] | SubBlock
    step: Step | None
    """The block; None before and after all of them."""
    stream: Float[Tensor, "width"]
    """The direction in which what is added to the stream here moves the logit."""
    bias: Float[Tensor, "1"] | None
    """What the bias of the norm that was passed to come here adds to the logit."""
    behind: Float[Tensor, "d_model"]
    """The direction behind the norm of the sum, if there is one; of a block's last part, in what
    leaves the block."""

    @property
    def layer(self) -> int | None:
        return None if self.step is None else self.step.index

    @cached_property
    def direction(self) -> Float[Tensor, "width"]:
        """The same for what a sub-block writes: before the norm of its output, if it has one."""
        if self._post_norm is None:
            return self.stream
        assert self.step is not None
        assert self.part != "output"
        assert self.part != "embedding"
        x = self.step.before_norm_of(self.part)
        return before_norm(self._post_norm, self._checkpoint, self.stream, x)

    @property
    def output_bias(self) -> Float[Tensor, "1"] | None:
        """What the bias of that norm adds to the logit."""
        norm = self._post_norm
        return None if norm is None else norm_bias(norm, self._checkpoint, self.stream)

    @property
    def _post_norm(self) -> Norm | None:
        if self.step is None or self.part == "output" or self.part == "embedding":
            return None
        return self.step.sub_block(self.part).post_norm

    @property
    def _checkpoint(self) -> Checkpoint:
        assert self.step is not None
        return self.step.layer.weights.checkpoint


def walk_back(moment: Moment, g: Float[Tensor, "d_model"]) -> Iterator[Stop]:
    """From the unembedding, where the direction is g, to the embedding.

    A block's recorded vectors are looked at only if one of its norms needs them, so that most
    models can be walked through where few of their layers were kept.
    """
    a, checkpoint = moment.weights.architecture, moment.weights.checkpoint
    bias = norm_bias(a.final_norm, checkpoint, g)
    behind = g
    if a.final_norm is not None:
        g = before_norm(a.final_norm, checkpoint, g, moment.final)
    yield Stop("output", None, g, bias, behind)
    if a.streams is not None:
        yield from _walk_streams(moment, g)
        return
    for index in reversed(range(len(a.blocks))):
        step = Step.of(moment, index)
        leaving: Tensor | None = g
        if (factor := step.spec.factor) is not None:
            g = before_norm(factor, checkpoint, g, g)
        for part in reversed(step.parts):
            norm = step.sub_block(part).sum_norm
            bias, behind = norm_bias(norm, checkpoint, g), g if leaving is None else leaving
            if norm is not None:
                g = before_norm(norm, checkpoint, g, step.total(part))
            yield Stop(part, step, g, bias, behind)
            leaving = None
    behind = g
    if a.projects_last and a.project_in is not None:
        g = a.project_in.read(checkpoint).to(g) @ g
    bias = norm_bias(a.embed_norm, checkpoint, g)
    if a.embed_norm is not None:
        g = before_norm(a.embed_norm, checkpoint, g, moment.embed)
    yield Stop("embedding", None, g, bias, behind)


def _walk_streams(moment: Moment, g: Float[Tensor, "d_model"]) -> Iterator[Stop]:
    """The same where there are several streams: from what the final norm reads. What is met behind
    a layer's last part, and behind the embedding, are the directions of all of them, in a row."""
    G = before_union(moment, g)
    for index in reversed(range(moment.weights.n_layers)):
        step = Step.of(moment, index)
        result = of_result(step, G)
        narrow = result * SHRUNK
        on_the_way = {"mixer": G[1:].sum(0), "ff": result, "laurel": narrow, "attention": narrow}
        for part in reversed(step.parts):
            last = part == step.parts[-1]
            yield Stop(part, step, on_the_way[part], None, G.flatten() if last else result)
        G = before_layer(step, G, result, pass_on(step, narrow))
    yield Stop("embedding", None, before_spread(moment, G), None, G.flatten())


def pass_on(step: Step, narrow: Float[Tensor, "d_model"]) -> Float[Tensor, "d_model"]:
    """The direction of the stream that a layer works on, as it goes by attention and LAuReL: before
    and behind their norm. `narrow` is that of what they write."""
    norm = step.spec.attention.pre_norm
    if norm is None:
        return narrow
    x = step.at(step.recorded.resid_in)
    return narrow + before_norm(norm, step.layer.weights.checkpoint, narrow, x)


def before_norm(
    norm: Norm, checkpoint: Checkpoint, g: Float[Tensor, "width"], x: Float[Tensor, "width"]
) -> Float[Tensor, "width"]:
    """A direction behind a norm whose input was x, before it."""
    if (gain := norm.read_gain(checkpoint)) is not None:
        g = g * gain.to(g)
    if norm.centres:
        g, x = g - g.mean(), x - x.mean()
    return g * norm.scale(x)


def norm_bias(
    norm: Norm | None, checkpoint: Checkpoint, g: Float[Tensor, "width"]
) -> Float[Tensor, "1"] | None:
    """What a norm's bias has in the direction behind it."""
    bias = None if norm is None else norm.read_bias(checkpoint)
    return None if bias is None else bias[None].to(g) @ g


@dataclass(frozen=True, eq=False)
class Pull:
    """The directions in which what a block's sub-blocks write moves a logit."""

    attention: Float[Tensor, "d_model"]
    ff: Float[Tensor, "d_model"]
    cross: Float[Tensor, "d_model"] | None = None

    def of(self, part: SubBlock) -> Float[Tensor, "d_model"]:
        if part == "cross":
            assert self.cross is not None
            return self.cross
        return self.attention if part == "attention" else self.ff


def pulls(moment: Moment, token: int, layers: Collection[int]) -> dict[int, Pull]:
    """Of some layers. In models that norm the sums (BERT), all later ones must have been kept."""
    pulls: dict[int, Pull] = {}
    ff: Tensor | None = None
    cross: Tensor | None = None
    for stop in walk_back(moment, Logit(moment.weights, token).direction):
        if stop.layer is None or stop.layer not in layers:
            continue
        if stop.part != "attention":
            ff = stop.direction if stop.part == "ff" else ff
            cross = stop.direction if stop.part == "cross" else cross
            continue
        assert ff is not None
        pulls[stop.layer] = Pull(stop.direction, ff, cross)
        if stop.layer == min(layers):
            break
    return pulls
