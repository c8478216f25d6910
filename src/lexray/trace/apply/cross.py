"""Hooks that change a decoder's attention to its source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from lexray.families import Attention, Heads
from lexray.trace.apply.actions import CROSS, Point
from lexray.trace.apply.editor import Editor, columns_of


@dataclass(eq=False)
class CrossEditor(Editor):
    """Changes a decoder, its cross-attention too, whose keys and values are the source's."""

    sources: Sequence[int] = ()
    """How many tokens each sequence's source has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        specs = (block.cross for block in self.architecture.blocks)
        self._crossing = {id(self.modules[spec.module]) for spec in specs if spec is not None}

    @property
    def attends(self) -> bool:
        return super().attends or self.asks(*CROSS)

    def _hook_attention(self, undo: ExitStack, n: int) -> None:
        super()._hook_attention(undo, n)
        spec = self.architecture.blocks[n].cross
        if spec is None:
            return
        self._hook_cross_projections(undo, n, spec)
        if self.at(n, "cross_z"):
            width = spec.v.d_head
            self._before(undo, spec.o.module, lambda x: self._columns(x, n, "cross_z", width))
        if self.at(n, "cross"):
            self._after(undo, spec.o.module, lambda x: self._whole(x, n, "cross"))

    def _hook_cross_projections(self, undo: ExitStack, n: int, spec: Attention) -> None:
        """Nothing turns or norms queries and keys behind their linear maps."""
        projections: tuple[tuple[Point, Heads, Sequence[int]], ...] = (
            ("cross_q", spec.q, self.lengths),
            ("cross_k", spec.k, self.sources),
            ("cross_v", spec.v, self.sources),
        )
        for point, heads, lengths in projections:
            if self.at(n, point):
                change = partial(self._change_heads, n, point, heads, lengths)
                self._after(undo, heads.linear.module, change)

    def _change_heads(
        self, n: int, point: Point, heads: Heads, lengths: Sequence[int], x: Tensor
    ) -> Tensor:
        changed = x.clone()
        for row, action in self.at(n, point):
            assert action.index is not None
            part = changed[row, : lengths[row], columns_of(heads, action.index)]
            part[:] = action(part)
        return changed

    def before_attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if id(module) in self._crossing:
            return q, k, v
        return super().before_attention(module, q, k, v)

    def after_attention(
        self, module: nn.Module, v: Tensor, out: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        if id(module) not in self._crossing:
            return super().after_attention(module, v, out, weights)
        return self._reweigh(module, "cross_pattern", self.sources, v, out, weights)
