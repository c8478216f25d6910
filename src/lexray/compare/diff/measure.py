"""The first pass of a comparison: by how much every vector moved, a layer at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from math import sqrt
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.compare.diff.heads import HeadChanges, Matrix
from lexray.compare.diff.ledger import Candidate, Ledger
from lexray.compare.diff.pair import NUMBERS_AT_ONCE, ROWS_AT_ONCE, Delta, Two
from lexray.compare.diff.stacks import (
    CIRCUITS,
    SUBHEADS,
    DiffGroup,
    Round,
    Stack,
    layer_stacks,
    model_stacks,
)
from lexray.families import Architecture
from lexray.families.walk import tensor_names
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.progress import track

COMMON = 0.2
"""How long the mean of the rows' movements is at least, as a share of their usual length, for what
they did in common to be told apart from what each did; that of independent ones is 1 / √n."""
UNRELATED = 0.9
"""Models that differ by so large a share of themselves have nothing to do with one another."""


def measure(two: Two, ledger: Ledger, groups: tuple[DiffGroup, ...]) -> None:
    depth = min(two.base.n_layers, two.tuned.n_layers)
    for layer in track(range(depth), depth, f"comparing the layers of {two.base.name}"):
        _measure_layer(two, ledger, groups, layer)
    stacks = [model_stacks(model) for model in (two.base, two.tuned)]
    for b, t in two.match(*stacks):
        if b.group in groups:
            _measure_stack(ledger, b, two.delta(b, t))
    two.describe_tokens()
    for group, name in (("embedding", "W_E"), ("unembedding", "W_U")):
        tied = group == "unembedding" and two.base.architecture.tied and two.tuned.architecture.tied
        if group in groups and not tied:
            _measure_embedding(two, ledger, "embedding" if name == "W_E" else "unembedding")
    ledger.close()
    _measure_rest(two, ledger, groups)
    ledger.close()


def _measure_layer(two: Two, ledger: Ledger, groups: tuple[DiffGroup, ...], layer: int) -> None:
    """One layer of both models, some of which is held at a time."""
    stacks = [layer_stacks(model, layer) for model in (two.base, two.tuned)]
    pairs = {b.name: (b, t) for b, t in two.match(*stacks)}
    heads = HeadChanges(two, layer, pairs)
    waiting = {name: b for name, (b, _) in pairs.items() if b.group in groups}
    for name, b in list(waiting.items()):
        if b.group not in SUBHEADS:
            _measure_stack(ledger, waiting.pop(name), two.delta(*pairs[name]))
    _measure_heads(ledger, heads, layer, [m for m in CIRCUITS if m in groups], waiting)
    for name, b in waiting.items():  # of attention that has no circuits of its own
        _measure_stack(ledger, b, two.delta(*pairs[name]))
    ledger.close()


def _measure_heads(
    ledger: Ledger,
    heads: HeadChanges,
    layer: int,
    matrices: list[Matrix],
    waiting: dict[str, Stack],
) -> None:
    """Head by head: its subheads, which are taken out of those that wait, and its circuits."""
    number = heads.count
    circuits: dict[Matrix, dict[str, tuple[float, float]]] = {matrix: {} for matrix in matrices}
    for i in range(number):
        for name in heads.keep_only(i):
            if name in waiting:
                _measure_stack(ledger, waiting.pop(name), heads.subheads(name))
        for matrix in matrices:
            if (moved := heads.measure(i, matrix)) is not None:
                sizes = moved.product.size, moved.size_before
                circuits[matrix][f"L{layer}H{i}.{matrix}"] = sizes
    if number:
        for matrix in matrices:
            ledger.add_circuits(matrix, layer, circuits[matrix], number)


def _measure_stack(ledger: Ledger, stack: Stack, delta: Delta | None) -> None:
    if delta is None:
        ledger.add_unmoved(stack, stack.n)
    else:
        ledger.add(stack, delta)


def _measure_embedding(two: Two, ledger: Ledger, group: DiffGroup) -> None:
    """Which tokens' embeddings moved, some rows at a time, and what they did in common."""
    b, t = (_embedding(model, group) for model in (two.base, two.tuned))
    if b.missing or t.missing:
        list(two.match([b], [t]))
        return
    if not two.touches(*t.tensors):
        ledger.add_unmoved(b, b.n)
        return
    total, squares, n = None, 0.0, 0
    for ids, delta in _embedding_deltas(two, b, t):
        if bool(delta.sizes.any()):
            ledger.add(b, delta, tokens=ids)
            total = delta.total if total is None else total + delta.total
            squares, n = squares + float(delta.sizes.square().sum()), n + len(ids)
        else:
            ledger.add_unmoved(b, len(ids))
    if total is not None and float(total.norm()) > max(COMMON, 2 / sqrt(n)) * sqrt(n * squares):
        direction = total / total.norm()
        along = torch.zeros(b.n)
        for ids, delta in _embedding_deltas(two, b, t):
            along[ids] = delta.project(direction).float().cpu()
        ledger.set_apart(b, direction, along)


