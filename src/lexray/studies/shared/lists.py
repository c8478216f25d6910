"""The first tokens of vectors that arise in a forward pass, as a model's view reads them.

By the papers' view that is the logit lens: the model's own last step, the tokens in its order. By
the standard view a score is measured against what that token usually scores there,

    z_j = (s_j − mean of s_j) / spread of s_j

over lexray's own text, for each kind of vector and each layer: tokens that lead every list of a
place lead none. Tokens that training never touched are set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.cache import Drawer
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.progress import track
from lexray.space.side import SIGMA_FLOOR
from lexray.space.topk.arithmetic import full_precision
from lexray.space.topk.vectors import multiply, rows_at_once, top_scores
from lexray.studies.shared.measures import sample, seed_generator
from lexray.studies.shared.text import own_text
from lexray.trace.read.project import SEGMENT, LastStep
from lexray.trace.record.prompt import longest
from lexray.trace.trace import Trace

WORDS = 12
"""In a piece of the text, at whose last word the vectors are taken."""
STEP = 6
PIECES = 128
AT_ONCE = 16
VECTORS = 256
"""So many of each kind and layer are enough to know what is usual."""


@dataclass(frozen=True, eq=False)
class PassVectors:
    """Vectors of one kind, and the layer of each; -1 where it is the whole model's."""

    vectors: Float[Tensor, "n d_model"]
    layers: Int[Tensor, "n"]
    side: Literal["writing", "reading"] = "writing"

    @classmethod
    def by_layer(cls, X: Float[Tensor, "layers d_model"]) -> PassVectors:
        """One vector of each layer."""
        return cls(X, torch.arange(len(X)))

    @classmethod
    def whole(cls, X: Float[Tensor, "n d_model"]) -> PassVectors:
        return cls(X, torch.full((len(X),), -1))


Parts = Mapping[str, PassVectors]


class UsualScores(NamedTuple):
    """What each token scores there as a rule."""

    mean: Float[Tensor, "e"]
    spread: Float[Tensor, "e"]


Place = tuple[str, int]
"""A part's name and a layer."""
USUAL: Drawer[Hashable, dict[Place, UsualScores]] = Drawer(most=12)


@dataclass(frozen=True)
class ListReader:
    """Reads the vectors that a study takes from a pass."""

    study: str
    what: tuple[str, ...]
    """What of a trace they are made of."""
    gather: Callable[[Trace], Parts]
    """From a trace of which only the last position need be kept."""
    whole: bool = False
    """Whether all positions have to be kept."""

    def tops(self, model: Model, parts: Parts, k: int) -> dict[str, Int[Tensor, "_ k"]]:
        """The k first tokens of each vector."""
        usual = self._usual(model) if model.options.standardised else None
        tops: dict[str, Tensor] = {}
        for side in ("writing", "reading"):
            here = {name: part for name, part in parts.items() if part.side == side}
            if here:
                ids = list(_read(model, here, k, usual))
                sizes = [len(part.vectors) for part in here.values()]
                tops |= dict(zip(here, torch.split(torch.cat(ids), sizes), strict=True))
        return tops

    def _usual(self, model: Model) -> dict[Place, UsualScores]:
        key = self.study, self.what, str(model.options)
        return USUAL.get(model.cache, key, lambda: self._measure(model))

    def _measure(self, model: Model) -> dict[Place, UsualScores]:
        texts = pieces(model)
        gathered: dict[str, list[PassVectors]] = {}
        starts = range(0, len(texts), AT_ONCE)
        for start in track(starts, len(starts), f"{self.study}: what is usual"):
            some = texts[start : start + AT_ONCE]
            traces = model.trace(some, what=self.what, positions=None if self.whole else -1)
            for trace in traces:
                for name, part in self.gather(trace).items():
                    gathered.setdefault(name, []).append(part)
        usual: dict[Place, UsualScores] = {}
        for name in track(list(gathered), len(gathered), f"{self.study}: usual scores"):
            usual |= _measure_part(model, name, gathered[name])
        return usual


