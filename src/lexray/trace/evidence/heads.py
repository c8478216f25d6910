"""Evidence of heads: where one took most from which token, and where it looked most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nlargest
from math import isnan
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.find.promise import Looks, score_written
from lexray.model.anatomy import Anatomy
from lexray.model.fold import at_least_float32
from lexray.model.head import Head
from lexray.result.readings import Token
from lexray.trace.evidence.gather import STRONGEST, run_pieces, snippet, spell_pieces
from lexray.trace.evidence.result import Agreement, Evidence, Snippet
from lexray.trace.evidence.vectors import WORDS, name_text
from lexray.trace.read.standard import read_words
from lexray.trace.read.usual import Place
from lexray.trace.recording import LayerTrace

FIRST_QUERY = 4
QUESTIONS = {False: "VO moves", True: "QK attends"}
"""What a head's matrices claim, by whether it is about looking."""


class Look(NamedTuple):
    """A query and the key it looks at, and how strongly."""

    strength: float
    piece: int
    query: int
    key: int


@dataclass(eq=False)
class Watched:
    """One head while a text is run: its strongest looks and what they took, nothing more."""

    head: Head
    """As the model's view has it."""
    most: int
    looks: list[Look] = field(default_factory=list)
    taken: dict[Look, Tensor] = field(default_factory=dict)
    attended: list[float] = field(default_factory=list)

    @cached_property
    def promised(self) -> Looks:
        return Looks(self.head)

    def see(self, layer: LayerTrace, piece: int, ids: Sequence[int], *, looking: bool) -> None:
        raw = layer.trace.weights.layers[layer.index].heads[self.head.index]
        weights, written = weigh_looks(raw, layer)
        looks = _largest(weights if looking else weights * written.norm(dim=1), piece, self.most)
        self.looks = nlargest(self.most, [*self.looks, *looks])
        self.taken |= {look: weights[look.query, look.key] * written[look.key] for look in looks}
        self.taken = {look: self.taken[look] for look in self.looks}
        if looking:
            scores = self.promised.score(*self.promised.factors(ids))
            self.attended += _rank_looks(scores, weights)


def head_evidence(model: Anatomy, at: Address, text: str | None, n: int) -> Evidence:
    """A head, or its VO: where it took most from a token. Its QK: where it looks most."""
    looking = at.matrix == "QK"
    pieces, ((watched, means),) = watch_layer(model, at.layer, text, n, [looking])
    assert at.head is not None
    agreement = _compare(QUESTIONS[looking], means, at.head)
    shown = head_snippets(model, watched[at.head], spell_pieces(model, pieces), n)
    source, count = model.space.source(str(at)), sum(map(len, pieces))
    return Evidence(source, shown, (agreement,), count, name_text(text))


def watch_layer(
    model: Anatomy, layer: int, text: str | None, n: int, looking: Sequence[bool]
) -> tuple[list[list[int]], list[tuple[list[Watched], list[float]]]]:
    """All heads of a layer while a text is run once: its pieces, and for each question (whether it
    is about looking) what each head did and each one's area."""
    heads = model.layers[layer].heads
    every = [[Watched(head, max(n, STRONGEST)) for head in heads] for _ in looking]
    pieces, passes = run_pieces(model, text, layer, ("attention",))
    for number, recording in enumerate(passes):
        for question, watched in zip(looking, every, strict=True):
            for one in watched:
                one.see(recording[layer], number, pieces[number], looking=question)
    answers = []
    for question, watched in zip(looking, every, strict=True):
        areas = [
            one.attended if question else _rank_followers(one.head, one.looks, pieces)
            for one in watched
        ]
        answers.append((watched, [*map(_mean, areas)]))
    return pieces, answers


def _compare(name: str, areas: Sequence[float], head: int) -> Agreement:
    """One head's area against those of the layer's others."""
    own = areas[head]
    others = [x for h, x in enumerate(areas) if h != head and not isnan(x)]
    below = sum(x < own for x in others) / len(others) if others else float("nan")
    return Agreement(name, (), own, _mean(others), below, len(others))


def head_snippets(
    model: Anatomy, one: Watched, pieces: Sequence[Sequence[Token]], n: int
) -> tuple[Snippet, ...]:
    looks = one.looks[:n]
    layer = one.head.address.layer
    words = _wrote(model, layer, [one.taken[look] for look in looks])
    return tuple(
        replace(
            snippet(pieces[look.piece], look.query, look.strength),
            looked_at=pieces[look.piece][look.key],
            wrote=tuple(map(model.space.token, ids)),
        )
        for look, ids in zip(looks, words, strict=True)
    )


def weigh_looks(
    head: Head, layer: LayerTrace
) -> tuple[Float[Tensor, "n n"], Float[Tensor, "n d_model"]]:
    """A head's attention to earlier tokens but the first, where it rests; and what each token
    gives to those who look at it."""
    W_O = at_least_float32(head.W_O)
    weights = layer.pattern[head.index].float().tril(-1)
    weights[:, 0] = 0
    return weights, layer.v[:, head.kv_index].to(W_O) @ W_O


def _largest(size: Float[Tensor, "n n"], piece: int, n: int) -> list[Look]:
    """Each query's strongest look, the strongest of these."""
    best = size.max(1)
    rows = best.values.topk(min(n, len(size))).indices.tolist()
    looks = [Look(float(best.values[q]), piece, q, int(best.indices[q])) for q in rows]
    return [look for look in looks if look.strength > 0]


def _wrote(model: Anatomy, layer: int, vectors: Sequence[Tensor]) -> list[list[int]]:
    """What was taken, as words."""
    if not vectors:
        return []
    places = [Place("values", layer)] * len(vectors)
    ids: list[list[int]] = read_words(
        model, torch.stack(list(vectors)), places, WORDS // 2
    ).projected.top_ids.tolist()
    return ids


def _rank_followers(
    head: Head, looks: Sequence[Look], pieces: Sequence[Sequence[int]]
) -> list[float]:
    """For each of the strongest looks: of how many of the text's tokens the head's VO matrix, for
    the token that was looked at, says less than of the one that followed."""
    if not head.weights.architecture.causal:
        return []
    tokens = torch.tensor([i for ids in pieces for i in ids])
    own, place = torch.unique(tokens, return_inverse=True)
    shares = []
    for look in looks[:STRONGEST]:
        ids = pieces[look.piece]
        if look.query + 1 < len(ids):
            scores = score_written(head, ids[look.key], among=own)[place]
            followed = scores[tokens == ids[look.query + 1]][0]
            shares.append(_share_below(scores, followed))
    return shares


def _share_below(scores: Float[Tensor, "n"], own: Float[Tensor, ""]) -> float:
    """The share of scores below one of them; ties count half, itself not at all."""
    below, same = (scores < own).sum(), (scores == own).sum() - 1
    return float((below + same / 2) / max(1, len(scores) - 1))


def _rank_looks(scores: Float[Tensor, "n n"], weights: Float[Tensor, "n n"]) -> list[float]:
    """For each query: the share of the tokens it could look at that score below the one it looks
    at most, by the static scores at their true distances."""
    own = scores.gather(1, weights.argmax(1, keepdim=True).to(scores.device))
    seen = torch.ones_like(scores, dtype=torch.bool).tril(-1)
    seen[:, 0] = False
    below, same = ((scores < own) & seen).sum(1), ((scores == own) & seen).sum(1) - 1
    shares = (below + same / 2) / (seen.sum(1) - 1).clamp(min=1)
    return shares[FIRST_QUERY:].tolist()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")
