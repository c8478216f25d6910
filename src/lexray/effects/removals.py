"""Every head, neuron, layer or position removed in turn: the causal map beside the direct one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.choice import Some, choose
from lexray.edits.site import Site
from lexray.edits.values import Ablate, Edit, ablate, cut
from lexray.effects.aim import Aim, Said, own_actions, recorded_logits, rough, run_prompt
from lexray.effects.plots import draw_effects
from lexray.errors import LexrayError
from lexray.families import FeedForward
from lexray.model.anatomy import Anatomy
from lexray.progress import track
from lexray.result.charts.panels import Panels
from lexray.result.readings import Source, Token
from lexray.result.table import Cell, Result, Table
from lexray.trace.apply.resolve import ReadyEdits
from lexray.trace.attribute.contributions import contributions
from lexray.trace.read.targets import Wanted
from lexray.trace.recording import Recording

What = Literal["heads", "neurons", "layers", "attention", "mixers", "mlps", "positions"]
"""What is removed, one after the other."""
OF_WHAT = {"attention": ("attn", "cross"), "mixers": ("mixer", "laurel"), "mlps": ("mlp",)}
"""Which parts of a layer are meant; of layers all."""
SHOWN = 15
SOURCE = "enc."
"""Before the number of a position of the source."""


@dataclass(frozen=True)
class Removed:
    """One component, what it added directly, and what its removal changed."""

    component: str
    layer: int | None
    index: int
    """Of the head, neuron or position; 0 for layers."""
    direct: float | None
    """What it added to the logit by itself."""
    change: float
    """Of the logit, when it is removed."""
    probability: float
    """Of the target, after the removal."""
    rank: float
    """Likewise, from 1; a mean over several prompts need not be whole."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Effects(Result, Sequence[Removed]):
    """What the answer depends on: every component's removal, and its direct contribution."""

    source: Source
    what: What
    aim: Aim
    said: Said
    """The answer as it was."""
    tokens: tuple[Token, ...]
    removed: tuple[Removed, ...]
    to: str = "zero"
    n_prompts: int = 1
    note: str = ""
    shown: int = SHOWN
    source_tokens: tuple[Token, ...] = ()
    """Of an encoder–decoder's source."""

    def __len__(self) -> int:
        return len(self.removed)

    def __getitem__(self, key: Any) -> Any:
        """By number, or by address: `effects["L23H4"].change`."""
        if not isinstance(key, str):
            return self.removed[key]
        removed = next((r for r in self.removed if r.component == key), None)
        if removed is None:
            some = ", ".join(r.component for r in self.removed[:3])
            raise LexrayError(f"{key!r} was not removed; there are {some}, …")
        return removed

    def __iter__(self) -> Iterator[Removed]:
        return iter(self.removed)

    def by_change(self) -> tuple[Removed, ...]:
        """Those whose removal changes most first."""
        return tuple(sorted(self.removed, key=lambda r: -abs(r.change)))

    @property
    def title(self) -> str:
        logit = f"{self.aim.what} ({self.said.logit:.2f})"
        return f"{self.what.capitalize()} removed one by one: the change of {logit}"

    def tables(self) -> list[Table]:
        rows: list[tuple[Cell, ...]] = [
            (self._label(r), r.direct, r.change, r.probability, r.rank)
            for r in self.by_change()[: self.shown]
        ]
        columns = ("removed", "added directly", "change", "probability", "rank")
        bars = frozenset({"added directly", "change"})
        return [Table(columns, tuple(rows), self.title, self._note, bars)]

    def _label(self, r: Removed) -> str:
        if self.what != "positions":
            return r.component
        tokens = self.source_tokens if r.component.startswith(SOURCE) else self.tokens
        return f"{r.component} {tokens[r.index].shown}"

    @property
    def _note(self) -> str:
        left = len(self.removed) - self.shown
        more = [f"{left} smaller changes not shown"] if left > 0 else []
        return " · ".join([*self._facts, *more])

    @property
    def _facts(self) -> list[str]:
        was = f"before: probability {self.said.probability:.3g}, rank {self.said.rank}"
        means = f"mean of {self.n_prompts} prompts" if self.n_prompts > 1 else was
        to = f"to {self.to}" if self.to != "zero" else ""
        return [fact for fact in (self.source.model, means, to, self.note) if fact]

    def csv_tables(self) -> list[Table]:
        columns = ("component", "layer", "index", "direct", "change", "probability", "rank")
        rows = tuple(
            (r.component, r.layer, r.index, r.direct, r.change, r.probability, r.rank)
            for r in self.removed
        )
        return [Table(columns, rows)]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            **self.aim.to_dict(),
            "what": self.what,
            "to": self.to,
            "tokens": [token.to_dict() for token in self.tokens],
            "source_tokens": [token.to_dict() for token in self.source_tokens],
            "before": self.said.to_dict(),
            "prompts": self.n_prompts,
            "removed": [r.to_dict() for r in self.removed],
            "note": self.note,
        }

    @property
    def grid(self) -> Float[Tensor, "lines columns"] | None:
        """The changes, layer by head (NaN where nothing was removed); None for positions. Of an
        encoder–decoder the decoder's own; `grids` has the others."""
        return self.grids.get("", next(iter(self.grids.values()), None))

    @property
    def grids(self) -> dict[str, Float[Tensor, "lines columns"]]:
        """The same for each of an encoder–decoder's attentions: "" (the decoder's own), "encoder",
        "cross-attention"."""
        if self.what in ("positions", "neurons"):
            return {}
        groups: dict[str, list[Removed]] = {}
        for r in self.removed:
            groups.setdefault(Site.parse(r.component).group, []).append(r)
        return {name: _grid_of(some) for name, some in groups.items()}

    def html_body(self) -> str:
        """The picture, and below it the largest changes."""
        return f"{self.plot().html()}\n{super().html_body()}"

    def plot(self) -> Panels:
        """A heat map of the changes, and direct contributions against them."""
        return draw_effects(
            self.title,
            " · ".join(self._facts),
            self.grids,
            [self._label(r) for r in self.removed],
            [r.direct for r in self.removed],
            [r.change for r in self.removed],
        )

    @classmethod
    def mean(cls, several: Sequence[Effects]) -> Effects:
        """The mean over prompts, each with its own target: components must be the same."""
        if not several or len({tuple(r.component for r in e) for e in several}) != 1:
            raise LexrayError("a mean is taken over effects of the same components, at least one")
        lines = [
            replace(
                same[0],
                direct=_mean([r.direct for r in same]),
                change=_mean([r.change for r in same]) or 0.0,
                probability=_mean([r.probability for r in same]) or 0.0,
                rank=_mean([r.rank for r in same]) or 0.0,
            )
            for same in zip(*(effects.removed for effects in several), strict=True)
        ]
        first = several[0]
        logit = _mean([e.said.logit for e in several]) or 0.0
        said = replace(first.said, logit=logit)
        return replace(first, removed=tuple(lines), n_prompts=len(several), said=said)


