"""Recording a decoder whose attention to itself and to its source is one (T5Gemma 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from torch import Tensor, nn

from lexray.families import Attention, Norm
from lexray.trace.apply.merged import MergedEditor, part_sums
from lexray.trace.record.crossing import CrossRecorder
from lexray.trace.record.hooks import Recorder


@dataclass
class MergedRecorder(CrossRecorder):
    """What heads took of a sequence's own positions and of the source, each by itself. The bias of
    what they write, and that of the norm behind it, are with the own part."""

    crossed: dict[int, Tensor] = field(default_factory=dict)
    """By layer: what heads took of the source, (sequence, position, head, width)."""
    wrote: dict[int, Tensor] = field(default_factory=dict)
    """By layer: what they wrote of it; and …"""
    scale: dict[int, Tensor] = field(default_factory=dict)
    """… what the norm behind multiplies by, besides its gain."""

    @property
    def watches(self) -> bool:
        """What is written falls apart where attention is watched."""
        return bool({"attention", "heads", "residual"} & self.plan.what)

    def _is_called_again(self, spec: Attention) -> bool:
        return True

    def _hook_attention(self, n: int, spec: Attention) -> None:
        Recorder._hook_attention(self, n, spec)
        if "residual" in self.plan.what:
            self.after(spec.o.module, partial(self._part_written, n, spec))
            if (norm := spec.post_norm) is not None and norm.module is not None:
                self.after(norm.module, partial(self._part_added, n, norm))

    def _see_attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, weights: Tensor
    ) -> None:
        layer = self.layer_of.get(id(module))
        if layer is None or layer not in self.plan.layers:
            return
        own = weights.shape[3] - max(self.sources)
        crossed = part_sums(weights, v, own)[1]
        if isinstance(self.editor, MergedEditor):
            crossed = self.editor.crossed.get(layer, crossed)
        self.crossed[layer] = crossed
        if "attention" in self.plan.what:
            Recorder._see_attention(self, module, q, k[:, :, :own], v[:, :, :own], weights)
            self._keep_looks(layer, weights[..., own:])
            for name, x in (("cross_k", k), ("cross_v", v)):
                for row, length in enumerate(self.sources):
                    self._put(row, layer, name, x[row, :, own : own + length].transpose(0, 1))

    def _keep_z(self, n: int, z: Tensor) -> None:
        self.keep(n, "z", z - self.crossed[n])
        self.keep(n, "cross_z", self.crossed[n])

    def _part_written(self, n: int, spec: Attention, out: Tensor) -> None:
        written = self.crossed[n].flatten(2) @ spec.o.read(self.checkpoint).to(out)
        if isinstance(self.editor, MergedEditor):
            written = self.editor.wrote.get(n, written)
        self.wrote[n] = written
        self.keep(n, "attn_write", out - written)
        self.keep(n, "cross_write", written)
        if spec.post_norm is not None:
            wide = out.float() if out.dtype.itemsize < 4 else out
            self.scale[n] = spec.post_norm.scale(wide)

    def _part_added(self, n: int, norm: Norm, out: Tensor) -> None:
        gain, wide = norm.read_gain(self.checkpoint), self.wrote[n].to(self.scale[n])
        added = wide * self.scale[n]
        added = (added if gain is None else added * gain.to(added)).to(out)
        self.keep(n, "attn_out", out - added)
        self.keep(n, "cross_out", added)
