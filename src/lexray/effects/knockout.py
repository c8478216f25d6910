"""Attention knock-out: what one position sees of the others, cut in windows of layers.

As in "Dissecting Recall of Factual Associations in Auto-Regressive Language Models" (arXiv
2304.14767).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.choice import Some, choose
from lexray.edits.values import Edit, cut
from lexray.effects.aim import Aim, recorded_logits, rough
from lexray.effects.grids import GridResult, number_grid
from lexray.effects.plots import draw_cells
from lexray.effects.removals import rerun_each
from lexray.errors import LexrayError
from lexray.result.charts.cells import Cells
from lexray.result.readings import Source, Token
from lexray.result.table import Cell, Table
from lexray.trace.read.grid import Grid
from lexray.trace.read.targets import Wanted
from lexray.trace.recording import Recording


@dataclass(frozen=True, eq=False)
class Knockout(GridResult):
    """Attention to each position, cut in a window of layers: what is left of the answer."""

    source: Source
    aim: Aim
    window: int
    probability: float
    """Of the target, as it was."""
    tokens: tuple[Token, ...]
    positions: tuple[int, ...]
    layers: tuple[int, ...]
    """The middle of each window."""
    change: Float[Tensor, "layers positions"]
    """Of the target's probability, relative to what it was."""
    note: str = ""
    cross: bool = False
    """Whether it is attention to the source that was cut: tokens and positions are the source's."""

    @property
    def title(self) -> str:
        return (
            f"{self.aim.target.shown}: change of its probability ({self.probability:.3g}) when "
            f"position {self.aim.position} cannot look at one{' of the source' * self.cross}, in "
            f"{self.window} layers around"
        )

    @property
    def _note(self) -> str:
        return " · ".join(filter(None, [self.source.model, "-1: all is lost", self.note]))

    def grid(self) -> Grid:
        columns = [self.tokens[p].shown for p in self.positions]
        names = [f"L{n}" for n in self.layers]
        return number_grid(self.title, self._note, columns, names, self.change)

    def csv_tables(self) -> list[Table]:
        rows: list[tuple[Cell, ...]] = [
            (n, p, self.tokens[p].text, float(self.change[i, j]))
            for i, n in enumerate(self.layers)
            for j, p in enumerate(self.positions)
        ]
        return [Table(("layer", "position", "token", "change"), tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            **self.aim.to_dict(),
            "window": self.window,
            "probability": self.probability,
            "tokens": [token.to_dict() for token in self.tokens],
            "positions": list(self.positions),
            "layers": list(self.layers),
            "change": self.change.tolist(),
            "cross": self.cross,
            "note": self.note,
        }

    def plot(self) -> Cells:
        columns = [(str(p), self.tokens[p].shown) for p in self.positions]
        names = [f"L{n}" for n in self.layers]
        meaning = "relative change of the probability"
        return draw_cells(self.title, self._note, columns, names, self.change, meaning)


def knockout(
    trace: Recording,
    target: Wanted | None = None,
    position: int = -1,
    *,
    window: int = 5,
    layers: Some = None,
    sources: Some = None,
    first: bool = False,
    renormalise: bool = False,
    cross: bool = False,
) -> Knockout:
    """Cuts what one position sees of each other one, in windows of layers.

    `window` layers around each of `layers`; `sources` are the positions that are no longer seen.
    `cross=True`: of an encoder–decoder, what it sees of each position of the source.

    >>> lx.knockout(trace, " good", window=2).change.shape
    torch.Size([4, 3])
    """
    model = trace.model
    if not 1 <= window <= model.n_layers:
        raise LexrayError(f"a window has 1 to {model.n_layers} layers, not {window}")
    aim = Aim.of(trace, target, position, first=first)
    source_run = trace.source if cross else None
    if cross and source_run is None:
        raise LexrayError(f"{model.name} has no cross-attention: it is one stack of layers")
    visible = aim.position + 1 if model.architecture.causal else len(trace)
    seen = choose(sources, visible if source_run is None else len(source_run), "position")
    blocks = model.architecture.blocks
    chosen = [
        n
        for n in choose(layers, model.n_layers, "layer")
        if any(not blocks[m].attention.absent for m in around(n, window, model.n_layers))
    ]
    if not chosen:
        raise LexrayError("none of these layers has heads whose attention could be cut")
    edits: list[Edit] = [
        cut(
            p,
            aim.position,
            [f"L{m}{'.cross' * cross}" for m in around(n, window, model.n_layers)],
            renormalise=renormalise,
        )
        for n in chosen
        for p in seen
    ]
    logits = dict(rerun_each(trace, list(dict.fromkeys(edits)), aim, "cutting attention"))
    before = float(aim.probability(recorded_logits(trace, aim)))
    after = torch.tensor([float(aim.probability(logits[edit])) for edit in edits])
    change = (after - before).view(len(chosen), len(seen)) / max(before, 1e-30)
    notes = " · ".join(filter(None, [*aim.notes, rough(trace)]))
    source, tokens = model.space.source("knockout"), (source_run or trace).tokens
    return Knockout(
        source, aim, window, before, tokens, tuple(seen), tuple(chosen), change, notes, cross
    )


def around(layer: int, window: int, n_layers: int) -> Sequence[int]:
    """The layers of a window, cut at the ends of the model."""
    start = layer - (window - 1) // 2
    return range(max(0, start), min(n_layers, start + window))
