"""What parameters do on a text, and how well each view's reading tells it: one number a parameter.

- keys and gates: the tokens at their strongest activations (`sees`) and those that follow there
  (`expects`), against the text's other tokens;
- values and rows of W_O: the tokens that lose most probability when the parameter is removed where
  it is strongest (`causes`);
- QK: the key that a head looks at most, against the others that it could look at, by the static
  score at the true distance (`attends`); the first position, where attention rests, is left out;
- VO: the tokens that lose most probability when what a head took from a token is removed.

Each has a control: the reading of another parameter of the same layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.model.model import Model
from lexray.progress import track
from lexray.space.kinds import Kind
from lexray.space.space import space_of
from lexray.studies.shared.areas import area
from lexray.studies.shared.measures import sample, seed_generator
from lexray.trace.record.removal import Removal, Where, changes
from lexray.trace.recording import LayerTrace
from lexray.trace.trace import Trace
from lexray.view import View

Cell = tuple[str, str, str]
"""The kind, the question, and the view's name."""
STRONGEST = 20
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
    """The areas of each cell, layer by layer, and those of the controls."""

    model: Model
    texts: Sequence[Sequence[int]]
    layers: Sequence[int]
    views: Mapping[str, View]
    amount: Amount = field(default_factory=Amount)
    seed: int = 0

    def __post_init__(self) -> None:
        self.found: dict[Cell, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.control: dict[Cell, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._jobs: list[tuple[str, list[tuple[str, Tensor]], list[Tensor]]] = []
        self._removals: list[Removal] = []

    def measure(self, kinds: Sequence[str]) -> None:
        """Everything of these kinds."""
        for layer in track(self.layers, len(self.layers), "grounding"):
            traces = self._traced(layer)
            for kind in ("key", "gate"):
                if kind in kinds:
                    self._readers(layer, kind, traces)
            if "QK" in kinds:
                self._queries(layer, traces)
            if self.model.architecture.causal:
                self._plan_removals(layer, traces, kinds)
        self._remove()

    def _traced(self, layer: int) -> list[Trace]:
        texts = [list(ids) for ids in self.texts]
        return self.model.trace(
            texts, layers=layer, what=("attention", "heads", "mlp"), special=False
        )

    def _kept(self, traces: Sequence[Trace], layer: int, name: str) -> Tensor | None:
        """One thing at all positions but the first and last of each text, side by side."""
        parts: list[Tensor] = []
        for trace in traces:
            x = getattr(trace[layer], name)
            if x is None:
                return None
            parts.append(x[1:-1])
        return torch.cat(parts).float()

    # ------------------------------------------------------------------ keys and gates

    def _readers(self, layer: int, kind: Kind, traces: Sequence[Trace]) -> None:
        active = self._kept(traces, layer, "pre" if kind == "key" else "gate_pre")
        if active is None:
            return
        here = torch.cat([trace.ids[1:-1] for trace in traces])
        after = torch.cat([trace.ids[2:] for trace in traces])
        chosen = self._sampled(self.amount.readers, active.shape[1], layer, kind)
        tokens, place = torch.unique(torch.cat([here, after]), return_inverse=True)
        here, after = place[: len(here)], place[len(here) :]
        for name, view in self.views.items():
            scores = self._scores(view, layer, kind, chosen, tokens)
            for question, at in (("sees", here), ("expects", after)):
                if question == "expects" and not self.model.architecture.causal:
                    continue
                for i, neuron in enumerate(chosen.tolist()):
                    strong = torch.zeros(len(at), dtype=torch.bool)
                    strong[active[:, neuron].topk(min(STRONGEST, len(at) // 2)).indices] = True
                    cell = kind, question, name
                    self.found[cell][layer].append(area(scores[i][at], strong))
                    self.control[cell][layer].append(area(scores[i - 1][at], strong))

    def _scores(
        self, view: View, layer: int, kind: Kind, chosen: Int[Tensor, "n"], tokens: Int[Tensor, "m"]
    ) -> Float[Tensor, "n m"]:
        seen = self.model.seen(view)
        space = space_of(seen, layer)
        (group, *_) = seen.layers[layer].groups(kind)
        X = space.shifted(group.tensor[chosen], kind)
        return space.whole(kind).only(tokens).project(X).cpu()

    # ------------------------------------------------------------------ where a head looks

    def _queries(self, layer: int, traces: Sequence[Trace]) -> None:
        n_heads = len(self.model.layers[layer].heads)
        for index in self._sampled(self.amount.heads, n_heads, layer, "QK").tolist():
            for name, view in self.views.items():
                head = self.model.seen(view).layers[layer].heads[index]
                pairs = [_looking(head, trace, layer, index) for trace in traces]
                areas = torch.cat(pairs).mean(0)
                cell = "QK", "attends", name
                self.found[cell][layer].append(float(areas[0]))
                self.control[cell][layer].append(float(areas[1]))

    # ------------------------------------------------------------------ removals

    def _plan_removals(self, layer: int, traces: Sequence[Trace], kinds: Sequence[str]) -> None:
        if "value" in kinds and traces[0][layer].coefficients is not None:
            self._plan_writers(layer, "value", traces)
        if "O" in kinds:
            self._plan_writers(layer, "O", traces)
        if "VO" in kinds:
            self._plan_heads(layer, traces)

    def _plan_writers(self, layer: int, kind: Kind, traces: Sequence[Trace]) -> None:
        raw = self.model.view("raw").layers[layer]
        groups = raw.groups(kind)
        W = torch.cat([group.tensor for group in groups])
        chosen = self._sampled(self.amount.writers, len(W), layer, kind)
        readings = {
            name: self._read(view, layer, kind, chosen) for name, view in self.views.items()
        }
        for i, number in enumerate(chosen.tolist()):
            for s, p, c in _strongest(traces, layer, kind, number, self.amount.places):
                sign = 1.0 if c > 0 else -1.0
                own = [(name, sign * scores[i]) for name, scores in readings.items()]
                other = [sign * scores[i - 1] for scores in readings.values()]
                ids = tuple(traces[s].ids[: p + 1].tolist())
                where: Where = "mlp" if kind == "value" else "attention"
                self._plan(kind, own, other, Removal(ids, layer, where, c * W[number]))

    def _read(self, view: View, layer: int, kind: Kind, chosen: Tensor) -> Float[Tensor, "n e"]:
        seen = self.model.seen(view)
        space = space_of(seen, layer)
        X = torch.cat([group.tensor for group in seen.layers[layer].groups(kind)])[chosen]
        return space.whole(kind).project(space.shifted(X, kind)).cpu()

    def _plan_heads(self, layer: int, traces: Sequence[Trace]) -> None:
        heads = self.model.view("raw").layers[layer].heads
        for index in self._sampled(self.amount.heads, len(heads), layer, "VO").tolist():
            found = _taken(heads[index], traces, layer, self.amount.places)
            for s, p, i, vector in found:
                token = int(traces[s].ids[i])
                other = int(traces[s].ids[1 + (i + 3) % (p - 1)]) if p > 1 else token
                by_view = {
                    name: self._head(view, layer, index) for name, view in self.views.items()
                }
                own = [(name, _written(by, token)) for name, by in by_view.items()]
                control = [_written(by, other) for by in by_view.values()]
                ids = tuple(traces[s].ids[: p + 1].tolist())
                self._plan("VO", own, control, Removal(ids, layer, "attention", vector))

    def _head(self, view: View, layer: int, index: int) -> Head:
        return self.model.seen(view).layers[layer].heads[index]

    def _plan(
        self, kind: str, own: list[tuple[str, Tensor]], other: list[Tensor], removal: Removal
    ) -> None:
        self._jobs.append((kind, own, other))
        self._removals.append(removal)

    def _remove(self) -> None:
        there = self.model.vocabulary.admitted(self.model.space.n_rows)
        for number, before, after in changes(self.model, self._removals):
            (kind, own, other), layer = self._jobs[number], self._removals[number].layer
            n = min(len(before), len(there))
            mask = there[:n]
            fall = (before.exp() - after.exp())[:n][mask]
            wanted = torch.zeros(len(fall), dtype=torch.bool)
            wanted[fall.topk(min(FALLEN, len(fall) // 2)).indices] = True
            for (name, scores), others in zip(own, other, strict=True):
                cell = kind, "causes", name
                self.found[cell][layer].append(area(scores[:n][mask], wanted))
                self.control[cell][layer].append(area(others[:n][mask], wanted))

    def _sampled(self, n: int, total: int, layer: int, kind: str) -> Int[Tensor, "n"]:
        return sample(min(n, total), total, seed_generator(self.seed, layer, kind))


def _strongest(
    traces: Sequence[Trace], layer: int, kind: Kind, number: int, places: int
) -> list[tuple[int, int, float]]:
    """(text, position, coefficient) where a writer was strongest, after the first position."""
    found: list[tuple[int, int, float]] = []
    for s, trace in enumerate(traces):
        x = trace[layer].coefficients if kind == "value" else trace[layer].z.flatten(1)
        assert x is not None
        strengths = x[1:, number].abs().float()
        p = int(strengths.argmax()) + 1
        found.append((s, p, float(x[p, number])))
    return sorted(found, key=lambda place: -abs(place[2]))[:places]


def _taken(
    head: Head, traces: Sequence[Trace], layer: int, places: int
) -> list[tuple[int, int, int, Tensor]]:
    """(text, query, key, what was written) of the most that a head took from earlier tokens."""
    W_O = at_least_float32(head.W_O)
    found = []
    for s, trace in enumerate(traces):
        here: LayerTrace = trace[layer]
        written = here.v[:, head.kv_index].float() @ W_O
        weights = here.pattern[head.index].float().tril(-1)
        weights[:, 0] = 0
        size = weights * written.norm(dim=1)
        p, i = divmod(int(size.argmax()), size.shape[1])
        if i and p > i:
            found.append((float(size[p, i]), s, p, i, weights[p, i] * written[i]))
    best = sorted(found, key=lambda place: -place[0])[:places]
    return [(s, p, i, vector) for _, s, p, i, vector in best]


def _written(head: Head, token: int) -> Float[Tensor, "e"]:
    """What attending to a token writes, by this view."""
    space = head.vo.space
    left, right = at_least_float32(head.W_V), at_least_float32(head.W_O)
    row = space.whole("V").only(torch.tensor([token])).factor(left)
    return space.whole("O").project(row.to(right) @ right)[0].cpu()


def _looking(head: Head, trace: Trace, layer: int, index: int) -> Float[Tensor, "queries 2"]:
    """For each query the area of the key it looks at most, and the same with shuffled keys."""
    space = head.qk.space
    n = len(trace.ids)
    A, B = head.qk.factors_between(*(space.whole(kind).only(trace.ids) for kind in head.qk.kinds))
    A, B = A.cpu().double(), B.cpu().double()
    order = torch.randperm(n, generator=seed_generator(0, layer, index, n))
    seen = torch.ones(n, n).tril().bool()
    seen[:, 0] = False
    best = trace[layer].pattern[index].float().masked_fill(~seen, -1).argmax(1)
    areas = [
        _areas(scores, best, seen) for scores in (_static(head, A, B), _static(head, A, B[order]))
    ]
    return torch.stack(areas, 1)[FIRST_QUERY:]


def _static(head: Head, A: Tensor, B: Tensor) -> Float[Tensor, "n n"]:
    """q R(distance) kᵀ of every pair."""
    scores = torch.zeros(len(A), len(B), dtype=torch.float64)
    for distance in range(len(A)):
        R = head.rotation(-distance)
        turned = A[distance:] if R is None else A[distance:] @ R.cpu().double()
        scores.diagonal(-distance)[:] = (turned * B[: len(turned)]).sum(1)
    return scores


def _areas(scores: Tensor, best: Tensor, seen: Tensor) -> Float[Tensor, "n"]:
    own = scores.gather(1, best[:, None])
    below = ((scores < own) & seen).sum(1) + ((scores == own) & seen).sum(1) / 2 - 0.5
    return below.double() / (seen.sum(1) - 1).clamp(min=1)