def _embedding_deltas(two: Two, b: Stack, t: Stack) -> Iterator[tuple[Int[Tensor, "some"], Delta]]:
    """Some tokens at a time, and how their rows moved; none where the widths differ."""
    before, after = (
        _Rows(p, rounded) for p, rounded in zip((b, t), two.rounding(b, t), strict=True)
    )
    factors = two.row_factors(t)
    partners = torch.full((b.n,), -1)
    known = two.partners[: b.n]
    partners[: len(known)] = torch.where(known < t.n, known, -1)
    width = b.model.checkpoint.info(b.tensors[0]).shape[-1]
    step = max(1, min(ROWS_AT_ONCE, NUMBERS_AT_ONCE // max(1, width)))
    blocks = range(0, b.n, step)
    for start in track(blocks, len(blocks), f"comparing the {b.group} of {two.base.name}"):
        ids = torch.arange(start, min(start + step, b.n))
        ids = ids[partners[ids] >= 0]
        if not len(ids):
            continue
        old, at = before(ids), partners[ids]
        if factors is not None:
            left, right = factors
            yield ids, Delta(old, after.project(right).to(old), left[at.to(left.device)].to(old))
        elif (new := after(at)).shape == old.shape:
            yield ids, two.subtract(old, new, b.group)
        else:
            two.note(f"the {b.group}s have the widths {old.shape[1]} and {new.shape[1]}")
            return


class _Rows:
    """Rows of an embedding, brought to the model's width."""

    def __init__(self, stack: Stack, rounded: Round) -> None:
        self._stack, self._rounded, self._model = stack, rounded, stack.model
        a, checkpoint = self._model.architecture, self._model.checkpoint
        linear = a.project_in if stack.group == "embedding" else a.project_out
        self._P = None if linear is None else self._model.place(linear.read(checkpoint))
        if self._P is not None and stack.group == "unembedding":
            self._P = self._P.T

    def __call__(self, ids: Int[Tensor, "some"]) -> Float[Tensor, "some d_model"]:
        """Neighbours are read together; what lies scattered is taken from the whole."""
        low, high = int(ids.min()), int(ids.max()) + 1
        if high - low <= 2 * ROWS_AT_ONCE:
            read = self._model.tensor(self._stack.tensors[0], slice(low, high))
        else:
            read, low = self._whole, 0
        rows = read[(ids - low).to(read.device)]
        return self.project(at_least_float32(self._rounded(self._model.place(rows))))

    def project(self, rows: Float[Tensor, "n width"]) -> Float[Tensor, "n d_model"]:
        return rows if self._P is None else rows @ self._P.to(rows)

    @cached_property
    def _whole(self) -> Float[Tensor, "e width"]:
        return self._model.tensor(self._stack.tensors[0])


def _embedding(model: Model, group: DiffGroup) -> Stack:
    a = model.architecture
    name, tensor = ("W_E", a.embed) if group == "embedding" else ("W_U", a.unembed)
    read = partial(model.tensor, tensor)
    kind: Literal["bias", "norm"] = "bias" if group == "embedding" else "norm"
    return Stack(
        *(model, group, None, name, kind, (tensor,)),
        read,
        address_of=lambda i: f"{name}[{i}]",
        n=model.checkpoint.info(tensor).shape[0] if tensor in model.checkpoint.names() else 0,
    )


def described(a: Architecture) -> set[str]:
    """The tensors that layers and ends have stacks for: not the encoder beside a decoder, which is
    compared by itself, nor the biases of cross-attention."""
    crossing = [block.cross for block in a.blocks if block.cross is not None]
    maps = [part for x in crossing for part in (x.q.linear, x.k.linear, x.v.linear, x.o)]
    return tensor_names(replace(a, encoder=None)) - {part.bias for part in maps if part.bias}


def _measure_rest(two: Two, ledger: Ledger, groups: tuple[DiffGroup, ...]) -> None:
    """Tensors that no family describes: classifiers above all."""
    known = [described(model.architecture) for model in (two.base, two.tuned)]
    ours, theirs = (
        {name for name in model.checkpoint.names() if name not in all_known}
        for model, all_known in zip((two.base, two.tuned), known, strict=True)
    )
    for name in sorted(theirs | ours):
        model = two.tuned if name in theirs else two.base
        rows = _classifier(model, name)
        if rows is None:
            continue
        if name in theirs and name in ours:
            other = _classifier(two.base, name)
            if other is not None and rows.group in groups:
                _measure_stack(ledger, other, two.delta(other, rows))
        elif name in theirs:
            two.note(f"{name} is new: its {rows.n} rows are read whole")
            if rows.group in groups:
                ledger.add_new(_new_rows(two.tuned, rows))
        else:
            two.note(f"the tuned model has no {name}")


def _classifier(model: Model, name: str) -> Stack | None:
    """The rows of a matrix that reads from the residual stream; None for other tensors."""
    info, d = model.checkpoint.info(name), model.d_model
    embed = model.architecture.embed
    copies = embed in model.checkpoint.names() and info.shape == model.checkpoint.info(embed).shape
    if len(info.shape) != 2 or d not in info.shape or copies or not info.dtype.is_floating_point:
        return None
    flipped = info.shape[1] != d
    n = info.shape[1] if flipped else info.shape[0]
    return Stack(
        *(model, "classifier" if n < d else "other", None, name, "norm", (name,)),
        lambda: model.checkpoint.read(name).T if flipped else model.checkpoint.read(name),
        address_of=lambda i: f"{name}[{i}]",
        n=n,
    )


def _new_rows(model: Model, stack: Stack) -> Iterator[Candidate]:
    labels = model.config.get("id2label") if stack.group == "classifier" else None
    for i, row in enumerate(stack.read(lambda x: x)):
        size = float(row.norm())
        if size > 0 and size < float("inf"):
            said = str(labels.get(str(i), labels.get(i, ""))) if isinstance(labels, dict) else ""
            yield Candidate(
                stack.address(i), stack.group, None, stack.kind, size, 0.0, 1.0, row, label=said,
                new=True,
            )  # fmt: skip


def note_strangers(two: Two, ledger: Ledger) -> None:
    layers = [size for size in ledger.sizes() if size.group in ("keys", "values", "Q", "K", "O")]
    shares = [size.relative for size in layers if size.relative is not None]
    if shares and sorted(shares)[len(shares) // 2] > UNRELATED:
        two.note(
            "the models differ by as much as they are: they were trained separately, and their "
            "difference means little; `lexray align` finds what corresponds in them"
        )
