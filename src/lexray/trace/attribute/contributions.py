"""What each head, neuron, bias and embedding added to the logit of a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.result.charts.bars import Bars
from lexray.result.readings import Source, Token
from lexray.result.table import Cell, Result, Table
from lexray.trace.attribute.heads import HeadsStep
from lexray.trace.attribute.leaves import ComponentKind, KeptLeaves, Leaf, Leaves, read_leaves
from lexray.trace.attribute.moment import Moment
from lexray.trace.attribute.step import Step
from lexray.trace.attribute.walk import Logit, Stop, walk_back
from lexray.trace.read.targets import Target, Wanted, find_target
from lexray.trace.recording import Recording

PLURALS: dict[ComponentKind, str] = {
    "embedding": "embeddings",
    "head": "heads",
    "mixer": "mixers",
    "neuron": "neurons",
    "bias": "biases",
}


@dataclass(frozen=True, eq=False)
class Components:
    """Components of one kind that lie together, and what each of them added."""

    kind: ComponentKind
    layer: int | None
    name: str
    """The component, or what comes before the numbers of several."""
    values: Float[Tensor, "n"]
    numbered: bool = False
    by_source: bool = False
    """One head's values, one for each position that it looked at."""

    def component(self, i: int) -> str:
        return f"{self.name}{i}" if self.numbered else self.name

    def leaf(self, i: int) -> Leaf:
        source = i if self.by_source else None
        return Leaf(self.component(i), self.kind, self.layer, float(self.values[i]), source)

    @property
    def stage(self) -> str:
        """Where it belongs: a layer, or what comes before and after all layers."""
        if self.layer is not None:
            return f"L{self.layer}"
        return "embedding" if self.name.startswith("embedding") else "last step"


