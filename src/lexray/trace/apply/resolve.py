"""From edits to actions: everything is looked up and checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lexray.edits.directions import Recorded, Run, refuse_other_model, residual, show_run
from lexray.edits.parse import read_edits
from lexray.edits.site import Kind, Site
from lexray.edits.values import (
    Ablate,
    Add,
    Clamp,
    Cut,
    Edit,
    Edits,
    Patch,
    Placed,
    RankOne,
    Scale,
    runs_of,
)
from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.model.groups import attention_of
from lexray.trace.apply.actions import (
    Action,
    Constant,
    MeanOfOthers,
    Operation,
    Plus,
    Point,
    RunRows,
    Times,
    Without,
    Zero,
)
from lexray.trace.recording import Recording

POINTS: dict[Kind, Point] = {
    "layer": "post",
    "pre": "pre",
    "attn": "attn",
    "cross": "cross",
    "laurel": "laurel",
    "mixer": "mixer",
    "mlp": "mlp",
    "head": "z",
    "q": "q",
    "k": "k",
    "v": "v",
    "pattern": "pattern",
}
OF_CROSS: dict[Point, Point] = {
    "z": "cross_z",
    "q": "cross_q",
    "k": "cross_k",
    "v": "cross_v",
    "pattern": "cross_pattern",
}
"""Where the same is found of a head of cross-attention."""
OF_SOURCE: tuple[Point, ...] = ("k", "v", "cross_k", "cross_v")
"""What is kept at all positions; of cross-attention at those of the source."""
PARTS: dict[Point, str] = {
    "attn": "attn_write",
    "laurel": "laurel_write",
    "mixer": "mixer_write",
    "mlp": "mlp_write",
    "z": "z",
    "q": "q",
    "k": "k",
    "v": "v",
    "pattern": "pattern",
    "coefficients": "coefficients",
    "shared_coefficients": "shared_coefficients",
    "cross": "cross_write",
    **{point: str(point) for point in OF_CROSS.values()},
}
"""What a trace calls what is found at a point."""


@dataclass(frozen=True)
class ReadyEdits:
    """Edits that fit a model, with the runs they take from: ready for sequences of any length."""

    model: Anatomy
    edits: tuple[Edit, ...]
    recorded: Recorded
    n_source: int | None = None
    """Of a decoder with an encoder beside it: how many tokens its source has."""

    @classmethod
    def check(cls, model: Anatomy, edits: Edits | None, recorded: Recorded) -> ReadyEdits:
        """Raises for what the model does not have; `recorded` runs prompts that edits name."""
        checked = read_edits(edits)
        known: dict[Run, Recording] = {}

        def once(run: Run) -> Recording:
            if isinstance(run, Recording):
                return run
            if run not in known:
                known[run] = recorded(run)
            return known[run]

        for edit in checked:
            _check(model, edit)
        return cls(model, checked, once)

    def of_encoder(self) -> ReadyEdits:
        """Of an encoder–decoder: what is changed in the encoder, for its own run."""
        edits = (part for edit in self.edits for part in _part_of(edit, encoder=True))
        return ReadyEdits(self.model.encoder, tuple(edits), lambda run: _source(self.recorded(run)))

    def of_decoder(self, n_source: int) -> ReadyEdits:
        """And in the decoder, of a source of so many tokens."""
        edits = (part for edit in self.edits for part in _part_of(edit, encoder=False))
        return ReadyEdits(self.model, tuple(edits), self.recorded, n_source)

    def fit(self, lengths: Sequence[int]) -> None:
        """Raises for positions that sequences of these lengths do not have; nothing is run."""
        for edit in self.edits:
            for n in lengths:
                self._choose_all(edit, n)

    def _choose_all(self, edit: Edit, n: int) -> None:
        if isinstance(edit, Cut):
            edit.destination.choose(n)
            for cross in {site.crosses for site in edit.heads} or {False}:
                edit.source.choose(self._length(n, of_source=cross))
        elif isinstance(edit, Placed):
            edit.positions.choose(self._length(n, of_source=_is_of_source(edit.site)))

    def _length(self, n: int, *, of_source: bool) -> int:
        if not of_source:
            return n
        if self.n_source is None:
            raise LexrayError("cross-attention has positions of a source, and there is none")
        return self.n_source

    def fit_run(self, recording: Recording) -> None:
        """The same for a recorded run, of an encoder–decoder for both of its stacks."""
        if recording.source is None:
            self.fit([len(recording)])
            return
        self.of_encoder().fit([len(recording.source)])
        self.of_decoder(len(recording.source)).fit([len(recording)])

    def for_run(self, recording: Recording) -> tuple[Action, ...]:
        """What is to be done to a recorded run, if it is run again."""
        n, counted = len(recording), recording.n_prompt
        if recording.source is None:
            return self.actions(n, counted)
        n_source = len(recording.source)
        encoder = self.of_encoder().actions(n_source)
        return (
            *(replace(action, encoder=True) for action in encoder),
            *self.of_decoder(n_source).actions(n, counted),
        )

    def __bool__(self) -> bool:
        return bool(self.edits)

    def actions(self, n: int, counted: int | None = None) -> tuple[Action, ...]:
        """What is to be done to a sequence of n tokens; positions from the end count from the end
        of the first `counted`."""
        actions: list[Action] = []
        for edit in self.edits:
            actions += self._actions(edit, n, counted)
        return tuple(actions)

    def _actions(self, edit: Edit, n: int, counted: int | None) -> Iterator[Action]:
        if isinstance(edit, Cut):
            yield from self._cut(edit, n, counted)
            return
        assert isinstance(edit, Placed)
        of_source = _is_of_source(edit.site)
        length = self._length(n, of_source=of_source)
        positions = edit.positions.choose(length, None if of_source else counted)
        for site in self._parts(edit):
            place = self._place(edit, site)
            operation = self._operation(edit, site, place, positions, length)
            yield Action(site.layer, place.point, positions, operation, place.index, place.inner)

    def _parts(self, edit: Placed) -> list[Site]:
        """The site itself; of a layer that is ablated or scaled, its sub-blocks."""
        if edit.site.kind == "layer" and isinstance(edit, (Ablate, Scale)):
            return edit.site.sub_blocks(self.model)
        return [edit.site]

    def _place(self, edit: Placed, site: Site) -> _Place:
        a = site.address
        if site.kind == "neuron":
            if a.expert is not None:
                return _Place("expert_coefficients", a.expert, a.neuron)
            return _Place("shared_coefficients" if a.shared else "coefficients", a.neuron)
        if site.kind == "expert":  # its weight; of what it says, all of its neurons
            says = isinstance(edit, Patch) or (isinstance(edit, Ablate) and edit.averages)
            return _Place("expert_coefficients" if says else "expert", a.expert)
        if site.kind == "shared":
            return _Place("shared_coefficients")
        point = OF_CROSS[POINTS[site.kind]] if a.cross else POINTS[site.kind]
        if site.kind in ("k", "v"):
            spec = attention_of(self.model, site.layer, cross=a.cross)
            assert a.head is not None
            return _Place(point, a.head * len(spec.k.starts) // len(spec.q.starts))
        return _Place(point, a.head)

    def _operation(
        self, edit: Placed, site: Site, place: _Place, positions: tuple[int, ...], n: int
    ) -> Operation:
        match edit:
            case Scale():
                return Times(edit.factor)
            case Clamp():
                return Constant(torch.tensor(edit.value))
            case Add():
                entering = site.layer + (0 if site.kind == "pre" else 1)
                vector = edit.vector.read(self.model, entering, self.recorded)
                return Plus(vector * edit.strength)
            case Patch():
                return self._rows(edit, site, place, positions)
            case Ablate(of_run=True):
                return Constant(self._mean(edit.to, site, place))
            case Ablate(to="mean"):
                if n < 2:
                    raise LexrayError(f"{edit}: the sequence has one token, and no others to mean")
                return MeanOfOthers()
            case _:
                return Zero()

    # ------------------------------------------------------------------ other runs

    def _kept(self, run: Run, site: Site, place: _Place) -> Tensor:
        """What another run had at a place, at all positions that it kept."""
        recording = self.recorded(run)
        if place.point in ("pre", "post"):
            return residual(recording, site.layer + (place.point == "post"), self.model)
        if place.point == "expert_coefficients":
            return self._chosen(recording, site, place)[0]
        return self._part(recording, site, place, PARTS[place.point])

    def _mean(self, run: Run, site: Site, place: _Place) -> Tensor:
        """The mean over another run; of an expert, over the positions for which it was chosen."""
        if place.point != "expert_coefficients":
            return self._kept(run, site, place).mean(0)
        rows, chosen = self._chosen(self.recorded(run), site, place)
        if not bool(chosen.any()):
            raise LexrayError(
                f"the router never chose expert {place.index} of layer {site.layer} in the run "
                f"{show_run(run)}, so that {site} has no mean there; give a longer text"
            )
        return rows[chosen].mean(0)

    def _chosen(self, recording: Recording, site: Site, place: _Place) -> tuple[Tensor, Tensor]:
        """An expert's coefficients (0 where it was not chosen), and where it was."""
        c, chosen = (
            self._part(recording, site, _Place(place.point), name)
            for name in ("coefficients", "chosen")
        )
        assert place.index is not None
        at = chosen.eq(place.index)
        rows = (c * at[..., None]).sum(1)
        return rows if place.inner is None else rows[:, place.inner], at.any(1)

    def _part(self, recording: Recording, site: Site, place: _Place, name: str) -> Tensor:
        part = recording.parts.get((site.layer, name))
        if part is None:
            raise LexrayError(
                f"the run {show_run(recording)} has not kept {name} of layer {site.layer}, which "
                f"{site} needs; trace it without layers= and what="
            )
        if place.point in ("pattern", "cross_pattern"):
            return part[place.index]
        return part if place.index is None else part[:, place.index]

    def _rows(self, edit: Patch, site: Site, place: _Place, positions: tuple[int, ...]) -> RunRows:
        recording = self.recorded(edit.source)
        there = _source(recording) if _is_of_source(site) else recording
        if max(positions) >= len(there):
            raise LexrayError(
                f"{edit}: that run has {len(there)} tokens, and no position {max(positions)}; "
                "patch the positions that both have, with positions=…"
            )
        if place.point == "cross_pattern" and len(_source(recording)) != self.n_source:
            raise LexrayError(
                f"{edit}: the sources have {self.n_source} and {len(_source(recording))} tokens; "
                "weights of cross-attention are patched between sources of the same length"
            )
        whole = place.point in OF_SOURCE
        rows = list(positions) if whole else [recording.row(p) for p in positions]
        if place.point not in ("q", "k"):
            return RunRows(self._kept(edit.source, site, place)[rows])
        unturned = self._part(recording, site, place, place.point)[rows]
        if not self.model.architecture.blocks[site.layer].attention.turns:
            return RunRows(unturned, unturned)
        turned = self._part(recording, site, place, f"{place.point}_rotated")[rows]
        return RunRows(turned, unturned)

    # ------------------------------------------------------------------ attention

    def _cut(self, edit: Cut, n: int, counted: int | None) -> Iterator[Action]:
        at = edit.destination.choose(n, counted)
        for layer, head, cross in cut_heads(self.model, edit):
            length = self._length(n, of_source=cross)
            source = edit.source.choose(length, None if cross else counted)
            without = Without(source, edit.renormalise)
            yield Action(layer, "cross_pattern" if cross else "pattern", at, without, head)