def _grid_of(removed: Sequence[Removed]) -> Float[Tensor, "lines columns"]:
    layers = [r.layer for r in removed if r.layer is not None]
    grid = torch.full((max(layers) + 1, max(r.index for r in removed) + 1), torch.nan)
    for r in removed:
        assert r.layer is not None
        grid[r.layer, r.index] = r.change
    return grid


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if len(there) == len(values) else None


def effects(
    recording: Recording,
    what: str,
    target: Wanted | None = None,
    position: int = -1,
    *,
    against: Wanted | None = None,
    first: bool = False,
    layers: Some = None,
    positions: Some = None,
    to: Any = "zero",
    direct: bool = True,
) -> Effects:
    """Removes every component in turn; see `lexray.trace.trace.Trace.effects`."""
    kind = _choose(what)
    aim = Aim.of(recording, target, position, against, first=first)
    model = recording.model
    chosen = choose(layers, max(stack.n_layers for stack in model.stacks), "layer")
    edits = dict(_removals(recording, kind, chosen, positions, to))
    if not edits:
        raise LexrayError(f"{model.name} has no {kind} in layers {', '.join(map(str, chosen))}")
    logits = dict(rerun_each(recording, list(edits.values()), aim, f"removing {kind}"))
    before = recorded_logits(recording, aim)
    base = float(aim.metric(before))
    added = _direct(recording, kind, aim) if direct else {}
    absent = 0.0 if direct and kind == "neurons" else None  # of experts that are not chosen there
    removed = []
    for (name, (layer, index)), edit in edits.items():
        after = logits[edit]
        said = aim.look(after)
        change = said.logit - base
        removed.append(
            Removed(
                name, layer, index, added.get(name, absent), change, said.probability, said.rank
            )
        )
    notes = [*aim.notes, rough(recording), *_mixed(model, kind)]
    return Effects(
        model.space.source("effects"),
        kind,
        aim,
        aim.look(before),
        recording.tokens,
        tuple(removed),
        to if isinstance(to, str) else "the mean of another run",
        note=" · ".join(filter(None, notes)),
        source_tokens=() if recording.source is None else recording.source.tokens,
    )


def _mixed(model: Anatomy, kind: What) -> Iterator[str]:
    """Cutting attention hides a position from heads alone."""
    n = sum(block.mixer is not None for block in model.architecture.blocks)
    if kind == "positions" and n:
        yield f"mixers of {n} layers still carry what they took from a position"


def rerun_each(
    recording: Recording, edits: Sequence[Edit], aim: Aim, word: str
) -> Iterator[tuple[Edit, Float[Tensor, "d_vocab"]]]:
    """The answer after each edit alone: those that begin at the same layer run together, and only
    the layers from there on."""
    from lexray.trace.apply.rerun import Rerun  # imports transformers

    rerun = Rerun(recording, own_actions(recording))
    by_layer: dict[tuple[bool, int], list[tuple[Edit, Any]]] = {}
    for edit in edits:
        changes = ReadyEdits.check(recording.model, [edit], run_prompt(recording))
        actions = changes.for_run(recording)
        by_layer.setdefault(min(a.begins for a in actions), []).append((edit, actions))
    for _, jobs in track(sorted(by_layer.items()), len(by_layer), word):
        logits = rerun.logits([actions for _, actions in jobs], aim.position)
        device = recording.logits.device
        yield from zip((edit for edit, _ in jobs), logits.to(device), strict=True)


