"""Which parameters of a layer were active in a forward pass, and the tokens that they name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.model.feedforward import FeedForward
from lexray.model.model import Model
from lexray.model.vectors import VECTORS_AT_ONCE
from lexray.space.kinds import Kind
from lexray.studies.shared.measures import rows_of
from lexray.trace.recording import LayerTrace


class Active(NamedTuple):
    """The m most active vectors at each position."""

    at: Int[Tensor, "p m"]
    """Their places in the long list of the layer's `groups`."""
    negative: Bool[Tensor, "p m"]
    """Which of them are read negated."""


def active_neurons(layer: LayerTrace, m: int, *, absolute: bool) -> Active:
    """Neurons of the feed-forward, or of all experts and the shared one, by coefficient."""
    coefficients, places = _neurons(layer)
    return _largest(coefficients, places, m, absolute)


def active_subheads(layer: LayerTrace, m: int, *, absolute: bool) -> dict[Kind, Active]:
    """Columns of W_V and rows of W_O, by the entries of W_O's input; shared values are one."""
    z = layer.z
    p, heads, width = z.shape
    inside = torch.arange(width, device=z.device)
    of_values = [head.kv_index for head in layer.trace.weights.layers[layer.index].heads]
    first = {"O": torch.arange(heads), "V": torch.tensor(of_values)}
    places = {kind: (width * h.to(z.device))[:, None] + inside for kind, h in first.items()}
    return {
        "V": _largest(z.flatten(1), places["V"].flatten().expand(p, -1), m, absolute),
        "O": _largest(z.flatten(1), places["O"].flatten().expand(p, -1), m, absolute),
    }


def _neurons(layer: LayerTrace) -> tuple[Float[Tensor, "p n"], Int[Tensor, "p n"]]:
    """The coefficients at each position, and whose they are."""
    dense = layer.coefficients
    if dense is not None:
        return dense, torch.arange(dense.shape[1], device=dense.device).expand_as(dense)
    did, ff = layer.experts, layer.trace.weights.layers[layer.index].ff
    assert did is not None
    assert not isinstance(ff, FeedForward)
    width = did.coefficients.shape[2]
    inside = torch.arange(width, device=did.chosen.device)
    coefficients = (did.coefficients * did.added[..., None]).flatten(1)
    places = (did.chosen[..., None] * width + inside).flatten(1)
    if did.shared_coefficients is None:
        return coefficients, places
    shared = did.shared_coefficients * did.shared_added[:, None]
    after = len(ff.experts) * width + torch.arange(shared.shape[1], device=shared.device)
    return torch.cat([coefficients, shared], 1), torch.cat([places, after.expand_as(shared)], 1)


def _largest(
    coefficients: Float[Tensor, "p n"], places: Int[Tensor, "p n"], m: int, absolute: bool
) -> Active:
    """Of equal ones (heads that share values often are) the first."""
    sizes = coefficients.abs() if absolute else coefficients
    best = sizes.argsort(dim=1, descending=True, stable=True)[:, :m]
    negative = coefficients.gather(1, best) < 0
    return Active(places.gather(1, best).cpu(), negative.cpu() & absolute)


class TopLists:
    """The top k tokens of a model's parameters, each projected once, when it is first wanted."""

    def __init__(self, model: Model, k: int, *, both_ends: bool) -> None:
        self.model, self.k, self.both_ends = model, k, both_ends
        self._rows: dict[tuple[Kind, int], Int[Tensor, "n"]] = {}
        """Where in the table of its kind a layer's vectors are; -1 if not yet."""
        self._tables: dict[Kind, Int[Tensor, "rows ends k"]] = {}

    def of(self, kind: Kind, wanted: Mapping[int, Active]) -> Int[Tensor, "layers p m k"]:
        """The lists of each layer's active vectors."""
        self._learn(kind, wanted)
        table, chosen = self._tables[kind], []
        for layer, active in wanted.items():
            lists = table[self._rows[kind, layer][active.at]]
            end = active.negative.long()[..., None, None].expand(-1, -1, 1, self.k)
            chosen.append(lists.gather(2, end)[:, :, 0])
        return torch.stack(chosen).long()

    def _learn(self, kind: Kind, wanted: Mapping[int, Active]) -> None:
        fresh, vectors = [], []
        for layer, active in wanted.items():
            groups = self.model.layers[layer].groups(kind)
            if (kind, layer) not in self._rows:
                self._rows[kind, layer] = torch.full((sum(g.n for g in groups),), -1)
            rows = self._rows[kind, layer]
            at = torch.unique(active.at)
            at = at[rows[at] < 0]
            if len(at):
                fresh.append((rows, at))
                vectors.append(rows_of(groups, at))
        self._append(kind, fresh, vectors)

    def _append(
        self, kind: Kind, fresh: list[tuple[Tensor, Tensor]], vectors: list[Tensor]
    ) -> None:
        table = self._tables.get(kind)
        start = 0 if table is None else len(table)
        for rows, at in fresh:
            rows[at] = torch.arange(start, start + len(at))
            start += len(at)
        if vectors:
            new = self._project(kind, torch.cat(vectors))
            self._tables[kind] = new if table is None else torch.cat([table, new])

    def _project(self, kind: Kind, X: Float[Tensor, "n d_model"]) -> Int[Tensor, "n ends k"]:
        space = self.model.space
        side, parts = space.side(kind), []
        for block in torch.split(space.shift(X, kind), VECTORS_AT_ONCE):
            best = side.top(block, self.k)
            low = best.bottom_ids if self.both_ends else best.top_ids
            ends = [best.top_ids, low][: 2 if self.both_ends else 1]
            parts.append(torch.stack(ends, 1).int().cpu())
        return torch.cat(parts)
