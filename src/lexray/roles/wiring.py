"""Who reads what a part writes, and who writes what it reads: the whole model, exactly."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.errors import LexrayError
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.result.links import Link, Links
from lexray.roles.ends import (
    HEAD_VIAS,
    NEURON_VIAS,
    End,
    MakeEnd,
    Via,
    WiredPart,
    chance,
    earlier_ends,
    end,
    later_ends,
    strengths,
)
from lexray.space.kinds import EXPECTS, Kind
from lexray.space.space import space_of

WORDS = 6


@dataclass(frozen=True)
class BareLink:
    """A link before its words are read: the cores on both sides."""

    writer: str
    reader: str
    strength: float
    times: float
    written: Float[Tensor, "r d_model"]
    read: Float[Tensor, "s d_model"]
    kinds: tuple[Kind, Kind]
    layers: tuple[int, int]

    @property
    def key(self) -> tuple[float, str, str]:
        return abs(self.times), self.writer, self.reader


def readers(
    weights: Weights, address: str | Address, n: int = 20, *, via: str | None = None
) -> Links:
    """The n parts that read most of what a head or neuron writes, as multiples of chance.

    `via`: only by their keys or gates (neurons), or their Q, K or V (heads).
    """
    weights = weights.stack_at(_parse(address))
    part = WiredPart.at(weights, _parse(address))
    written = part.writing_end()
    vias: tuple[Via, ...] = (*NEURON_VIAS, *HEAD_VIAS) if via is None else (_check_via(via),)
    ends = list(later_ends(weights, part.kind, part.address.layer, vias))
    links = _best(weights, [written], ends, n, "what reads it", forwards=True)
    said = f" by {via}" if via else ""
    return with_words(weights, links, f"What reads {part.address}{said}")


def writers(
    weights: Weights, address: str | Address, n: int = 20, *, via: str | None = None
) -> Links:
    """The n parts that write most of what a head or neuron reads, by all its sides or one."""
    weights = weights.stack_at(_parse(address))
    part = WiredPart.at(weights, _parse(address))
    links: list[BareLink] = []
    for read in part.readers(None if via is None else _check_via(via)):
        ends = list(earlier_ends(weights, read.kind, part.address.layer))
        links += _best(weights, [read], ends, n, "what writes for it", forwards=False)
    best = sorted(links, key=lambda link: link.key, reverse=True)[:n]
    said = f".{via}" if via else ""
    return with_words(weights, best, f"What writes for {part.address}{said}")


def _parse(address: str | Address) -> Address:
    return address if isinstance(address, Address) else Address.parse(address)


def _check_via(via: str) -> Via:
    for each in (*NEURON_VIAS, *HEAD_VIAS):
        if via == each:
            return each
    raise LexrayError(f"parts read by key, gate, Q, K or V, not by {via!r}")


def check_wanted(n: Any) -> None:
    """Raises for what is no number of links, such as an address."""
    if not isinstance(n, int) or n < 1:
        raise LexrayError(
            f"asked for {n!r} links; how many are wanted is a number from 1 on (those of one part "
            'are model["L3H2"].readers() and .writers())'
        )


def _best(
    weights: Weights,
    own: Sequence[End],
    others: Sequence[MakeEnd],
    n: int,
    what: str,
    *,
    forwards: bool,
) -> list[BareLink]:
    """The n strongest links between one part and all others, by their multiple of chance."""
    check_wanted(n)
    best: list[BareLink] = []
    whole = [] if forwards else [_whole(weights, mine) for mine in own]
    for make in track(others, len(others), what):
        other = make()
        assert other is not None
        for i, mine in enumerate(own):
            writer, reader = (mine, other) if forwards else (other, mine)
            all_readers = other if forwards else whole[i]
            by_chance = chance(weights, (writer.kind, writer.layer), all_readers)
            products = strengths(writer, reader).flatten().double()
            order = products.abs().argsort(descending=True, stable=True)[:n].tolist()
            best = heapq.nlargest(
                n,
                (
                    *best,
                    *(
                        _join(writer, reader, j, forwards, float(products[j]), by_chance)
                        for j in order
                    ),
                ),
                key=lambda link: link.key,
            )
    return best


def _whole(weights: Weights, mine: End) -> End:
    """All readers that are like the one asked about: what chance is taken over."""
    part = end(weights, mine.layer, mine.kind)
    assert part is not None
    return part


def _join(
    writer: End, reader: End, i: int, forwards: bool, strength: float, by_chance: float
) -> BareLink:
    w, r = (0, i) if forwards else (i, 0)
    return BareLink(
        writer.names[w],
        reader.names[r],
        strength,
        strength / by_chance,
        writer.core(w),
        reader.core(r),
        (writer.kind, reader.kind),
        (writer.layer, reader.layer),
    )


def with_words(
    weights: Weights, best: Iterable[BareLink], title: str, q: Iterable[float] | None = None
) -> Links:
    """The links with what passes along each, read as words at both ends; q of each, if known."""
    links = list(best)
    sure = [None] * len(links) if q is None else [float(each) for each in q]
    pairs = [_directions(link) for link in links]
    writes = _words(
        weights, [(link.kinds[0], link.layers[0]) for link in links], [a for a, _ in pairs]
    )
    reads = _words(
        weights, [(link.kinds[1], link.layers[1]) for link in links], [b for _, b in pairs]
    )
    return Links(
        space_of(weights).source(""),
        title,
        tuple(
            Link(link.writer, link.reader, link.strength, link.times, a, b, each)
            for link, a, b, each in zip(links, writes, reads, sure, strict=True)
        ),
    )


def _directions(link: BareLink) -> tuple[Tensor, Tensor]:
    """The direction written and the direction read that pass most; vectors as they are.

    A matrix's direction has no sign of its own: it takes that which the two have in common.
    """
    written, read = link.written, link.read
    if len(written) == 1 and len(read) == 1:
        return written[0], read[0]
    U, _, Vt = torch.linalg.svd(written.double() @ read.double().T)
    a, b = (U[:, 0].to(written) @ written), (Vt[0].to(read) @ read)
    if len(written) == 1:
        return written[0], b if float(written[0] @ b) >= 0 else -b
    if len(read) == 1:
        return (a if float(a @ read[0]) >= 0 else -a), read[0]
    return a, b if float(a @ b) >= 0 else -b


def _words(
    weights: Weights, places: Sequence[tuple[Kind, int]], vectors: Sequence[Tensor]
) -> list[tuple[str, ...]]:
    """Top tokens of many vectors; those that are read with one side together.

    What reads is read as what it expects, where the view has two ways: in the words of those who
    write for it, so that both ends of a link can be compared.
    """
    words: dict[int, tuple[str, ...]] = {}
    alike: dict[tuple[Kind, bool], list[int]] = {}
    for i, (kind, layer) in enumerate(places):
        alike.setdefault((kind, layer == 0), []).append(i)
    for (kind, first), at in alike.items():
        expects = kind in EXPECTS and weights.options.sees_and_expects
        seen = weights.view(reading="output") if expects else weights
        space = space_of(seen, 0 if first else None)
        X = torch.stack([vectors[i] for i in at])
        for i, reading in zip(at, space.readings(X, kind, [""] * len(at), WORDS), strict=True):
            words[i] = tuple(reading.tokens)
    return [words[i] for i in range(len(places))]