@dataclass(frozen=True)
class _Place:
    point: Point
    index: int | None = None
    inner: int | None = None


def refuse_misfits(model: Anatomy, edits: Edits, n: int, n_source: int | None = None) -> None:
    """Raises for what the model or a prompt of n tokens does not have, before anything runs."""
    changes = ReadyEdits.check(model, edits, _no_run)
    if n_source is None:
        changes.fit([n])
    else:
        changes.of_encoder().fit([n_source])
        changes.of_decoder(n_source).fit([n])


def cut_heads(model: Anatomy, edit: Cut) -> list[tuple[int, int, bool]]:
    """The heads that are meant, by layer, number, and whether of cross-attention; each once."""
    sites = edit.heads or tuple(Site(layer.address) for layer in model.layers)
    cut: dict[tuple[int, int, bool], None] = {}
    for site in sites:
        n = len(attention_of(model, site.layer, cross=site.crosses).q.starts)
        heads = range(n) if site.address.head is None else [site.address.head]
        cut |= dict.fromkeys((site.layer, head, site.crosses) for head in heads)
    return list(cut)


def _part_of(edit: Edit, *, encoder: bool) -> Iterator[Edit]:
    """What an edit changes in one of the two stacks."""
    if isinstance(edit, Placed):
        if edit.site.address.encoder == encoder:
            yield edit
    elif isinstance(edit, Cut):
        heads = tuple(site for site in edit.heads if site.address.encoder == encoder)
        if heads or not (edit.heads or encoder):
            yield replace(edit, heads=heads)


