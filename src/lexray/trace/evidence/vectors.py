"""Evidence of vectors: neurons and their keys, gates and values, subheads, and features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from math import inf, isnan
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.address import Address
from lexray.model.anatomy import Anatomy
from lexray.model.feedforward import FeedForward
from lexray.result.readings import Reading
from lexray.space.area import area
from lexray.space.kinds import EXPECTS, WRITES, Kind
from lexray.space.space import EmbeddingSpace, space_of
from lexray.trace.evidence.gather import OF_NEURONS, Ran, expert_activity, gather, strongest
from lexray.trace.evidence.result import Agreement, Evidence
from lexray.trace.recording import LayerTrace

RESPOND: frozenset[Kind] = frozenset({"key", "gate"})
_KINDS: tuple[Kind, ...] = ("key", "gate", "value")
PEERS = 40
WORDS = 6
Question = Literal["sees", "expects", "writes"]


@dataclass(frozen=True, eq=False)
class Reads:
    """One reading of a parameter and of its peers."""

    name: str
    kind: Kind
    space: EmbeddingSpace
    vectors: Float[Tensor, "n d_model"]
    """The parameter's own is the first."""
    question: Question
    active: int = 0
    """Which of several activities it goes with."""

    def scores(self, tokens: Int[Tensor, "m"]) -> Float[Tensor, "n m"]:
        X = self.space.shift(self.vectors, self.kind)
        return self.space.whole(self.kind).only(tokens).project(X).cpu().float()

    def words(self, sign: float) -> Reading:
        (reading,) = self.space.readings(self.vectors[:1] * sign, self.kind, [""], WORDS)
        return reading


def neuron_evidence(model: Anatomy, at: Address, text: str | None, n: int) -> Evidence:
    """A neuron, or one of its vectors alone."""
    ff = model[str(Address(at.layer, expert=at.expert, shared=at.shared))]
    ff = ff if isinstance(ff, FeedForward) else model.layers[at.layer].ff
    assert isinstance(ff, FeedForward)
    assert at.neuron is not None
    chosen = [at.neuron, *sample(ff.d_mlp, at.neuron, str(at))]
    names: list[str] = [at.vector] if at.vector else name_vectors(ff)
    reads = neuron_reads(model, ff, names, chosen)
    activity = partial(neuron_activity, names=names, chosen=chosen, at=at)
    ran = gather(model, text, at.layer, OF_NEURONS, activity)
    main = len(names) - 1  # the value's coefficient where there are several
    return _evidence(model, str(at), ran, reads, len(chosen), main, text, n)


def name_vectors(ff: FeedForward) -> list[str]:
    """What a neuron of it has."""
    return ["key", *["gate"] * (ff.spec.w_gate is not None), "value"]


def neuron_reads(
    model: Anatomy, ff: FeedForward, names: Sequence[str], chosen: Sequence[int]
) -> list[Reads]:
    """All readings of some neurons' vectors."""
    groups = [ff.group(kind) for kind in _KINDS if kind in names]
    of = {group.kind: group for group in groups}
    reads: list[Reads] = []
    for i, name in enumerate(names):
        X = torch.stack([of[name][at].tensor for at in chosen])  # type: ignore[index]
        reads += _questions(model, ff.address.layer, name, X, i)
    return reads


def neuron_activity(
    layer: LayerTrace, *, names: Sequence[str], chosen: Sequence[int], at: Address
) -> Float[Tensor, "p n"]:
    """One block of columns for each name."""
    if layer.experts is not None:
        did = [expert_activity(layer, at.expert, name, chosen) for name in names]
        return torch.cat([x.float().cpu() for x in did], 1)
    parts = {"key": layer.pre, "gate": layer.gate_pre, "value": layer.coefficients}
    active = [x for name in names if (x := parts[name]) is not None]
    return torch.cat([x[:, chosen] for x in active], 1)


def subhead_evidence(model: Anatomy, at: Address, text: str | None, n: int) -> Evidence:
    """A column of W_Q, W_K or W_V, or a row of W_O."""
    assert at.subhead is not None
    assert at.index is not None
    assert at.head is not None
    head = model.layers[at.layer].heads[at.head]
    group = head.subheads(at.subhead)
    chosen = [at.index, *sample(len(group), at.index, str(at))]
    X = torch.stack([group[i].tensor for i in chosen])
    part = {"Q": "q", "K": "k", "V": "v", "O": "z"}[at.subhead]
    own = at.head if at.subhead in "QO" else head.kv_index

    def active(layer: LayerTrace) -> Float[Tensor, "p n"]:
        activity: Tensor = getattr(layer, part)[:, own]
        return activity[:, chosen]

    ran = gather(model, text, at.layer, ("attention", "heads"), active)
    reads = _questions(model, at.layer, at.subhead, X, 0)
    return _evidence(model, str(at), ran, reads, len(chosen), 0, text, n)


