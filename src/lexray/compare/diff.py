"""What did a fine-tune change? Every parameter of tuned − base, as words (ES §4.3).

The comparison runs twice over the models. First it measures: layer by layer, group by group, by
how much each vector moved. Then it reads the farthest moved: the top tokens of the difference
and of its negation; of a head's circuits the top pairs. The most telling come first, where

    telling = √(share · s) · c · (1 + legibility)

with share = ‖Δ‖ over the usual length of such vectors in that layer (at most 1), s = that share
over the median of all vectors of the group that moved, c = how many standard deviations the best
token (of either end) stands out from the whole vocabulary, over √(2 ln e), which is what the best
of e random scores reaches; for pairs the square root of the same, as a pair has two ends. So what
is large for its group and points at something comes before what is only large, or only pointed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import log, sqrt
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.checkpoint.lora import CONFIG as ADAPTER_CONFIG
from lexray.checkpoint.lora import LoraCheckpoint
from lexray.checkpoint.opening import open_checkpoint
from lexray.compare.diff_heads import HeadChanges, read_pairs
from lexray.compare.diff_ledger import Candidate, Ledger
from lexray.compare.diff_pair import ROWS_AT_ONCE, Delta, Two
from lexray.compare.diff_places import (
    CIRCUITS,
    Group,
    Place,
    Round,
    chosen,
    described,
    layer_places,
    model_places,
)
from lexray.compare.diff_result import Change, Diff
from lexray.compare.lexicon import Lexicon, Sentiment, count_words
from lexray.errors import LexrayError
from lexray.filters import Filter
from lexray.fold import at_least_float32
from lexray.model import Model
from lexray.progress import track

AT_ONCE = 64
"""Vectors read at a time."""
MOST_MOVED = 50
"""How many vectors of each group the count of sentiment words looks at."""
UNRELATED = 0.9
"""Models that differ by so large a share of themselves have nothing to do with one another."""


def diff(
    base: Model | str | Path,
    tuned: Model | str | Path,
    *,
    n: int = 50,
    k: int = 10,
    each: int = 3,
    groups: Sequence[str] = (),
    filter: Filter | None = None,
    through: Literal["base", "tuned"] = "base",
    lexicon: Lexicon | None = None,
    seed: int = 0,
) -> Diff:
    """How `tuned` differs from `base`: how far every group moved, and towards which words.

    >>> lx.diff("demo", "demo-sentiment")
    >>> lx.diff(base.view(folded=True), "my-lora-adapter", groups=["VO", "QK"])

    - The `n` most telling changes are listed, and `each` of every group, with k tokens each.
    - The base's view holds for both models, and its embedding reads the differences;
      `through="tuned"` takes the tuned model's instead.
    - A LoRA adapter is put on `base` itself, and only what it touches is read.
    - `lexicon` adds the count of ES App. D: how many of the words are words of praise and blame.
    """
    if n < 1 or k < 1 or each < 0:
        raise LexrayError(f"asked for {n} changes with {k} tokens; both must be at least 1")
    if through not in ("base", "tuned"):
        raise LexrayError(f"changes are read through the base or the tuned model, not {through!r}")
    wanted = chosen(tuple(groups))
    first = base if isinstance(base, Model) else Model.from_pretrained(base)
    two = Two(first, open_tuned(first, tuned))
    ledger = Ledger(max(n, MOST_MOVED if lexicon else 0), max(each, n // 4))
    _measure(two, ledger, wanted)
    reader = two.base if through == "base" else two.tuned
    changes = _Reader(two, ledger, reader, k, filter).changes(n, each)
    sentiment = lexicon and _sentiment(ledger, reader, lexicon, filter, seed)
    sizes = ledger.sizes()
    _note_strangers(two, ledger)
    return Diff(
        replace(reader.space.source("", filter), model=reader.name),
        two.base.name,
        two.tuned.name,
        tuple(changes),
        sizes,
        tuple(two.notes),
        through,
        sum(size.moved for size in sizes if size.group not in CIRCUITS),
        sum(size.vectors for size in sizes if size.group not in CIRCUITS),
        sentiment,
    )


def open_tuned(base: Model, tuned: Model | str | Path, **options: Any) -> Model:
    """The tuned model; an adapter's folder is opened on top of the base."""
    if isinstance(tuned, Model):
        return tuned
    place = {"device": base.device, "dtype": base.dtype}
    if not (Path(tuned) / ADAPTER_CONFIG).exists():
        return Model.from_pretrained(tuned, **place, **options)
    under = base.checkpoint
    if isinstance(under, LoraCheckpoint):
        raise LexrayError(f"{under.name} is an adapter itself, and cannot be the base of {tuned}")
    return Model(open_checkpoint(tuned, base=under), **place, **_families(options))


