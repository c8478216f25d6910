"""Changes of a decoder whose attention to itself and to its source is one (T5Gemma 2).

One softmax weighs both, and one map writes what heads took of both: what a head took of its own
positions and what it took of the source are told apart where values are summed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from lexray.trace.apply.actions import ATTENTION, CROSS, Action, Point, Without
from lexray.trace.apply.cross import CrossEditor

SUMS: tuple[Point, ...] = ("pattern", "cross_pattern", "z", "cross_z", "attn", "cross")


def part_sums(weights: Tensor, v: Tensor, own: int) -> tuple[Tensor, Tensor]:
    """What heads take of the first `own` positions and of the others, which are the source's:
    (sequence, position, head, width)."""
    v = v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
    mine, theirs = (
        (weights[..., part].to(v) @ v[:, :, part]).transpose(1, 2)
        for part in (slice(own), slice(own, None))
    )
    return mine, theirs


@dataclass(eq=False)
class MergedEditor(CrossEditor):
    """Changes a decoder's own part of merged attention, and the source's."""

    crossed: dict[int, Tensor] = field(default_factory=dict)
    """By layer: what heads took of the source, as it was changed."""
    wrote: dict[int, Tensor] = field(default_factory=dict)
    """By layer: what they wrote of it, where that was changed."""

    @property
    def attends(self) -> bool:
        return self.asks(*ATTENTION, *CROSS, *SUMS)

    def _hook_attention(self, undo: ExitStack, n: int) -> None:
        if self.at(n, "attn", "cross"):
            writer = self.architecture.blocks[n].attention.o.module
            self._after(undo, writer, lambda x: self._change_written(x, n))

    def _change_written(self, x: Tensor, n: int) -> Tensor:
        W_O = self.architecture.blocks[n].attention.o.read(self.checkpoint).to(x)
        crossed = self.crossed[n].flatten(2) @ W_O
        self.wrote[n] = self._whole(crossed, n, "cross")
        return self._whole(x - crossed, n, "attn") + self.wrote[n]

    def before_attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        layer = self.layer_of.get(id(module))
        if layer is None or not self.active or not self.at(layer, *ATTENTION, *CROSS):
            return q, k, v
        q, k, v, own = q.clone(), k.clone(), v.clone(), k.shape[2] - max(self.sources)
        places: tuple[tuple[Point, Tensor, int], ...] = (
            ("q", q, 0),
            ("k", k, 0),
            ("v", v, 0),
            ("cross_k", k, own),
            ("cross_v", v, own),
        )
        for point, x, first in places:
            for row, action in self.at(layer, point):
                length = (self.sources if first else self.lengths)[row]
                part = x[row, action.index, first : first + length]
                x[row, action.index, first : first + length] = action(part)
        return q, k, v

    def after_attention(
        self, module: nn.Module, v: Tensor, out: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        layer = self.layer_of.get(id(module))
        if layer is None or not self.active or not self.at(layer, *SUMS):
            return out, weights
        own = weights.shape[3] - max(self.sources)
        weights = self._change_weights(layer, weights.clone(), own)
        sums = part_sums(weights, v, own)
        points: tuple[Point, Point] = ("z", "cross_z")
        for point, x in zip(points, sums, strict=True):
            for row, action in self.at(layer, point):
                n = self.lengths[row]
                x[row, :n, action.index] = action(x[row, :n, action.index])
        self.crossed[layer] = sums[1]
        return sums[0] + sums[1], weights

    def _change_weights(self, layer: int, weights: Tensor, own: int) -> Tensor:
        """Weights on a sequence's own positions, and on those of its source. Where some are left
        out and the rest is to sum to one again, that is all of the rest."""
        points: tuple[tuple[Point, int], ...] = (("pattern", 0), ("cross_pattern", own))
        for point, first in points:
            for row, action in self.at(layer, point):
                n, head = self.lengths[row], action.index
                length = (self.sources if first else self.lengths)[row]
                seen = slice(first, first + length)
                if isinstance(action.operation, Without):
                    action, seen = _shift_keys(action, action.operation, first, length), slice(None)
                weights[row, head, :n, seen] = action(weights[row, head, :n, seen])
        return weights


def _shift_keys(action: Action, operation: Without, first: int, length: int) -> Action:
    """The same among the positions of both."""
    keys = tuple(first + key for key in operation.keys if key < length)
    return replace(action, operation=replace(operation, keys=keys))
