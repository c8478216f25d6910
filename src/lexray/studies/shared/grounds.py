"""What parameters do on a text, and how well each view's reading tells it: one number a parameter.

- keys and gates: the tokens at their strongest activations (`sees`) and those that follow there
  (`expects`), against the text's other tokens;
- values and rows of W_O: the tokens that lose most probability when the parameter is removed where
  it is strongest (`causes`), and the tokens that follow where it is strong (`follows`), against the
  text's other tokens;
- QK: the key that a head looks at most, against the others that it could look at, by the static
  score at the true distance (`attends`); the first position, where attention rests, is left out;
- VO: the tokens that lose most probability when what a head took from a token is removed
  (`causes`).

Each has a control: the reading of another parameter of the same layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.find.promise import Looks, score_written
from lexray.model.groups import layer_groups
from lexray.model.head import Head
from lexray.model.model import Model
from lexray.space.area import area
from lexray.space.kinds import Kind
from lexray.space.space import space_of
from lexray.studies.shared.measures import sample, seed_generator
from lexray.trace.evidence.gather import OF_NEURONS, STRONGEST, strongest
from lexray.trace.evidence.heads import weigh_looks
from lexray.trace.evidence.vectors import neuron_activity
from lexray.trace.record.removal import Removal, Where, changes
from lexray.trace.recording import LayerTrace
from lexray.trace.trace import Trace
from lexray.view import View

Areas = dict[str, dict[str, dict[str, list[float | None]]]]
"""By question, by view: the areas of a layer's parameters, and those of their controls."""
READERS, WRITERS = ("key", "gate"), ("value", "O")
FALLEN = 20
FIRST_QUERY = 6


@dataclass(frozen=True)
class Amount:
    """How many parameters of each layer and kind, and at how many places each is removed."""

    readers: int = 24
    writers: int = 8
    heads: int = 4
    places: int = 2