def _families(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name == "family"}


# ---------------------------------------------------------------------- first pass: measuring


def _measure(two: Two, ledger: Ledger, groups: tuple[Group, ...]) -> None:
    depth = min(two.base.n_layers, two.tuned.n_layers)
    for layer in track(range(depth), depth, f"comparing the layers of {two.base.name}"):
        _measure_layer(two, ledger, groups, layer)
    places = [model_places(model) for model in (two.base, two.tuned)]
    for b, t in two.matched(*places):
        if b.group in groups:
            _measure_place(ledger, b, two.delta(b, t))
    two.describe_tokens()
    for group, name in (("embedding", "W_E"), ("unembedding", "W_U")):
        tied = group == "unembedding" and two.base.architecture.tied and two.tuned.architecture.tied
        if group in groups and not tied:
            _measure_embedding(two, ledger, "embedding" if name == "W_E" else "unembedding")
    ledger.close()
    _measure_rest(two, ledger, groups)
    ledger.close()


def _measure_layer(two: Two, ledger: Ledger, groups: tuple[Group, ...], layer: int) -> None:
    """One layer of both models: all that is held at a time."""
    places = [layer_places(model, layer) for model in (two.base, two.tuned)]
    pairs = {b.name: (b, t) for b, t in two.matched(*places)}
    heads = HeadChanges(two, layer, pairs)
    for name, (b, t) in pairs.items():
        if b.group in groups:
            subhead = b.group in ("Q", "K", "V", "O")
            _measure_place(ledger, b, heads.subheads(name) if subhead else two.delta(b, t))
    for matrix in CIRCUITS:
        if matrix in groups:
            number = len(two.base.layers[layer].heads)
            if number == len(two.tuned.layers[layer].heads):
                found = {
                    f"L{layer}H{i}.{matrix}": (moved.product.size, moved.size_before)
                    for i in range(number)
                    if (moved := heads.moved(i, matrix)) is not None
                }
                ledger.add_circuits(matrix, layer, found, number)
    ledger.close()


def _measure_place(ledger: Ledger, place: Place, delta: Delta | None) -> None:
    if delta is None:
        ledger.unmoved(place, place.n)
    else:
        ledger.add(place, delta)


def _measure_embedding(two: Two, ledger: Ledger, group: Group) -> None:
    """Which tokens' embeddings moved, some rows at a time."""
    b, t = (_embedding(model, group) for model in (two.base, two.tuned))
    if b.missing or t.missing:
        list(two.matched([b], [t]))
        return
    if not two.touched(*t.tensors):
        ledger.unmoved(b, b.n)
        return
    before, after = (
        _Rows(p, rounded) for p, rounded in zip((b, t), two.rounding(b, t), strict=True)
    )
    factors = two.row_factors(t)
    partners = torch.full((b.n,), -1)
    known = two.partners[: b.n]
    partners[: len(known)] = torch.where(known < t.n, known, -1)
    blocks = range(0, b.n, ROWS_AT_ONCE)
    for start in track(blocks, len(blocks), f"comparing the {group} of {two.base.name}"):
        ids = torch.arange(start, min(start + ROWS_AT_ONCE, b.n))
        ids = ids[partners[ids] >= 0]
        if not len(ids):
            continue
        old, at = before(ids), partners[ids]
        if factors is not None:
            left, right = factors
            delta = Delta(old, after.projected(right).to(old), left[at.to(left.device)].to(old))
        elif (new := after(at)).shape == old.shape:
            delta = two.compared(old, new, group)
        else:
            two.note(f"the {group}s have the widths {old.shape[1]} and {new.shape[1]}")
            return
        if bool(delta.sizes.any()):
            ledger.add(b, delta, tokens=ids)
        else:
            ledger.unmoved(b, len(ids))


