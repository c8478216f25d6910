"""What of a block is shown: by counts, as the original does it, or by contribution.

By contribution, every sum shows the fewest addends that together carry a given share of all that
it receives. How much an addend carries is the size of its part along the sum, so that those which
work against it count as well; or of its part in the target's logit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.flow.options import BlockOptions
from lexray.trace.attribute.heads import HeadsStep, SubBlock
from lexray.trace.attribute.step import NeuronName, Step
from lexray.trace.attribute.walk import Pull


@dataclass(frozen=True)
class ShownHeads:
    """What is shown of one attention."""

    memories: Mapping[int, tuple[int, ...]]
    """For each head that is shown, the positions whose key and value are."""
    rows: tuple[int, ...]
    """Of W_O, counted through all heads."""


@dataclass(frozen=True)
class Shown(ShownHeads):
    """What is shown of a block."""

    neurons: tuple[NeuronName, ...]
    cross: ShownHeads | None = None
    """Of a decoder's attention to its source; positions are the source's."""


def choose(step: Step, options: BlockOptions, pull: Pull | None) -> Shown:
    """What the options say is shown of a block; `pull` is needed to keep by the target's logit."""
    chooser = _ByCount(options) if options.keep is None else _ByShare(options, pull)
    own = _choose_heads(chooser, step)
    cross = None if step.spec.cross is None else _choose_heads(chooser, step.cross)
    return Shown(own.memories, own.rows, tuple(step.neurons(chooser.neurons(step))), cross)


def _choose_heads(chooser: _ByCount | _ByShare, step: HeadsStep) -> ShownHeads:
    heads = sorted(chooser.heads(step))
    memories = {head: tuple(chooser.memories(step, head)) for head in heads}
    return ShownHeads(memories, tuple(chooser.rows(step)))


@dataclass(frozen=True)
class _ByCount:
    options: BlockOptions

    def heads(self, step: HeadsStep) -> list[int]:
        return largest(step.heads.norm(dim=1), self.options.most_heads)

    def memories(self, step: HeadsStep, head: int) -> list[int]:
        return largest(step.pattern[head], self.options.most_memories)

    def rows(self, step: HeadsStep) -> list[int]:
        return self._neurons(step.z.flatten(), step.W_O.flatten(0, 1))

    def neurons(self, step: Step) -> list[int]:
        return self._neurons(step.coefficients, step.W_out)

    def _neurons(
        self, coefficients: Float[Tensor, "n"], W: Float[Tensor, "n d_model"]
    ) -> list[int]:
        most = self.options.most_neurons
        assert most is not None
        if self.options.by == "absolute":
            return largest(coefficients.abs(), sum(most))
        strength = coefficients * W.norm(dim=1)
        return largest(strength, most[0]) + largest(-strength, most[1])


@dataclass(frozen=True)
class _ByShare:
    options: BlockOptions
    pull: Pull | None

    def _along(self, total: Float[Tensor, "d_model"], part: SubBlock) -> Float[Tensor, "d_model"]:
        if self.options.keep_by == "sum":
            return total
        assert self.pull is not None
        return self.pull.of(part)

    def heads(self, step: HeadsStep) -> list[int]:
        along = self._along(step.heads.sum(0), step.part)
        return self._fewest(step.heads_along(along), self.options.most_heads)

    def memories(self, step: HeadsStep, head: int) -> list[int]:
        along = self._along(step.heads[head], step.part)
        return self._fewest(step.memories_along(head, along), self.options.most_memories)

    def rows(self, step: HeadsStep) -> list[int]:
        along = self._along(step.written, step.part)
        return self._neurons(step.z.flatten(), step.rows_along(along).flatten())

    def neurons(self, step: Step) -> list[int]:
        along = self._along(step.output_of("ff"), "ff")
        return self._neurons(step.coefficients, step.neurons_along(along))

    def _neurons(self, coefficients: Float[Tensor, "n"], parts: Float[Tensor, "n"]) -> list[int]:
        kept = self._fewest(parts, None)
        if (most := self.options.most_neurons) is None:
            return kept
        signs = coefficients[kept].tolist()
        high = [i for i, sign in zip(kept, signs, strict=True) if sign > 0][: most[0]]
        low = [i for i, sign in zip(kept, signs, strict=True) if sign < 0][: most[1]]
        return high + low

    def _fewest(self, parts: Float[Tensor, "n"], most: int | None) -> list[int]:
        assert self.options.keep is not None
        return fewest(parts, self.options.keep)[:most]


def largest(values: Float[Tensor, "n"], n: int | None) -> list[int]:
    """The places of the n largest values that are above zero, the largest first."""
    order = values.argsort(descending=True, stable=True)[:n]
    return order[values[order] > 0].tolist()


def fewest(parts: Float[Tensor, "n"], share: float) -> list[int]:
    """The places of the fewest parts whose sizes add up to a share of the sizes of all.

    >>> fewest(torch.tensor([1.0, -6.0, 3.0]), 0.9)
    [1, 2]
    """
    sizes = parts.detach().cpu().double().abs()
    order = sizes.argsort(descending=True, stable=True)
    total = sizes[order].cumsum(0)
    if share <= 0 or not len(total) or total[-1] <= 0:
        return []
    last = int(torch.searchsorted(total, share * total[-1]))
    return order[: last + 1].tolist()
