"""The attention of a block as nodes: queries, keys, values, heads, rows of W_O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.flow.build.draft import Draft
from lexray.flow.build.prune import Shown
from lexray.flow.graph import EdgeKind, NodeKind
from lexray.flow.options import BlockOptions
from lexray.result.format import show_place
from lexray.trace.attribute.step import Step
from lexray.trace.read.vectors import key_readers, query_readers


@dataclass(frozen=True)
class AttentionDrawing:
    """Draws one block's attention into a draft."""

    draft: Draft
    step: Step
    shown: Shown
    options: BlockOptions
    name: Callable[[int], str]
    """How ids call the token at a position."""

    @property
    def at(self) -> str:
        return f"L{self.step.index}"

    def _node(
        self, id: str, kind: NodeKind, label: str, vector: Float[Tensor, "d_model"], **more: object
    ) -> str:
        behind = None if more.get("side") == "reading" else self.step.spec.attention.post_norm
        given: dict[str, object] = {"behind": behind, **more}
        return self.draft.node(id, kind, self.step.index, label, vector, **given)  # type: ignore[arg-type]

    def draw(self, source: str) -> str:
        """From the attention's input to what it wrote, before any norm."""
        qkv = self._node(f"{self.at}.qkv", NodeKind.QKV, "q, k, v", self.step.own_values)
        self.draft.link(source, qkv, EdgeKind.SUM)
        for head in self.shown.memories:
            self._head(head, qkv)
        return self._outputs(self._concatenation())

    def _head(self, head: int, qkv: str) -> None:
        step, at = self.step, f"{self.at}.H{head}"
        positions = self.shown.memories[head]
        weights = step.pattern[head, list(positions)].tolist()
        values = step.values(head)[list(positions)] @ step.W_O[head]
        asks = {} if self.options.merge_qk else self._keys(head, qkv, positions, weights)
        whole = step.heads[head]
        address = f"L{step.index}H{head}"
        self._node(at, NodeKind.HEAD, f"H{head}", whole, head=head, address=address)
        for position, weight, value in zip(positions, weights, values, strict=True):
            id = f"{at}.value@{self.name(position)}"
            token = self._token(position)
            self._node(id, NodeKind.VALUE, token, value, head=head, position=position)
            before = asks.get(position, qkv)
            self.draft.link(before, id, EdgeKind.ATTENTION, score=weight)
            self.draft.link(id, at, EdgeKind.ATTENTION, factor=weight, score=weight)
        seen = int((step.pattern[head] > 0).sum())
        rest = whole - torch.tensor(weights).to(values) @ values
        self._others(f"{at}.others", at, rest, seen - len(positions), head=head)

    def _keys(
        self, head: int, qkv: str, positions: Sequence[int], weights: Sequence[float]
    ) -> dict[int, str]:
        """The head's query and its keys, which lead to the values."""
        step, at = self.step, f"{self.at}.H{head}"
        part = step.layer.heads[head]
        q, k = self._q[head], self._k[list(positions), part.kv_index]
        actual = torch.tensor(positions, dtype=torch.long, device=q.device) - step.position
        offsets = actual if self.options.rotary else torch.zeros_like(actual)
        best = max(zip(weights, offsets.tolist(), strict=True), default=(0.0, 0))[1]
        norm = self.options.norm
        asked = query_readers(part, q[None], torch.tensor([best], device=q.device), norm=norm)[0]
        query = f"{at}.query"
        self._node(query, NodeKind.QUERY, str(head), asked, side="reading", head=head)
        self.draft.link(qkv, query, EdgeKind.QUERY, score=float(q.norm()))
        nodes: dict[int, str] = {}
        readers = key_readers(part, k, offsets, norm=norm)
        for position, weight, reader in zip(positions, weights, readers, strict=True):
            id = f"{at}.key@{self.name(position)}"
            token = self._token(position)
            place = {"head": head, "position": position}
            nodes[position] = self._node(id, NodeKind.KEY, token, reader, side="reading", **place)
            self.draft.link(query, id, EdgeKind.ATTENTION, score=weight)
        return nodes

    def _token(self, position: int) -> str:
        return show_place([t.shown for t in self.step.moment.recording.tokens], position)

    @cached_property
    def _q(self) -> Float[Tensor, "n_heads d_head"]:
        return self.step.at(self.step.recorded.q)

    @cached_property
    def _k(self) -> Float[Tensor, "n n_kv_heads d_head"]:
        return self.step.moment.place(self.step.recorded.k)

    def _concatenation(self) -> str:
        heads, shown = self.step.heads, list(self.shown.memories)
        concat = self._node(f"{self.at}.concat", NodeKind.CONCAT, "heads", heads.sum(0))
        for head in shown:
            self.draft.link(f"{self.at}.H{head}", concat, EdgeKind.SUM, factor=1.0)
        rest = heads.sum(0) - heads[shown].sum(0)
        self._others(f"{self.at}.heads.others", concat, rest, len(heads) - len(shown))
        return concat

    def _outputs(self, concat: str) -> str:
        """The rows of W_O, whose coefficients are the entries of the concatenation."""
        step, rows = self.step, list(self.shown.rows)
        z, W_O = step.z.flatten(), step.W_O.flatten(0, 1)
        whole = step.output_of("attention")
        out = self._node(f"{self.at}.attn_out", NodeKind.ATTN_OUT, "attention", whole)
        rest = whole - z[rows] @ W_O[rows]
        for row, coefficient, vector in zip(rows, z[rows].tolist(), W_O[rows], strict=True):
            head, i = divmod(row, step.W_O.shape[1])
            sign = -1 if coefficient < 0 else 1
            id = self._node(
                f"{self.at}.H{head}.O{i}",
                NodeKind.O_NEURON,
                f"H{head}·{i}",
                sign * vector,
                parameter=("O", vector, sign),
                head=head,
                address=f"L{step.index}H{head}.O{i}",
            )
            self.draft.link(concat, id, EdgeKind.ACTIVATION, score=abs(coefficient), sign=sign)
            self.draft.link(id, out, EdgeKind.SUM, factor=abs(coefficient))
        if (bias := step.b_O) is not None:
            rest = rest - self._bias(bias, out)
        self._others(f"{self.at}.W_O.others", out, rest, int((z != 0).sum()) - len(rows))
        return out

    def _bias(self, bias: Float[Tensor, "d_model"], out: str) -> Float[Tensor, "d_model"]:
        address = f"L{self.step.index}.b_O"
        parameter = ("bias", bias, 1)
        id = f"{self.at}.b_O"
        self._node(id, NodeKind.ATTN_BIAS, "bias", bias, parameter=parameter, address=address)
        self.draft.link(id, out, EdgeKind.BIAS, factor=1.0)
        return bias

    def _others(
        self, id: str, out: str, rest: Float[Tensor, "d_model"], count: int, **place: object
    ) -> None:
        if count > 0:
            self._node(id, NodeKind.OTHERS, "others", rest, count=count, **place)
            self.draft.link(id, out, EdgeKind.OTHERS, factor=1.0)