class _Rows:
    """Rows of an embedding, brought to the model's width."""

    def __init__(self, place: Place, rounded: Round) -> None:
        self._place, self._rounded, self._model = place, rounded, place.model
        a, checkpoint = self._model.architecture, self._model.checkpoint
        linear = a.project_in if place.group == "embedding" else a.project_out
        self._P = None if linear is None else self._model.place(linear.read(checkpoint))
        if self._P is not None and place.group == "unembedding":
            self._P = self._P.T

    def __call__(self, ids: Int[Tensor, "some"]) -> Float[Tensor, "some d_model"]:
        """Neighbours are read together; what lies scattered is taken from the whole."""
        low, high = int(ids.min()), int(ids.max()) + 1
        if high - low <= 2 * ROWS_AT_ONCE:
            read = self._model.checkpoint.read(self._place.tensors[0], slice(low, high))
        else:
            read, low = self._whole, 0
        rows = read[(ids - low).to(read.device)]
        return self.projected(at_least_float32(self._rounded(self._model.place(rows))))

    def projected(self, rows: Float[Tensor, "n width"]) -> Float[Tensor, "n d_model"]:
        return rows if self._P is None else rows @ self._P.to(rows)

    @cached_property
    def _whole(self) -> Float[Tensor, "e width"]:
        return self._model.checkpoint.read(self._place.tensors[0])


def _embedding(model: Model, group: Group) -> Place:
    a = model.architecture
    name, tensor = ("W_E", a.embed) if group == "embedding" else ("W_U", a.unembed)
    read = partial(model.checkpoint.read, tensor)
    kind: Literal["bias", "norm"] = "bias" if group == "embedding" else "norm"
    return Place(
        *(model, group, None, name, kind, (tensor,)),
        read,
        address_of=lambda i: f"{name}[{i}]",
        n=model.checkpoint.info(tensor).shape[0] if tensor in model.checkpoint.names() else 0,
    )


def _measure_rest(two: Two, ledger: Ledger, groups: tuple[Group, ...]) -> None:
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
                _measure_place(ledger, other, two.delta(other, rows))
        elif name in theirs:
            two.note(f"{name} is new: its {rows.n} rows are read whole")
            if rows.group in groups:
                ledger.add_new(_new_rows(two.tuned, rows))
        else:
            two.note(f"the tuned model has no {name}")


def _classifier(model: Model, name: str) -> Place | None:
    """The rows of a matrix that reads from the residual stream; None for other tensors."""
    info, d = model.checkpoint.info(name), model.d_model
    embed = model.architecture.embed
    copies = embed in model.checkpoint.names() and info.shape == model.checkpoint.info(embed).shape
    if len(info.shape) != 2 or d not in info.shape or copies or not info.dtype.is_floating_point:
        return None
    flipped = info.shape[1] != d
    n = info.shape[1] if flipped else info.shape[0]
    return Place(
        *(model, "classifier" if n < d else "other", None, name, "norm", (name,)),
        lambda: model.checkpoint.read(name).T if flipped else model.checkpoint.read(name),
        address_of=lambda i: f"{name}[{i}]",
        n=n,
    )


def _new_rows(model: Model, place: Place) -> Iterator[Candidate]:
    labels = model.config.get("id2label") if place.group == "classifier" else None
    for i, row in enumerate(place.read(lambda x: x)):
        size = float(row.norm())
        if size > 0 and size < float("inf"):
            said = str(labels.get(str(i), labels.get(i, ""))) if isinstance(labels, dict) else ""
            yield Candidate(
                place.address(i), place.group, None, place.kind, size, 0.0, 1.0, row, label=said,
                new=True,
            )  # fmt: skip