def _choose(what: str) -> What:
    for known in get_args(What):
        if what == known:
            chosen: What = known
            return chosen
    raise LexrayError(f"effects are those of {', '.join(get_args(What))}, not of {what!r}")


Named = tuple[str, tuple[int | None, int]]


def _removals(
    recording: Recording, what: What, layers: Sequence[int], positions: Some, to: Any
) -> Iterator[tuple[Named, Edit]]:
    """The removal of each component, under its name, layer and number."""
    n, source = len(recording), recording.source if positions is None else None
    if what == "positions":
        if to != "zero":
            raise LexrayError("positions are removed by cutting attention to them: to= has no use")
        if source is not None:
            sees = [*(f"{x.address}" for x in source.model.layers)]
            sees += [f"{x.address}.cross" for x in recording.model.layers]
            for p in range(len(source)):
                yield (f"{SOURCE}{p}", (None, p)), cut(p, heads=sees, renormalise=True)
        for p in choose(positions, n, "position"):
            yield (str(p), (None, p)), cut(p, renormalise=True)
        return
    at = None if positions is None else choose(positions, n, "position")
    for stack in (recording,) if source is None else (source, recording):
        for layer in [layer for layer in layers if layer < stack.model.n_layers]:
            for name, index in _names(stack, what, layer):
                edit: Ablate = ablate(name, to=to, positions=at)
                yield (name, (layer, index)), edit


def _names(recording: Recording, what: What, layer: int) -> Iterable[tuple[str, int]]:
    spec, at = recording.model.architecture.blocks[layer], recording.model.at(layer)
    match what:
        case "heads":
            heads = [(f"{at}H{h}", h) for h in range(len(spec.attention.q.starts))]
            crossing = 0 if spec.cross is None else len(spec.cross.q.starts)
            return [*heads, *((f"{at}X{h}", h) for h in range(crossing))]
        case "neurons":
            return [
                (f"{stem}N{j}", j)
                for stem, ff in _feed_forwards(recording, layer)
                for j in range(ff.d_mlp)
            ]
        case "attention":
            own = [] if spec.attention.absent else [(f"{at}.attn", 0)]
            return own if spec.cross is None else [*own, (f"{at}.cross", 0)]
        case "mixers":
            own = [] if spec.mixer is None else [(f"{at}.mixer", 0)]
            return own if spec.laurel is None else [*own, (f"{at}.laurel", 0)]
        case "mlps":
            return [] if spec.ff.absent else [(f"{at}.mlp", 0)]
        case _:
            return [(str(at), 0)]


def _feed_forwards(recording: Recording, layer: int) -> Iterator[tuple[str, FeedForward]]:
    """The dense one; or the experts that the router chose anywhere, and the shared one: the others
    wrote nothing."""
    ff = recording.model.architecture.blocks[layer].ff
    if isinstance(ff, FeedForward):
        if not ff.absent:
            yield str(recording.model.at(layer)), ff
        return
    did = recording[layer].experts
    assert did is not None
    for e in sorted(set(did.chosen.flatten().tolist())):
        yield f"L{layer}E{e}", ff.experts[e]
    if ff.shared is not None:
        yield f"L{layer}S", ff.shared


def _direct(recording: Recording, what: What, aim: Aim) -> dict[str, float]:
    """What each component added to the logit by itself."""
    against = None if aim.against is None else aim.against.id
    added = contributions(
        recording, aim.target.id, aim.position, against=against, sources=what == "positions"
    )
    sums: dict[str, float] = {}

    def put(name: str, value: float) -> None:
        sums[name] = sums.get(name, 0.0) + value

    for group in added.groups:
        crosses = group.kind == "head" and "X" in group.name
        if what == "positions":
            for p, value in enumerate(group.values.tolist() if group.by_source else []):
                put(f"{SOURCE}{p}" if crosses else str(p), value)
        elif what in ("heads", "neurons") and group.kind == what[:-1]:
            for i, value in enumerate(group.values.tolist()):
                put(group.component(i), value)
        elif what not in ("heads", "neurons") and group.layer is not None:
            part = "attn" if group.kind == "head" or group.name.endswith(".b_O") else "mlp"
            part = group.name.rpartition(".")[2] if group.kind == "mixer" else part
            part = "cross" if crosses or group.name.endswith(".cross.b_O") else part
            if part in OF_WHAT.get(what, (part,)):
                stem = f"L{group.layer}"
                put(stem if what == "layers" else f"{stem}.{part}", float(group.values.sum()))
    return sums
