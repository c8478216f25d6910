"""Recording a decoder that has an encoder beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from lexray.families import Attention, Heads
from lexray.trace.record.hooks import Recorder, split_heads


@dataclass
class CrossRecorder(Recorder):
    """Of a decoder: also what passes through cross-attention."""

    sources: Sequence[int] = ()
    """How many tokens each sequence's source has."""

    def _hook_attention(self, n: int, spec: Attention) -> None:
        super()._hook_attention(n, spec)
        cross, what = self.architecture.blocks[n].cross, self.plan.what
        assert cross is not None
        if "residual" in what:
            self.before(cross.q.linear.module, self._keeper(n, "cross_in"))
            self.after(cross.o.module, self._keeper(n, "cross_write"))
            if cross.post_norm is not None and cross.post_norm.module is not None:
                self.after(cross.post_norm.module, self._keeper(n, "cross_out"))
        if "heads" in what:
            width = cross.v.d_head
            self.before(cross.o.module, lambda x: self.keep(n, "cross_z", split_heads(x, width)))
        if "attention" in what:
            for name, heads in (("q", cross.q), ("k", cross.k), ("v", cross.v)):
                self.after(heads.linear.module, partial(self._keep_heads, n, name, heads))

    def _keep_heads(self, n: int, name: str, heads: Heads, out: Tensor) -> None:
        x = split_heads(out, heads.d_head)
        if name == "q":
            self.keep(n, "cross_q", x)
        else:
            for row, length in enumerate(self.sources):
                self._put(row, n, f"cross_{name}", x[row, :length])

    def _put(self, row: int, n: int, name: str, x: Tensor) -> None:
        """Keeps what belongs to the positions of a source."""
        self.kept[row][n, name] = x.detach().to(self.plan.device, copy=True)

    def _keep_looks(self, layer: int, weights: Tensor) -> None:
        """The weights (batch, head, query, key) on the positions of the source."""
        for row, length in enumerate(self.sources):
            at = self.plan.rows(row, weights.device)
            self._put(row, layer, "cross_pattern", weights[row][:, at, :length])

    def _see_attention(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, weights: Tensor
    ) -> None:
        layer = self.layer_of.get(id(module))
        if layer is None or layer not in self.plan.layers:
            return
        cross = self.architecture.blocks[layer].cross
        if cross is None or module is not self.modules[cross.module]:
            super()._see_attention(module, q, k, v, weights)
        else:
            self._keep_looks(layer, weights)