def pieces(model: Model) -> list[list[int]]:
    """Short overlapping pieces of lexray's own text, spread over all of it, as tokens."""
    words, most = own_text().split(), longest(model)
    passages = [" ".join(words[i : i + WORDS]) for i in range(0, len(words) - WORDS + 1, STEP)]
    chosen = passages[:: max(1, len(passages) // PIECES)][:PIECES]
    return [model.vocabulary.encode(text, special=True)[:most] for text in chosen]


def _measure_part(model: Model, name: str, parts: list[PassVectors]) -> dict[Place, UsualScores]:
    X = torch.cat([at_least_float32(part.vectors) for part in parts])
    layers = torch.cat([part.layers for part in parts])
    step, usual = LastStep.of(model, parts[0].side), {}
    for layer in torch.unique(layers).tolist():
        rows = (layers == layer).nonzero()[:, 0]
        rows = rows[sample(VECTORS, len(rows), seed_generator(0, name, layer))]
        scores = _scores(step, X[rows.to(X.device)], parts[0].side)[:, : step.columns.count]
        spread = scores.std(0, unbiased=False)
        floor = SIGMA_FLOOR * float(spread.median()) or 1.0
        usual[name, layer] = UsualScores(scores.mean(0), spread.clamp(min=floor))
    return usual


def _read(
    model: Model, parts: Parts, k: int, usual: dict[Place, UsualScores] | None
) -> Iterator[Int[Tensor, "_ k"]]:
    """The lists of all parts of one side, as one batch after another."""
    side = next(iter(parts.values())).side
    step = LastStep.of(model, side)
    X = torch.cat([at_least_float32(part.vectors.to(model.device)) for part in parts.values()])
    places = [(name, int(at)) for name, part in parts.items() for at in part.layers]
    left_out = _find_left_out(model, step)
    count = step.columns.count
    k = min(k, count - len(left_out))
    for start in range(0, len(X), rows_at_once(count)):
        stop = min(len(X), start + rows_at_once(count))
        scores = _scores(step, X[start:stop], side)
        if usual is not None:
            for place, rows in _runs(places[start:stop]):
                mean, spread = usual[place]
                scores[rows, :count] = (scores[rows, :count] - mean) / spread
        scores[:, left_out] = -torch.inf
        yield top_scores(scores, count, k)[1]


def _find_left_out(model: Model, step: LastStep) -> Int[Tensor, "some"]:
    """Columns that stand for no token, or for none that the view lists."""
    if not model.options.trained:
        return step.holes()
    ids = model.space.list_ids(None)
    mask = torch.ones(step.columns.count, dtype=torch.bool)
    if ids is not None:
        mask[ids.cpu()] = False
        return mask.nonzero()[:, 0].to(step.side.rows.device)
    return (~mask).nonzero()[:, 0].to(step.side.rows.device)


def _scores(
    step: LastStep, X: Float[Tensor, "n d_model"], side: Literal["writing", "reading"]
) -> Float[Tensor, "n padded"]:
    """The logits before any cap, which keeps their order."""
    with full_precision():
        H = step.prepare(X, norm=side == "writing", transform=False)
        padded = -(-step.columns.count // SEGMENT) * SEGMENT
        dtype = torch.promote_types(H.dtype, at_least_float32(step.side.rows[:0]).dtype)
        scores = torch.empty(len(H), padded, dtype=dtype, device=H.device)
        multiply(H, step.columns, scores)
    if step.bias is not None:
        scores[:, : step.columns.count] += step.bias
    return scores


def _runs(places: list[Place]) -> Iterator[tuple[Place, slice]]:
    """Rows of one place that stand together."""
    start = 0
    for i in range(1, len(places) + 1):
        if i == len(places) or places[i] != places[start]:
            yield places[start], slice(start, i)
            start = i
