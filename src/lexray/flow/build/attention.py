"""The attention of a block as nodes: queries, keys, values, heads, rows of W_O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.flow.build.draft import Draft
from lexray.flow.build.prune import ShownHeads
from lexray.flow.graph import EdgeKind, NodeKind
from lexray.flow.options import BlockOptions
from lexray.result.format import show_place
from lexray.trace.attribute.heads import HeadsStep
from lexray.trace.attribute.step import Step
from lexray.trace.read.vectors import key_readers, query_readers


@dataclass(frozen=True)
class AttentionDrawing:
    """Draws one attention of a block into a draft."""

    draft: Draft
    step: HeadsStep
    shown: ShownHeads
    options: BlockOptions
    name: Callable[[int], str]
    """How ids call the token at a position."""
    tokens: Sequence[str]
    """All that is there, a source's first."""
    n_source: int = 0
    """How many tokens stand before those that are looked at."""
    letter: ClassVar[str]
    """Between a layer's number and a head's."""
    stem: ClassVar[str]
    """Before the names of nodes that no head owns."""
    out: ClassVar[tuple[str, NodeKind, str]]
    """What it wrote: how the node is called, its kind and its label."""

    @property
    def at(self) -> str:
        return f"L{self.step.index}"

    def _address(self, head: int) -> str:
        return f"{self.step.layer.address}{self.letter}{head}"

    def _node(
        self, id: str, kind: NodeKind, label: str, vector: Float[Tensor, "d_model"], **more: object
    ) -> str:
        behind = None if more.get("side") == "reading" else self.step.attention.post_norm
        given: dict[str, object] = {"behind": behind, **more}
        return self.draft.node(id, kind, self.step.index, label, vector, **given)  # type: ignore[arg-type]

    def draw(self, source: str) -> str:
        """From the attention's input to what it wrote, before any norm."""
        for head in self.shown.memories:
            self._head(head, source)
        return self._outputs(self._concatenation())

    def _head(self, head: int, asked: str) -> None:
        """A head, from the node that its query is made of."""
        step, at = self.step, f"{self.at}.{self.letter}{head}"
        positions = self.shown.memories[head]
        weights = step.pattern[head, list(positions)].tolist()
        values = step.values(head)[list(positions)] @ step.W_O[head]
        asks = {} if self.options.merge_qk else self._keys(head, asked, positions, weights)
        whole, label = step.heads[head], f"{self.letter}{head}"
        self._node(at, NodeKind.HEAD, label, whole, head=head, address=self._address(head))
        for position, weight, value in zip(positions, weights, values, strict=True):
            place = self.n_source + position
            id = f"{at}.value@{self.name(place)}"
            self._node(id, NodeKind.VALUE, self._token(place), value, head=head, position=place)
            before = asks.get(position, asked)
            self.draft.link(before, id, EdgeKind.ATTENTION, score=weight)
            self.draft.link(id, at, EdgeKind.ATTENTION, factor=weight, score=weight)
        seen = int((step.pattern[head] > 0).sum())
        rest = whole - torch.tensor(weights).to(values) @ values
        self._others(f"{at}.others", at, rest, seen - len(positions), head=head)

    def _keys(
        self, head: int, source: str, positions: Sequence[int], weights: Sequence[float]
    ) -> dict[int, str]:
        """The head's query and its keys, which lead to the values."""
        step, at = self.step, f"{self.at}.{self.letter}{head}"
        part = step.own_heads[head]
        q, k = step.q[head], step.k[list(positions), part.kv_index]
        places = torch.tensor(positions, dtype=torch.long, device=q.device)
        actual = self._turned_places(places) - step.position
        offsets = actual if self.options.rotary else torch.zeros_like(actual)
        best = max(zip(weights, offsets.tolist(), strict=True), default=(0.0, 0))[1]
        norm = self.options.norm
        asked = query_readers(part, q[None], torch.tensor([best], device=q.device), norm=norm)[0]
        query = f"{at}.query"
        self._node(query, NodeKind.QUERY, str(head), asked, side="reading", head=head)
        self.draft.link(source, query, EdgeKind.QUERY, score=float(q.norm()))
        nodes: dict[int, str] = {}
        readers = key_readers(part, k, offsets, norm=norm)
        for position, weight, reader in zip(positions, weights, readers, strict=True):
            at_place = self.n_source + position
            id, token = f"{at}.key@{self.name(at_place)}", self._token(at_place)
            place = {"head": head, "position": at_place}
            nodes[position] = self._node(id, NodeKind.KEY, token, reader, side="reading", **place)
            self.draft.link(query, id, EdgeKind.ATTENTION, score=weight)
        return nodes

    def _turned_places(self, positions: Tensor) -> Tensor:
        """By which positions a rotary embedding turns the keys of these."""
        return positions

    def _token(self, place: int) -> str:
        return show_place(self.tokens, place)

    def _concatenation(self) -> str:
        heads, shown = self.step.heads, list(self.shown.memories)
        id = f"{self.at}.{self.stem}concat"
        concat = self._node(id, NodeKind.CONCAT, "heads", heads.sum(0))
        for head in shown:
            self.draft.link(f"{self.at}.{self.letter}{head}", concat, EdgeKind.SUM, factor=1.0)
        rest = heads.sum(0) - heads[shown].sum(0)
        self._others(f"{self.at}.{self.stem}heads.others", concat, rest, len(heads) - len(shown))
        return concat

    def _outputs(self, concat: str) -> str:
        """The rows of W_O, whose coefficients are the entries of the concatenation."""
        step, rows = self.step, list(self.shown.rows)
        z, W_O = step.z.flatten(), step.W_O.flatten(0, 1)
        whole, (name, kind, said) = step.written, self.out
        out = self._node(f"{self.at}.{name}", kind, said, whole)
        rest = whole - z[rows] @ W_O[rows]
        for row, coefficient, vector in zip(rows, z[rows].tolist(), W_O[rows], strict=True):
            head, i = divmod(row, step.W_O.shape[1])
            sign = -1 if coefficient < 0 else 1
            id = self._node(
                f"{self.at}.{self.letter}{head}.O{i}",
                NodeKind.O_NEURON,
                f"{self.letter}{head}·{i}",
                sign * vector,
                parameter=("O", vector, sign),
                head=head,
                address=f"{self._address(head)}.O{i}",
            )
            self.draft.link(concat, id, EdgeKind.ACTIVATION, score=abs(coefficient), sign=sign)
            self.draft.link(id, out, EdgeKind.SUM, factor=abs(coefficient))
        if (bias := step.b_O) is not None:
            rest = rest - self._bias(bias, out)
        left = int((z != 0).sum()) - len(rows)
        self._others(f"{self.at}.{self.stem}W_O.others", out, rest, left)
        return out

    def _bias(self, bias: Float[Tensor, "d_model"], out: str) -> Float[Tensor, "d_model"]:
        id = self._node(
            f"{self.at}.{self.stem}b_O",
            NodeKind.ATTN_BIAS,
            "bias",
            bias,
            parameter=("bias", bias, 1),
            address=None if self.stem else f"{self.step.layer.address}.b_O",
        )
        self.draft.link(id, out, EdgeKind.BIAS, factor=1.0)
        return bias

    def _others(
        self, id: str, out: str, rest: Float[Tensor, "d_model"], count: int, **place: object
    ) -> None:
        if count > 0:
            self._node(id, NodeKind.OTHERS, "others", rest, count=count, **place)
            self.draft.link(id, out, EdgeKind.OTHERS, factor=1.0)


@dataclass(frozen=True)
class OwnAttentionDrawing(AttentionDrawing):
    """A block's own, which begins with what this position itself has to say."""

    step: Step
    letter, stem = "H", ""
    out = ("attn_out", NodeKind.ATTN_OUT, "attention")

    def draw(self, source: str) -> str:
        qkv = self._node(f"{self.at}.qkv", NodeKind.QKV, "q, k, v", self.step.own_values)
        self.draft.link(source, qkv, EdgeKind.SUM)
        return super().draw(qkv)


@dataclass(frozen=True)
class CrossAttentionDrawing(AttentionDrawing):
    """A decoder's to its source, of whose tokens keys and values are made."""

    letter, stem = "X", "cross_"
    out = ("cross_out", NodeKind.CROSS_OUT, "cross-att.")

    def _turned_places(self, positions: Tensor) -> Tensor:
        return torch.zeros_like(positions)  # nothing turns a source's keys (T5Gemma 2)
