"""Chunks of evidence: where neurons and heads are strongest in a text, and what their readings
tell of it. A text is run once for all neurons of a chunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.atlas.heads import Row, Tables, to_table
from lexray.atlas.plan import NEURONS_AT_ONCE, Chunk
from lexray.atlas.vectors import between
from lexray.model.feedforward import FeedForward
from lexray.model.groups import layer_groups
from lexray.model.model import Model
from lexray.trace.evidence.gather import OF_NEURONS, Ran, gather, spell_pieces
from lexray.trace.evidence.heads import QUESTIONS, head_snippets, watch_layer
from lexray.trace.evidence.result import Snippet
from lexray.trace.evidence.vectors import (
    measure_areas,
    name_vectors,
    neuron_activity,
    neuron_reads,
)
from lexray.trace.recording import LayerTrace

PLACES = 8
"""Strongest places that are kept of each."""


@dataclass(frozen=True, eq=False)
class _Unit:
    """Some neurons of a feed-forward or an expert."""

    ff: FeedForward
    chosen: range

    @property
    def names(self) -> list[str]:
        return name_vectors(self.ff)

    @property
    def width(self) -> int:
        return len(self.names) * len(self.chosen)

    def address(self, i: int) -> str:
        return str(replace(self.ff.address, neuron=i))

    def activity(self, layer: LayerTrace) -> Float[Tensor, "p n"]:
        chosen = list(self.chosen)
        return neuron_activity(layer, names=self.names, chosen=chosen, at=self.ff.address)


def read_evidence(model: Model, chunk: Chunk, text: str) -> Tables:
    assert chunk.layer is not None
    make = _neurons if chunk.kind == "neurons" else _heads
    stack = model.encoder if chunk.stack == "enc" else model
    snippets, areas = make(stack, chunk, chunk.layer, text)
    return {"agreement": to_table("agreement", areas), "evidence": to_table("evidence", snippets)}


def _neurons(model: Model, chunk: Chunk, layer: int, text: str) -> tuple[list[Row], list[Row]]:
    units = list(_units(model, layer, NEURONS_AT_ONCE * (chunk.part or 0)))

    def active(recorded: LayerTrace) -> Float[Tensor, "p n"]:
        return torch.cat([unit.activity(recorded) for unit in units], 1)

    ran = gather(model, text, layer, OF_NEURONS, active)
    snippets: list[Row] = []
    areas: list[Row] = []
    parts = torch.split(ran.active, [unit.width for unit in units], 1)
    for unit, part in zip(units, parts, strict=True):
        blocks = torch.split(part, len(unit.chosen), 1)
        snippets += _strongest(ran, unit, blocks[-1], layer)
        areas += _areas(model, ran, unit, blocks, layer)
    return snippets, areas


def _units(model: Model, layer: int, start: int) -> Iterator[_Unit]:
    """The neurons of a layer, its experts' one after another, from one on."""
    groups = layer_groups(model, layer, "value")
    units = {str(ff.address): ff for ff in model.layers[layer].feed_forwards}
    for group, a, b in between(groups, start, start + NEURONS_AT_ONCE):
        yield _Unit(units[str(group.owner)], range(a, b))


def _strongest(ran: Ran, unit: _Unit, own: Float[Tensor, "p n"], layer: int) -> Iterator[Row]:
    """Where the coefficients of the values are largest, whatever their sign."""
    order = own.abs().argsort(dim=0, descending=True, stable=True)[:PLACES]
    for column, i in enumerate(unit.chosen):
        at = {"address": unit.address(i), "layer": layer, "part": "neuron"}
        for rank, row in enumerate(order[:, column].tolist(), 1):
            if (value := float(own[row, column])) != 0:
                yield {**at, "rank": rank, **_say(ran.snippet(row, value))}


def _areas(
    model: Model, ran: Ran, unit: _Unit, blocks: Sequence[Tensor], layer: int
) -> Iterator[Row]:
    for read in neuron_reads(model, unit.ff, unit.names, list(unit.chosen)):
        areas, _ = measure_areas(ran, read, blocks[read.active])
        for i, area in zip(unit.chosen, areas, strict=True):
            at = {"address": unit.address(i), "layer": layer, "part": "neuron"}
            yield {**at, "reading": read.name, "area": None if isnan(area) else area}


def _heads(model: Model, chunk: Chunk, layer: int, text: str) -> tuple[list[Row], list[Row]]:
    """What each head took most from which token, and where it looked most."""
    snippets: list[Row] = []
    areas: list[Row] = []
    parts = {False: "VO", True: "QK"}
    pieces, answers = watch_layer(model, layer, text, PLACES, list(parts))
    tokens = spell_pieces(model, pieces)
    for (looking, part), (watched, means) in zip(parts.items(), answers, strict=True):
        for one, mean in zip(watched, means, strict=True):
            address = str(model.at(layer, head=one.head.index))
            at = {"address": address, "layer": layer, "part": part}
            shown = head_snippets(model, one, tokens, PLACES)
            snippets += [{**at, "rank": rank, **_say(s)} for rank, s in enumerate(shown, 1)]
            area = None if isnan(mean) else mean
            areas.append({**at, "reading": QUESTIONS[looking], "area": area})
    return snippets, areas


def _say(snippet: Snippet) -> Row:
    return {
        "activation": snippet.activation,
        "before": "".join(token.text for token in snippet.before),
        "token": snippet.token.id,
        "text": snippet.token.text,
        "after": "".join(token.text for token in snippet.after),
        "followed": snippet.followed.id if snippet.followed else None,
        "looked_at": snippet.looked_at.id if snippet.looked_at else None,
        "wrote": [token.id for token in snippet.wrote],
    }