def _note_strangers(two: Two, ledger: Ledger) -> None:
    layers = [size for size in ledger.sizes() if size.group in ("keys", "values", "Q", "K", "O")]
    shares = [size.relative for size in layers if size.relative is not None]
    if shares and sorted(shares)[len(shares) // 2] > UNRELATED:
        two.note(
            "the models differ by as much as they are: they were trained separately, and their "
            "difference means little; `lexray align` finds what corresponds in them"
        )


# ---------------------------------------------------------------------- second pass: reading


class _Reader:
    """Reads candidates as words and puts them in order."""

    def __init__(
        self, two: Two, ledger: Ledger, reader: Model, k: int, filter: Filter | None
    ) -> None:
        self.two, self.ledger, self.reader = two, ledger, reader
        self.k, self.filter = k, filter
        space = reader.space
        ids = space.admitted(filter)
        self._peak = sqrt(2 * log(max(2, space.n_rows if ids is None else len(ids))))

    def changes(self, n: int, each: int) -> list[Change]:
        """The n most telling, and some of each group."""
        read: list[Change] = []
        names = list(self.ledger.best)
        for group in track(names, len(names), "reading what moved"):
            found = self.ledger.candidates(group)
            read += self._circuits(group, found) if group in CIRCUITS else self._vectors(found)
        read.sort(key=lambda change: (-change.telling, change.address))
        chosen = set(range(min(n, len(read))))
        for group in names:
            chosen |= set([i for i, c in enumerate(read) if c.group == group][:each])
        return [read[i] for i in sorted(chosen)]

    def _telling(self, candidate: Candidate, peak: float, legibility: float) -> float:
        usual = 1.0 if candidate.new else self.ledger.median(candidate.group)
        size = sqrt(min(1.0, candidate.share) * candidate.share / (usual or 1.0))
        return size * peak / self._peak * (1 + max(0.0, legibility))

    def _vectors(self, candidates: list[Candidate]) -> Iterator[Change]:
        kinds = {c.kind for c in candidates}
        for kind in sorted(kinds, key=str):
            same = [c for c in candidates if c.kind == kind]
            for start in range(0, len(same), AT_ONCE):
                yield from self._block(same[start : start + AT_ONCE])

    def _block(self, block: list[Candidate]) -> Iterator[Change]:
        """Some vectors of one kind."""
        space, kind = self.reader.space, block[0].kind
        vectors = [c.vector for c in block if c.vector is not None]
        if kind is None:
            for candidate, vector in zip(block, vectors, strict=True):
                yield self._of_tokens(candidate, vector)
            return
        X = torch.stack(vectors).to(self.reader.device)
        addresses = [c.address for c in block]
        readings = space.readings(X, kind, addresses, self.k, self.filter)
        spread = _spread(space.side(kind, self.filter).project(X))
        for candidate, reading, (mean, deviation) in zip(block, readings, spread, strict=True):
            ends = (reading.top[0].score - mean, mean - reading.bottom[0].score)
            bottom_ids = torch.tensor([[s.token.id for s in reading.bottom]])
            legible = max(reading.legibility, float(space.legibility(bottom_ids)[0]))
            telling = self._telling(candidate, max(ends) / (deviation or 1.0), legible)
            yield self._change(candidate, telling, legible, top=reading.top, bottom=reading.bottom)

    def _of_tokens(self, candidate: Candidate, vector: Float[Tensor, "e"]) -> Change:
        """A bias of the logits: its entries are tokens already."""
        space = self.reader.space
        ids = space.admitted(self.filter)
        scores = vector if ids is None else vector[ids.to(vector.device)]
        top, bottom, legible = space.scored(scores, self.k, ids)
        ((mean, deviation),) = _spread(scores[None])
        peak = max(top[0].score - mean, mean - bottom[0].score) / (deviation or 1.0)
        telling = self._telling(candidate, peak, legible)
        return self._change(candidate, telling, legible, top=top, bottom=bottom)

    def _circuits(self, group: Group, candidates: list[Candidate]) -> Iterator[Change]:
        for candidate in track(candidates, len(candidates), f"reading {group} of heads"):
            assert candidate.layer is not None
            layer = candidate.layer
            places = [layer_places(model, layer) for model in (self.two.base, self.two.tuned)]
            pairs = {b.name: (b, t) for b, t in self.two.matched(*places)}
            circuit = self.two.base[candidate.address]
            moved = HeadChanges(self.two, layer, pairs).moved(circuit.head.index, circuit.matrix)
            assert moved is not None
            found = read_pairs(self.two, self.reader, moved, circuit, self.k, self.filter)
            telling = self._telling(candidate, sqrt(found.peak), found.legibility)
            yield self._change(
                candidate, telling, found.legibility, pairs=found.top, bottom_pairs=found.bottom
            )

    def _change(
        self, candidate: Candidate, telling: float, legibility: float, **ends: Any
    ) -> Change:
        token = candidate.token
        return Change(
            candidate.address,
            candidate.group,
            candidate.layer,
            candidate.absolute,
            candidate.relative,
            telling,
            legibility,
            token=None if token is None else self.two.base.space.token(token),
            label=candidate.label,
            **ends,
        )


def _spread(scores: Float[Tensor, "n e"]) -> list[tuple[float, float]]:
    """Each row's mean and standard deviation."""
    mean, deviation = scores.mean(1), scores.std(1, unbiased=False)
    return list(zip(mean.tolist(), deviation.tolist(), strict=True))


def _sentiment(
    ledger: Ledger, reader: Model, lexicon: Lexicon, filter: Filter | None, seed: int
) -> Sentiment:
    """ES App. D's count over the most moved vectors of each group."""
    stacks = {}
    for group in ("keys", "gates", "values", "Q", "K", "V", "O"):
        found = [c for c in ledger.candidates(group) if c.vector is not None][:MOST_MOVED]
        if found:
            moved = torch.stack([c.vector for c in found if c.vector is not None])
            before = torch.stack([c.old for c in found if c.old is not None])
            stacks[group] = (found[0].kind, moved, before)
    return count_words(reader, lexicon, stacks, filter=filter, seed=seed)