def feature_evidence(
    model: Anatomy,
    address: str,
    layer: int,
    space: Any,
    active: Callable[[LayerTrace, Sequence[int]], Float[Tensor, "p n"]],
    vectors: dict[Kind, Callable[[int], Float[Tensor, "d_model"]]],
    chosen: Sequence[int],
    text: str | None,
    n: int,
) -> Evidence:
    """A feature of a dictionary; the feature itself is the first of `chosen`."""
    reads = [
        Reads(name, kind, space, torch.stack([rows(i) for i in chosen]), question)
        for kind, rows in vectors.items()
        for name, question in _ask(kind, model)
    ]
    what = ("residual",)
    ran = gather(model, text, layer, what, lambda recorded: active(recorded, chosen))
    return _evidence(model, address, ran, reads, len(chosen), 0, text, n)


def _questions(model: Anatomy, layer: int, kind: Any, X: Tensor, active: int) -> list[Reads]:
    space = space_of(model, layer)
    reads = []
    for name, question in _ask(kind, model):
        seen = space_of(model.view(reading="output"), layer) if question == "expects" else space
        reads.append(Reads(name, kind, seen, X, question, active))
    return reads


def _ask(kind: Kind, model: Anatomy) -> Iterator[tuple[str, Question]]:
    """What a reading of this kind claims: to tell the token it stands on, or the one to come."""
    if kind in WRITES:
        yield f"{kind} writes", "writes"
        return
    yield f"{kind} sees", "sees"
    if kind in EXPECTS and model.architecture.causal and model.options.sees_and_expects:
        yield f"{kind} expects", "expects"


def _evidence(
    model: Anatomy,
    address: str,
    ran: Ran,
    reads: Sequence[Reads],
    n_chosen: int,
    main: int,
    text: str | None,
    n: int,
) -> Evidence:
    blocks = torch.split(ran.active, n_chosen, dim=1)
    own = blocks[main][:, 0]
    responds = all(read.kind in RESPOND for read in reads)
    order = (own if responds else own.abs()).argsort(descending=True, stable=True)[:n].tolist()
    there = [row for row in order if float(own[row]) not in (0, -inf)]
    snippets = tuple(ran.snippet(row, float(own[row])) for row in there)
    agreements = tuple(
        agree(ran, read, blocks[min(read.active, len(blocks) - 1)]) for read in reads
    )
    source = model.space.source(address)
    return Evidence(source, snippets, agreements, ran.n_tokens, name_text(text))


def agree(ran: Ran, read: Reads, active: Float[Tensor, "p n"]) -> Agreement:
    """How well a reading tells where its parameter is strong, and how well its peers' tell theirs.

    A direction that is stronger when it is negative is turned round with its reading.
    """
    areas, signs = measure_areas(ran, read, active)
    others = [x for x in areas[1:] if not isnan(x)]
    mean = sum(others) / len(others) if others else float("nan")
    below = sum(x < areas[0] for x in others) / len(others) if others else float("nan")
    words = tuple(s.token for s in read.words(float(signs[0])).top)
    return Agreement(read.name, words, areas[0], mean, below, len(others))


def measure_areas(
    ran: Ran, read: Reads, active: Float[Tensor, "p n"]
) -> tuple[list[float], Float[Tensor, "n"]]:
    """Each vector's area, and the sign with which it was read."""
    at = ran.here if read.question == "sees" else ran.after
    there = at >= 0
    tokens, place = torch.unique(at[there], return_inverse=True)
    scores, active = read.scores(tokens), active[there]
    signs = _signs(read.kind, active)
    areas = [
        area((signs[i] * scores[i])[place], strongest(signs[i] * active[:, i]))
        for i in range(active.shape[1])
    ]
    return areas, signs


def _signs(kind: Kind, active: Float[Tensor, "p n"]) -> Float[Tensor, "n"]:
    """Keys and gates respond where they are positive; the others where they are largest."""
    high, low = active.amax(0), -active.amin(0)
    turned = torch.where(low > high, -1.0, 1.0)
    return torch.ones_like(turned) if kind in RESPOND else turned


def sample(n: int, own: int, seed: str) -> list[int]:
    """Some others of n, the same each time."""
    number = int(sha256(seed.encode()).hexdigest()[:8], 16)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(number)).tolist()
    return [i for i in order if i != own][:PEERS]


def name_text(text: str | None) -> str:
    return "lexray's own text" if text is None else "the text that was given"