@dataclass
class Grounds:
    """Measures one kind of parameter in one layer at a time."""

    model: Model
    texts: Sequence[Sequence[int]]
    views: Mapping[str, View]
    amount: Amount = field(default_factory=Amount)
    seed: int = 0
    _traced: tuple[int, list[Trace]] | None = None

    def measure(self, layer: int, kind: str) -> Areas:
        """All questions of a kind; none where the layer has no such parameters."""
        traces = self._traces(layer)
        causal = self.model.architecture.causal
        match kind:
            case "key" | "gate":
                return self._readers(layer, kind, traces)
            case "QK":
                return self._queries(layer, traces)
            case "value" | "O" if causal and self.model.layers[layer].groups(kind):
                follows = self._follows(layer, kind, traces)
                return follows | self._remove(self._plan_writers(layer, kind, traces))
            case "VO" if causal:
                return self._remove(self._plan_heads(layer, traces))
        return {}

    def _traces(self, layer: int) -> list[Trace]:
        if self._traced is None or self._traced[0] != layer:
            texts = [list(ids) for ids in self.texts]
            what = ("attention", "heads", *OF_NEURONS)
            self._traced = layer, self.model.trace(texts, layers=layer, what=what, special=False)
        return self._traced[1]

    def _views(self, kind: str) -> dict[str, View]:
        """Those that read this kind differently: to what writes, both embeddings are one."""
        views: dict[str, View] = {}
        for name, view in self.views.items():
            same = replace(view, reading="output") if kind in WRITERS else view
            if same not in views.values():
                views[name] = same
        return views

    # ------------------------------------------------------------------ keys and gates

    def _readers(self, layer: int, kind: Kind, traces: Sequence[Trace]) -> Areas:
        total = sum(group.n for group in layer_groups(self.model, layer, kind))
        if not total:
            return {}
        chosen = self._draw(self.amount.readers, total, layer, kind)
        parts = [_strengths(trace, layer, kind, chosen) for trace in traces]
        active = torch.cat([part[1:-1] for part in parts])
        strong = [strongest(column) for column in active.T]
        questions = {"sees": _tokens(traces, 1, -1)}
        if self.model.architecture.causal:
            questions["expects"] = _tokens(traces, 2, None)
        return {
            question: {
                view: _areas_of(self._scores(seen, layer, kind, chosen, tokens), strong)
                for view, seen in self._views(kind).items()
            }
            for question, tokens in questions.items()
        }

    def _follows(self, layer: int, kind: Kind, traces: Sequence[Trace]) -> Areas:
        """What follows where a writer is strong, in the sign that it mostly has there."""
        total = sum(group.n for group in layer_groups(self.model, layer, kind))
        chosen = self._draw(self.amount.readers, total, layer, kind)
        parts = [_strengths(trace, layer, kind, chosen) for trace in traces]
        columns = torch.cat([part[1:-1] for part in parts])
        n = min(STRONGEST, len(columns) // 2)
        largest = columns.gather(0, columns.abs().topk(n, dim=0).indices).sum(0)
        signs = torch.where(largest < 0, -1.0, 1.0)
        strong = [strongest(column) for column in (columns * signs).T]
        tokens = _tokens(traces, 2, None)
        return {
            "follows": {
                view: _areas_of(
                    self._scores(seen, layer, kind, chosen, tokens) * signs[:, None], strong
                )
                for view, seen in self._views(kind).items()
            }
        }

    def _scores(
        self, view: View, layer: int, kind: Kind, chosen: Int[Tensor, "n"], tokens: Int[Tensor, "m"]
    ) -> Float[Tensor, "n m"]:
        """What a view's readings say of the tokens at some places."""
        known, places = torch.unique(tokens, return_inverse=True)
        seen = self.model.with_view(view)
        space = space_of(seen, layer)
        X = torch.cat([group.tensor for group in seen.layers[layer].groups(kind)])
        X = space.shift(X[chosen.to(X.device)], kind)
        return space.whole(kind).only(known).project(X).cpu()[:, places]

    # ------------------------------------------------------------------ where a head looks

    def _queries(self, layer: int, traces: Sequence[Trace]) -> Areas:
        n_heads = len(self.model.layers[layer].heads)
        areas: Areas = {"attends": {}}
        for name, view in self._views("QK").items():
            own: list[float | None] = []
            control: list[float | None] = []
            for index in self._draw(self.amount.heads, n_heads, layer, "QK").tolist():
                head = self.model.with_view(view).layers[layer].heads[index]
                pairs = [_looking(head, trace, layer, index) for trace in traces]
                means = torch.cat(pairs).mean(0).tolist()
                own.append(means[0])
                control.append(means[1])
            areas["attends"][name] = {"areas": own, "control": control}
        return areas

    # ------------------------------------------------------------------ removals

    def _plan_writers(self, layer: int, kind: Kind, traces: Sequence[Trace]) -> list[Job]:
        groups = self.model.view("raw").layers[layer].groups(kind)
        W = torch.cat([group.tensor for group in groups])
        chosen = self._draw(self.amount.writers, len(W), layer, kind)
        readings = {
            name: self._read(view, layer, kind, chosen) for name, view in self._views(kind).items()
        }
        jobs = []
        strengths = [_strengths(trace, layer, kind, chosen) for trace in traces]
        for i, number in enumerate(chosen.tolist()):
            columns = [part[:, i] for part in strengths]
            for s, p, c in _strongest(columns, self.amount.places):
                sign = 1.0 if c > 0 else -1.0
                own = {name: sign * scores[i] for name, scores in readings.items()}
                other = {name: sign * scores[i - 1] for name, scores in readings.items()}
                ids = tuple(traces[s].ids[: p + 1].tolist())
                where: Where = "mlp" if kind == "value" else "attention"
                jobs.append(Job(own, other, Removal(ids, layer, where, c * W[number])))
        return jobs

    def _read(self, view: View, layer: int, kind: Kind, chosen: Tensor) -> Float[Tensor, "n e"]:
        seen = self.model.with_view(view)
        space = space_of(seen, layer)
        X = torch.cat([group.tensor for group in seen.layers[layer].groups(kind)])[chosen]
        return space.whole(kind).project(space.shift(X, kind)).cpu()

    def _plan_heads(self, layer: int, traces: Sequence[Trace]) -> list[Job]:
        heads, jobs = self.model.view("raw").layers[layer].heads, []
        for index in self._draw(self.amount.heads, len(heads), layer, "VO").tolist():
            seen = {
                name: self.model.with_view(view).layers[layer].heads[index]
                for name, view in self._views("VO").items()
            }
            for s, p, i, vector in _find_taken(heads[index], traces, layer, self.amount.places):
                token = int(traces[s].ids[i])
                other = int(traces[s].ids[1 + (i + 3) % (p - 1)]) if p > 1 else token
                own, control = (
                    {name: score_written(head, at) for name, head in seen.items()}
                    for at in (token, other)
                )
                ids = tuple(traces[s].ids[: p + 1].tolist())
                jobs.append(Job(own, control, Removal(ids, layer, "attention", vector)))
        return jobs

    def _remove(self, jobs: Sequence[Job]) -> Areas:
        """How well each reading tells the tokens whose probability falls most."""
        there = self.model.vocabulary.mask(self.model.space.n_rows)
        cells: dict[str, dict[str, list[float | None]]] = {}
        for number, before, after in changes(self.model, [job.removal for job in jobs]):
            n = min(len(before), len(there))
            mask = there[:n]
            fall = (before.exp() - after.exp())[:n][mask]
            wanted = torch.zeros(len(fall), dtype=torch.bool)
            wanted[fall.topk(min(FALLEN, len(fall) // 2)).indices] = True
            for name, scores in jobs[number].own.items():
                cell = cells.setdefault(name, {"areas": [], "control": []})
                cell["areas"].append(_area(scores[:n][mask], wanted))
                cell["control"].append(_area(jobs[number].other[name][:n][mask], wanted))
        return {"causes": cells} if cells else {}

    def _draw(self, n: int, total: int, layer: int, kind: str) -> Int[Tensor, "n"]:
        return sample(min(n, total), total, seed_generator(self.seed, layer, kind))


class Job(NamedTuple):
    """A removal, and what each view's reading says of every token; its own and another's."""

    own: dict[str, Float[Tensor, "e"]]
    other: dict[str, Float[Tensor, "e"]]
    removal: Removal


def _tokens(traces: Sequence[Trace], start: int, stop: int | None) -> Int[Tensor, "m"]:
    return torch.cat([trace.ids[start:stop] for trace in traces])


def _areas_of(
    scores: Float[Tensor, "n m"], strong: Sequence[Bool[Tensor, "m"]]
) -> dict[str, list[float | None]]:
    """Of each reading with its own places, and of its neighbour's with them."""
    return {
        "areas": [_area(scores[i], places) for i, places in enumerate(strong)],
        "control": [_area(scores[i - 1], places) for i, places in enumerate(strong)],
    }


def _area(scores: Float[Tensor, "n"], wanted: Bool[Tensor, "n"]) -> float | None:
    value = area(scores, wanted)
    return None if isnan(value) else value


def _strengths(
    trace: Trace, layer: int, kind: Kind, chosen: Int[Tensor, "n"]
) -> Float[Tensor, "p n"]:
    """What some keys and gates give at each position, or by how much some writers are added."""
    if kind == "O":
        return trace[layer].z.flatten(1)[:, chosen].float()
    columns = torch.zeros(len(trace.ids), len(chosen))
    start = 0
    for group in layer_groups(trace.weights, layer, kind):
        own = ((chosen >= start) & (chosen < start + group.n)).nonzero()[:, 0]
        if len(own):
            within = (chosen[own] - start).tolist()
            columns[:, own] = neuron_activity(
                trace[layer], names=[kind], chosen=within, at=group.owner
            ).float()
        start += group.n
    return columns


def _strongest(columns: Sequence[Float[Tensor, "p"]], places: int) -> list[tuple[int, int, float]]:
    """(text, position, coefficient) where a writer was strongest, after the first position."""
    spots: list[tuple[int, int, float]] = []
    for s, strengths in enumerate(columns):
        p = int(strengths[1:].abs().argmax()) + 1
        if c := float(strengths[p]):
            spots.append((s, p, c))
    return sorted(spots, key=lambda place: -abs(place[2]))[:places]


def _find_taken(
    head: Head, traces: Sequence[Trace], layer: int, places: int
) -> list[tuple[int, int, int, Tensor]]:
    """(text, query, key, what was written) of the most that a head took from earlier tokens."""
    taken = []
    for s, trace in enumerate(traces):
        here: LayerTrace = trace[layer]
        weights, written = weigh_looks(head, here)
        size = weights * written.norm(dim=1)
        p, i = divmod(int(size.argmax()), size.shape[1])
        if i and p > i:
            taken.append((float(size[p, i]), s, p, i, weights[p, i] * written[i]))
    best = sorted(taken, key=lambda place: -place[0])[:places]
    return [(s, p, i, vector) for _, s, p, i, vector in best]


def _looking(head: Head, trace: Trace, layer: int, index: int) -> Float[Tensor, "queries 2"]:
    """For each query the area of the key it looks at most, and the same with shuffled keys."""
    n = len(trace.ids)
    looks = Looks(head)
    A, B = looks.factors(trace.ids.tolist())
    order = torch.randperm(n, generator=seed_generator(0, layer, index, n))
    seen = torch.ones(n, n).tril().bool()
    seen[:, 0] = False
    best = trace[layer].pattern[index].float().masked_fill(~seen, -1).argmax(1)
    areas = [_areas(looks.score(A, keys), best, seen) for keys in (B, B[order])]
    return torch.stack(areas, 1)[FIRST_QUERY:]


def _areas(scores: Tensor, best: Tensor, seen: Tensor) -> Float[Tensor, "n"]:
    own = scores.gather(1, best[:, None])
    below = ((scores < own) & seen).sum(1) + ((scores == own) & seen).sum(1) / 2 - 0.5
    return below.double() / (seen.sum(1) - 1).clamp(min=1)