def _is_of_source(site: Site) -> bool:
    """Whether its positions are those of the source."""
    return site.address.cross and site.kind in ("k", "v")


def _source(recording: Recording) -> Recording:
    """The encoder's part of a run; a run of an encoder alone is that."""
    return recording if recording.source is None else recording.source


def _check(model: Anatomy, edit: Edit) -> None:
    """Raises where the model has no such place, or none that can be changed in that way."""
    if not isinstance(edit, (Cut, Placed)) or isinstance(edit, RankOne):
        raise LexrayError(
            f"{edit} changes weights, not a run: model.edited([…]) is the model with it"
        )
    for site in edit.heads if isinstance(edit, Cut) else (edit.site,):
        site.check(model)
        _refuse_shared_query(model, site)
    for run in runs_of(edit):
        if isinstance(run, Recording):
            alone = run.source is None and model.architecture.encoder is not None
            refuse_other_model(run, model.encoder if alone else model)
    if isinstance(edit, Add) and not runs_of(edit):
        edit.vector.read(model.stack_at(edit.site.address), 0, _no_run)


def _refuse_shared_query(model: Anatomy, site: Site) -> None:
    """Raises for the queries of cross-attention that are those of another head."""
    if site.kind == "q" and site.crosses and model.architecture.blocks[site.layer].merged:
        own = replace(site.address, cross=False)
        raise LexrayError(
            f"in {model.name} {site.address} asks with the queries of {own}: change {own}.q, which "
            "changes what both look at"
        )


def _no_run(run: Run) -> Recording:
    raise LexrayError(f"{show_run(run)} is not run to have a fixed vector")
