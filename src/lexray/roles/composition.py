"""Which heads feed which: Q-, K- and V-composition of all pairs of heads.

    ‖W_VO M‖_F / (‖W_VO‖_F ‖M‖_F),   M = W_Q W_Kᵀ (Q), W_K W_Qᵀ (K), W_V W_O (V) of the later head,

from r×r products, and once more after the direction that all heads share most is taken out of both
sides: the leading eigenvector of the mean of CᵀC / ‖C‖² over all writers and readers of that kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.weights import Weights
from lexray.progress import track
from lexray.result.charts.panels import Panels
from lexray.result.links import Links
from lexray.result.readings import Source
from lexray.result.table import Cell, Result, Table
from lexray.roles.ends import HEAD_VIAS, End, end, strengths
from lexray.roles.plots import compositions
from lexray.roles.wiring import BareLink, check_wanted, with_words
from lexray.space.kinds import Kind
from lexray.space.space import space_of

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Composition(Result):
    """All pairs of heads: rows write, columns read; NaN where the reader does not come later."""

    source: Source
    addresses: tuple[str, ...]
    scores: dict[str, Matrix]
    """By Q, K and V."""
    centred: dict[str, Matrix]
    """Without the direction that all share."""
    links: Links
    """The strongest, by the centred score over its mean between the two layers."""

    def matrix(self, via: str, *, centred: bool = True) -> Matrix:
        """writers × readers."""
        matrices = self.centred if centred else self.scores
        if via not in matrices:
            raise LexrayError(f"there is no {via}-composition; there are {', '.join(matrices)}")
        return matrices[via]

    def tables(self) -> list[Table]:
        (table,) = self.links.tables()
        return [replace(table, title=f"Heads of {self.source.called} that feed one another")]

    def csv_tables(self) -> list[Table]:
        columns = ("writer", "reader", "via", "score", "centred")
        rows: list[tuple[Cell, ...]] = [
            (
                self.addresses[i],
                self.addresses[j],
                via,
                float(S[i, j]),
                float(self.centred[via][i, j]),
            )
            for via, S in self.scores.items()
            for i, j in zip(*np.nonzero(~np.isnan(S)), strict=True)
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        def plain(matrices: dict[str, Matrix]) -> dict[str, Any]:
            return {
                via: [[None if np.isnan(x) else float(x) for x in row] for row in S]
                for via, S in matrices.items()
            }

        return {
            **self.source.to_dict(),
            "heads": list(self.addresses),
            "scores": plain(self.scores),
            "centred": plain(self.centred),
            "links": [link.to_dict() for link in self.links],
        }

    def graph(self) -> dict[str, list[dict[str, Any]]]:
        """The strongest links as nodes and edges, as networkx and D3 take them."""
        ends = [(link.writer, link.reader.rpartition(".")[0], link) for link in self.links]
        names = sorted({name for writer, reader, _ in ends for name in (writer, reader)})
        return {
            "nodes": [{"id": name} for name in names],
            "links": [
                {
                    "source": writer,
                    "target": reader,
                    "via": link.reader.rpartition(".")[2],
                    "weight": link.times,
                }
                for writer, reader, link in ends
            ],
        }

    def plot(self) -> Panels:
        """A heat map for each of Q, K and V."""
        title = f"Composition of the heads of {self.source.called}"
        return compositions(self.centred, title, str(self.source))


def composition(weights: Weights, n: int = 100, *, via: Sequence[str] = HEAD_VIAS) -> Composition:
    """All pairs of heads, and the n strongest links among them with their words."""
    check_wanted(n)
    if unknown := [each for each in via if each not in HEAD_VIAS]:
        raise LexrayError(f"heads read by Q, K and V, not by {', '.join(unknown)}")
    sides = tuple(each for each in HEAD_VIAS if each in via)
    blocks = enumerate(weights.architecture.blocks)
    layers = [layer for layer, block in blocks if not block.attention.absent]
    writers = [_make(weights, layer, "O") for layer in layers]
    addresses = tuple(name for each in writers for name in each.names)
    scores: dict[str, Matrix] = {}
    centred: dict[str, Matrix] = {}
    links: list[BareLink] = []
    for side in track(sides, len(sides), "compositions"):
        readers = [_make(weights, layer, side) for layer in layers]
        scores[side] = _matrix(writers, readers)
        shared = shared_direction([*writers, *readers])
        written, read = ([_without(each, shared) for each in ends] for ends in (writers, readers))
        centred[side] = _matrix(written, read)
        links += _strongest(written, read, centred[side], n)
    best = sorted(links, key=lambda link: link.key, reverse=True)[:n]
    source = space_of(weights).source("")
    return Composition(source, addresses, scores, centred, with_words(weights, best, "links"))


def _make(weights: Weights, layer: int, kind: Kind) -> End:
    part = end(weights, layer, kind)
    if part is None:
        raise LexrayError(f"layer {layer} of {weights.name} has no heads")
    return part


def shared_direction(ends: Sequence[End]) -> Float[Tensor, "d_model"]:
    """The leading eigenvector of the mean of CᵀC / ‖C‖² over everything."""
    d = ends[0].cores.shape[1]
    total = torch.zeros(d, d, dtype=torch.float64)
    for each in ends:
        units = each.units
        total += (units.T @ units).double().cpu() / len(each)
    leading: Tensor = torch.linalg.eigh(total).eigenvectors[:, -1]
    return leading


def _without(given: End, direction: Float[Tensor, "d_model"]) -> End:
    m = direction.to(given.cores)
    return replace(given, cores=given.cores - torch.outer(given.cores @ m, m))


def _matrix(writers: Sequence[End], readers: Sequence[End]) -> Matrix:
    starts = np.cumsum([0, *(len(each) for each in writers)])
    matrix = np.full((starts[-1], starts[-1]), np.nan)
    for i, writer in enumerate(writers):
        for j in range(i + 1, len(readers)):
            block = strengths(writer, readers[j]).double().cpu().numpy()
            matrix[starts[i] : starts[i + 1], starts[j] : starts[j + 1]] = block
    return matrix


def _strongest(writers: Sequence[End], readers: Sequence[End], S: Matrix, n: int) -> list[BareLink]:
    """The n largest, each over the root mean square between its two layers."""
    starts = np.cumsum([0, *(len(each) for each in writers)])
    times = np.full_like(S, -np.inf)
    for i in range(len(writers)):
        for j in range(i + 1, len(readers)):
            at = np.s_[starts[i] : starts[i + 1], starts[j] : starts[j + 1]]
            times[at] = S[at] / max(1e-30, float(np.sqrt(np.square(S[at]).mean())))
    order = np.argsort(-times, axis=None, kind="stable")[:n]
    links = []
    for a, b in zip(*np.unravel_index(order, S.shape), strict=True):
        if not np.isfinite(times[a, b]):
            break
        i, j = (int(np.searchsorted(starts, at, side="right")) - 1 for at in (a, b))
        writer, reader = writers[i], readers[j]
        w, r = int(a - starts[i]), int(b - starts[j])
        links.append(
            BareLink(
                writer.names[w],
                reader.names[r],
                float(S[a, b]),
                float(times[a, b]),
                writer.core(w),
                reader.core(r),
                (writer.kind, reader.kind),
                (writer.layer, reader.layer),
            )
        )
    return links
