"""The strongest links of a whole model: writers × readers, by the exact pair engine.

Readers are held a chunk of layers at a time, and every earlier layer's writers stand against them,
so that each part is made once, or a few times in models whose readers do not fit into a chunk. Each
pair of layers is measured by its own chance, so that what every part of a layer shares makes no
link. No matrix of all links exists.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.groups import layer_groups
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.result.links import Links
from lexray.roles.chance import cosine_tail, q_of_some
from lexray.roles.ends import NEURON_VIAS, End, Via, end, end_kinds, spread_of
from lexray.roles.wiring import BareLink, check_wanted, with_words
from lexray.space.topk.pairs import top_pairs

CHUNK = 2**26
"""Numbers of readers that are held at once."""


def wires(weights: Weights, n: int = 100, *, via: Sequence[str] = NEURON_VIAS) -> Links:
    """The n strongest links from neurons' values to later neurons' keys and gates.

    >>> wires(model, 20, via=["key"])
    """
    check_wanted(n)
    if unknown := [each for each in via if each not in NEURON_VIAS]:
        raise LexrayError(f"neurons read by key or gate, not by {', '.join(unknown)}")
    chunks = list(_chunks(weights, tuple(each for each in NEURON_VIAS if each in via)))
    steps = [(chunk, layer) for chunk in chunks for layer in range(chunk[-1][0])]
    best: list[BareLink] = []
    tested, held, readers = 0, None, None
    for chunk, layer in track(steps, len(steps), "links"):
        written = end(weights, layer, "value")
        if written is None:
            continue
        if held is not chunk or readers is None:
            held, readers = chunk, Readers.make(weights, chunk)
        links, pairs = readers.links(written, n)
        best, tested = heapq.nlargest(n, (*best, *links), key=_key), tested + pairs
    cosines = np.array([link.strength for link in best])
    p = cosine_tail(cosines, cosines / np.array([link.times for link in best]))
    title = f"The strongest links of {weights.name}"
    return with_words(weights, best, title, q_of_some(p, tested))


def _key(link: BareLink) -> tuple[float, str, str]:
    return link.key


def _chunks(weights: Weights, vias: Sequence[Via]) -> Iterator[list[tuple[int, Via]]]:
    """Layers and sides of readers that are held together, in the order of the layers."""
    chunk: list[tuple[int, Via]] = []
    size = 0
    for layer in range(1, weights.n_layers):
        for via in vias:
            if via not in end_kinds(weights, layer):
                continue
            n = end_size(weights, layer, via)
            if chunk and size + n > CHUNK:
                yield chunk
                chunk, size = [], 0
            chunk.append((layer, via))
            size += n
    if chunk:
        yield chunk


def end_size(weights: Weights, layer: int, via: Via) -> int:
    """How many numbers an end's vectors and their spread hold."""
    rows = sum(group.n for group in layer_groups(weights, layer, via))
    return (rows + weights.d_model) * weights.d_model


@dataclass(frozen=True, eq=False)
class Readers:
    """Some layers' readers, of length 1, one below the other."""

    ends: tuple[End, ...]
    units: Float[Tensor, "n d_model"]
    scaled: Float[Tensor, "n d_model"]
    """Room for the same, each measured by its chance."""
    spreads: tuple[Float[Tensor, "d_model d_model"], ...]
    starts: tuple[int, ...]

    @classmethod
    def make(cls, weights: Weights, places: Sequence[tuple[int, Via]]) -> Readers:
        made = [end(weights, *place) for place in places]
        ends = [one for one in made if one is not None]
        units = torch.cat([one.units for one in ends])
        sizes = torch.tensor([0, *map(len, ends)]).cumsum(0).tolist()
        spreads = tuple(spread_of(one) for one in ends)
        return cls(tuple(ends), units, torch.empty_like(units), spreads, tuple(sizes))

    def links(self, written: End, n: int) -> tuple[list[BareLink], int]:
        """The best of one layer's writers with all readers that come later, and of how many."""
        first = next(i for i, reader in enumerate(self.ends) if reader.layer > written.layer)
        S = spread_of(written)
        chances = []
        for i in range(first, len(self.ends)):
            rows = slice(self.starts[i], self.starts[i + 1])
            c = float((S * self.spreads[i]).sum(dtype=torch.float64).clamp(min=1e-30).sqrt())
            torch.div(self.units[rows], c, out=self.scaled[rows])
            chances.append(c)
        B = self.scaled[self.starts[first] :]
        best = top_pairs(written.units, B, n, sign="absolute")
        owners = torch.tensor(self.starts[first + 1 :]) - self.starts[first]
        at = torch.bucketize(best.cols, owners, right=True).tolist()
        links = []
        for value, i, j, e in zip(
            best.values.tolist(), best.rows.tolist(), best.cols.tolist(), at, strict=True
        ):
            reader = self.ends[first + e]
            inside = j + self.starts[first] - self.starts[first + e]
            links.append(
                BareLink(
                    written.names[i],
                    reader.names[inside],
                    value * chances[e],
                    value,
                    written.core(i),
                    reader.core(inside),
                    (written.kind, reader.kind),
                    (written.layer, reader.layer),
                )
            )
        return links, len(written) * len(B)