@dataclass(frozen=True, eq=False)
class Contributions(Result):
    """All components with what they added to a logit, or to the difference of two."""

    moment: Moment | KeptLeaves = field(repr=False, compare=False)
    """Where components are read as words; of a result from a file, those that were shown."""
    source: Source
    target: Target
    against: Target | None
    position: int
    tokens: tuple[Token, ...]
    """The whole sequence."""
    logit: float
    """What the components add up to, as the model computed it."""
    groups: tuple[Components, ...]
    note: str = ""
    shown: int = 10
    text: str | None = None
    """Over which it was measured what places usually carry; None: lexray's own."""

    def for_file(self) -> Contributions:
        """As it goes into a file: instead of the pass, the components that it shows."""
        if isinstance(self.moment, KeptLeaves):
            return self
        ends = [self.top(self.shown, negative=negative) for negative in (False, True)]
        leaves = tuple(dict.fromkeys(leaf for end in ends for leaf in end))
        return replace(self, moment=KeptLeaves(leaves, ends[0].how, self.moment.causal))

    @property
    def total(self) -> float:
        """The sum of all contributions: the logit, but for rounding."""
        return sum(float(group.values.sum()) for group in self.groups)

    def __iter__(self) -> Iterator[Leaf]:
        for group in self.groups:
            yield from map(group.leaf, range(len(group.values)))

    def __getitem__(self, component: str) -> float:
        """What one component added: `contributions["L5H3"]`."""
        added = [leaf.contribution for leaf in self if leaf.component == component]
        if not added:
            some = ", ".join(dict.fromkeys(group.component(0) for group in self.groups))
            raise LexrayError(f"there is no component {component!r}; there are {some}, …")
        return sum(added)

    def top(
        self, n: int = 10, *, kind: ComponentKind | None = None, negative: bool = False
    ) -> Leaves:
        """The n components that added most, or took most: where they looked, what they wrote."""
        title = f"What {'took from' if negative else 'added to'} the logit of {self.what}"
        leaves, how = read_leaves(self.moment, self._largest(n, kind, negative), self.text)
        return Leaves(self.source, title, tuple(leaves), self._note, how)

    def _largest(self, n: int, kind: ComponentKind | None, negative: bool) -> list[Leaf]:
        if n < 1:
            raise LexrayError(f"asked for the top {n} components; n must be at least 1")
        groups = [group for group in self.groups if kind is None or group.kind == kind]
        if not groups:
            return []
        values = torch.cat([group.values for group in groups])
        order = values.argsort(descending=not negative, stable=True)[:n].tolist()
        starts = torch.tensor([0, *(len(group.values) for group in groups)]).cumsum(0)
        owners = (torch.searchsorted(starts, torch.tensor(order), right=True) - 1).tolist()
        return [
            groups[owner].leaf(i - int(starts[owner]))
            for i, owner in zip(order, owners, strict=True)
        ]

    def by_layer(self) -> dict[str, dict[ComponentKind, float]]:
        """The sums by kind of the embedding, of each layer, and of the last step."""
        sums: dict[str, dict[ComponentKind, float]] = {}
        for group in self.groups:
            here = sums.setdefault(group.stage, dict.fromkeys(PLURALS, 0.0))
            here[group.kind] += float(group.values.sum())
        return sums

    @property
    def kinds(self) -> list[ComponentKind]:
        """The kinds of components that there are."""
        return [kind for kind in PLURALS if any(group.kind == kind for group in self.groups)]

    def tables(self) -> list[Table]:
        return [self._extremes(), self._layers()]

    @property
    def what(self) -> str:
        """The logit that is explained, in words."""
        against = f" against {self.against.shown}" if self.against else ""
        word = "after" if self.moment.causal else "at"
        at = f"{self.tokens[self.position].shown} (position {self.position})"
        return f"{self.target.shown}{against} {word} {at}"

    def _extremes(self) -> Table:
        ends = [self.top(self.shown, negative=negative) for negative in (False, True)]
        rows = tuple(
            (a.label, a.contribution, b.label, b.contribution) for a, b in zip(*ends, strict=True)
        )
        return Table(
            ("added most", "contribution", "took most", "contribution "),
            rows,
            title=f"What added to the logit of {self.what}",
            note=self._note,
            bars=frozenset({"contribution", "contribution "}),
        )

    @property
    def _note(self) -> str:
        sums = f"logit {self.logit:.3f}, all components together {self.total:.3f}"
        return " · ".join(filter(None, [self.source.model, sums, self.note]))

    def _layers(self) -> Table:
        there = self.kinds
        rows: list[tuple[Cell, ...]] = []
        for stage, sums in self.by_layer().items():
            parts = (sums[kind] or None for kind in there)
            rows.append((stage, *parts, sum(sums.values())))
        columns = ("", *(PLURALS[kind] for kind in there), "together")
        return Table(columns, tuple(rows), title="Sums by layer", bars=frozenset({"together"}))

    def csv_tables(self) -> list[Table]:
        split = any(group.by_source for group in self.groups)
        rows: list[tuple[Cell, ...]] = [
            (leaf.component, leaf.layer, *([leaf.source] if split else []), leaf.contribution)
            for leaf in self
        ]
        source = ("source",) if split else ()
        return [Table(("component", "layer", *source, "contribution"), tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            "tokens": [token.to_dict() for token in self.tokens],
            "position": self.position,
            "target": self.target.to_dict(),
            "against": None if self.against is None else self.against.to_dict(),
            "logit": self.logit,
            "note": self.note,
            "contributions": [leaf.to_dict() for leaf in self],
        }

    def plot(self) -> Bars:
        """Each layer's sums as stacked bars, and the largest components beside them."""
        from lexray.trace.attribute.plots import draw_contributions

        layers = self.by_layer()
        ends = [*self.top(self.shown), *reversed(self.top(self.shown, negative=True))]
        return draw_contributions(
            f"What added to the logit of {self.what}",
            f"{self.source.called} · logit {self.logit:.3f}" + f" · {self.note}" * bool(self.note),
            {PLURALS[kind]: {s: sums[kind] for s, sums in layers.items()} for kind in self.kinds},
            {leaf.label: leaf.contribution for leaf in ends},
        )


def contributions(
    recording: Recording,
    target: Wanted | Sequence[Wanted] | None = None,
    position: int = -1,
    *,
    against: Wanted | None = None,
    first: bool = False,
    sources: bool = False,
    shown: int = 10,
    text: str | None = None,
) -> Contributions:
    """What each component added to a logit; see `lexray.trace.trace.Trace.contributions`."""
    moment, model = Moment.of(recording, position), recording.model
    if target is None:
        target = int(recording.logits[moment.row].argmax())
    target, against = _both(target, against)
    wanted = find_target(model, target, first=first)
    other = None if against is None else find_target(model, against, first=first)
    logit = Logit(recording.weights, wanted.id, None if other is None else other.id)
    value = logit.at(moment)
    notes = [wanted.note, "" if other is None else other.note, *model_notes(model)]
    return Contributions(
        moment,
        model.space.source("contributions"),
        wanted,
        other,
        moment.position,
        recording.tokens,
        value,
        tuple(reversed(list(components(moment, logit, sources)))),
        " · ".join(filter(None, notes)),
        shown,
        text,
    )


def components(moment: Moment, logit: Logit, sources: bool) -> Iterator[Components]:
    """All components of a logit, the last ones first."""
    for stop in walk_back(moment, logit.direction):
        yield from _split_edited(moment, stop)
        if stop.part == "output":
            if logit.bias is not None:
                own = stop.stream.new_tensor([logit.bias])
                yield from _single("bias", None, "unembedding.bias", own)
            yield from _single("bias", None, "final_norm.bias", stop.bias)
        elif stop.step is None:
            yield from _single("bias", None, "embedding.project_bias", _projected(moment, stop))
            yield from _single("bias", None, "embedding.norm_bias", stop.bias)
            for name, part in reversed(moment.embed_parts.items()):
                added = part[None] @ stop.stream
                yield from _single("embedding", None, f"embedding.{name}", added)
        else:
            stems = {"attention": "attn", "cross": "cross"}
            name = f"{stems.get(stop.part, 'mlp')}_norm_bias"
            for bias in (stop.bias, stop.output_bias):
                yield from _single("bias", stop.layer, f"L{stop.layer}.{name}", bias)
            yield from OF_PART[stop.part](stop, stop.step, sources)


def _projected(moment: Moment, stop: Stop) -> Float[Tensor, "1"] | None:
    """What the bias of the map that makes an embedding as wide as the model adds."""
    a, g = moment.weights.architecture, stop.behind
    project = a.project_in if a.projects_last else None
    bias = None if project is None else project.read_bias(moment.weights.checkpoint)
    return None if bias is None else bias[None].to(g) @ g


def _split_edited(moment: Moment, stop: Stop) -> Iterator[Components]:
    """What edits of the run added: to the stream, or to what a sub-block writes."""
    layer = stop.layer
    parts: list[tuple[int, str, str, Tensor]] = []
    if stop.part == "embedding":
        parts.append((0, "pre", "L0.pre.edited", stop.behind))
    if stop.step is not None and layer is not None and stop.part == stop.step.parts[-1]:
        parts.append((layer + 1, "pre", f"L{layer}.edited", stop.behind))
    if layer is not None and stop.part == "ff":
        parts.append((layer, "mlp", f"L{layer}.mlp.edited", stop.direction))
    written = {"attention": "attn", "cross": "cross", "mixer": "mixer", "laurel": "laurel"}
    if layer is not None and (point := written.get(stop.part)) is not None:
        parts.append((layer, point, f"L{layer}.{point}.edited", stop.direction))
    for index, point, name, direction in parts:
        added = moment.recording.parts.get((index, f"{point}_edited"))
        if added is not None:
            yield from _single("bias", layer, name, moment.at(added)[None] @ direction)


def _feed_forward(stop: Stop, step: Step, sources: bool) -> Iterator[Components]:
    g, along = stop.direction, step.neurons_along(stop.direction).cpu()
    for active in step.active:
        stem = str(active.ff.address)
        if (b_out := active.ff.b_out) is not None:
            added = active.weight * (b_out[None].to(g) @ g)
            yield from _single("bias", step.index, f"{stem}.b_out", added)
        start = step.starts[stem]
        values = along[start : start + len(active.coefficients)]
        yield Components("neuron", step.index, f"{stem}N", values, numbered=True)


def _mixer(stop: Stop, step: Step, sources: bool) -> Iterator[Components]:
    """All that a mixer wrote: what it took from where is not to be told apart. So of LAuReL."""
    assert stop.part in ("mixer", "laurel")
    added, index = step.output_of(stop.part) @ stop.direction, step.index
    edited = step.moment.recording.parts.get((index, f"{stop.part}_edited"))
    if edited is not None:  # which has a line of its own
        added = added - step.at(edited) @ stop.direction
    yield from _single("mixer", index, f"L{index}.{stop.part}", added[None])


def _attention(stop: Stop, step: Step, sources: bool) -> Iterator[Components]:
    if not step.spec.attention.absent:
        at = step.layer.address
        yield from _heads(stop, step, f"{at}.b_O", f"{at}H", sources)


def _heads(
    stop: Stop, step: HeadsStep, bias: str, stem: str, sources: bool
) -> Iterator[Components]:
    """The heads of one attention, by the positions they look at if wanted."""
    g, index = stop.direction, step.index
    if (b_O := step.b_O) is not None:
        yield from _single("bias", index, bias, b_O[None] @ g)
    whole = step.heads_along(g)
    if not sources:
        yield Components("head", index, stem, whole.cpu(), numbered=True)
        return
    for head in reversed(range(len(step.W_O))):
        split = not step.is_changed(head, g)
        added = step.memories_along(head, g) if split else whole[head : head + 1]
        yield Components("head", index, f"{stem}{head}", added.cpu(), by_source=split)


def _cross(stop: Stop, step: Step, sources: bool) -> Iterator[Components]:
    """The heads of cross-attention, by the source's positions if wanted."""
    at = step.layer.address
    yield from _heads(stop, step.cross, f"{at}.cross.b_O", f"{at}X", sources)


OF_PART = {
    "attention": _attention,
    "laurel": _mixer,
    "mixer": _mixer,
    "cross": _cross,
    "ff": _feed_forward,
}


def _single(
    kind: ComponentKind, layer: int | None, name: str, added: Float[Tensor, "1"] | None
) -> Iterator[Components]:
    """One component, if it is there."""
    if added is not None:
        yield Components(kind, layer, name, added.cpu())


def _both(
    target: Wanted | Sequence[Wanted], against: Wanted | None
) -> tuple[Wanted, Wanted | None]:
    """A target and what it is compared with, if anything."""
    if isinstance(target, (str, Token)) or not isinstance(target, Sequence):
        return target, against
    if len(target) != 2 or against is not None:
        raise LexrayError(
            f"a target is one token, or two whose logits are compared, not {target!r}"
        )
    return target[0], target[1]


def model_notes(model: Anatomy) -> Iterator[str]:
    a = model.architecture
    if a.head is not None:
        yield (
            "to the logit of the decoder alone: the LM head's transform (dense, activation, norm) "
            "is not linear and is left out"
        )
    if a.streams is not None:
        yield "what mixes the streams is held at what it was in this pass"
    if a.logit_cap is not None:
        yield f"to the logit before the cap of {a.logit_cap:g}"
