"""The backward lens: what a loss would write into feed-forwards, and where, as words.

After Katz et al. (arXiv 2402.12865): the gradient of a feed-forward's matrix is a sum, over
positions, of outer products. Into the values goes, at each position, the backward vector that
arrives behind the feed-forward (times the neurons' coefficients); into the keys, the vector that
the feed-forward read there (times the backward vector of the pre-activations). Neither matrix is
ever built. In a mixture these are the matrices of the experts that the router chose there, and of
the shared one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from rich.console import Group, RenderableType
from torch import Tensor

from lexray.choice import Some, choose
from lexray.effects.aim import Aim, own_actions
from lexray.errors import LexrayError
from lexray.families import Experts
from lexray.model.anatomy import Anatomy
from lexray.result.charts.cells import Cells, Square
from lexray.result.readings import Reading, Source, Token
from lexray.result.table import TEXT_WIDTH, Cell, Result, Table
from lexray.space.space import space_of
from lexray.trace.read.grid import Grid, GridCell, clip
from lexray.trace.read.targets import Wanted
from lexray.trace.recording import Recording

NOTHING = 1e-6
"""A gradient of this share of the largest is none."""


@dataclass(frozen=True)
class Imprint:
    """One layer and position: what a step down the loss would put into its feed-forward."""

    layer: int
    position: int
    written: Reading
    """What is added to the values of the neurons that were active."""
    written_size: float
    """The size of this part of the gradient of the values."""
    read: Reading
    """What the keys of the neurons that matter are moved towards."""
    read_size: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "position": self.position,
            "written": self.written.ends(),
            "written_size": self.written_size,
            "read": self.read.ends(),
            "read_size": self.read_size,
        }


@dataclass(frozen=True)
class Backward(Result):
    """What the loss of a target would write, layer by position."""

    source: Source
    aim: Aim
    loss: float
    tokens: tuple[Token, ...]
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    imprints: tuple[Imprint, ...]
    """Layer by layer, in each position by position."""

    def at(self, layer: int, position: int) -> Imprint:
        """One cell."""
        at = position + len(self.tokens) if position < 0 else position
        for imprint in self.imprints:
            if (imprint.layer, imprint.position) == (layer, at):
                return imprint
        raise LexrayError(f"nothing was asked of layer {layer} and position {position}")

    def grids(self) -> list[Grid]:
        grids = []
        for side, said in (("written", "written into values"), ("read", "read into keys")):
            largest = max((getattr(i, f"{side}_size") for i in self.imprints), default=1.0) or 1.0
            lines = []
            for start in range(0, len(self.imprints), len(self.positions)):
                line = self.imprints[start : start + len(self.positions)]
                lines.append(tuple(_cell(i, side, largest) for i in line))
            title = f"What the loss of {self.aim.target.shown} would have {said}"
            columns = tuple(self.tokens[p].shown for p in self.positions)
            names = tuple(f"L{n}" for n in self.layers)
            grids.append(Grid(title, "", columns, names, tuple(lines), self._note))
        return grids

    @property
    def _note(self) -> str:
        return f"{self.source} · loss {self.loss:.3f} · colour: the size of the gradient there"

    def tables(self) -> list[Table]:
        return [grid.fitting(TEXT_WIDTH).table() for grid in self.grids()]

    def __rich__(self) -> RenderableType:
        return Group(*self.grids())

    def _repr_html_(self) -> str:
        return "\n".join(grid.to_html() for grid in self.grids())

    def csv_tables(self) -> list[Table]:
        columns = ("layer", "position", "token", "written_size", "written", "read_size", "read")
        rows: list[tuple[Cell, ...]] = [
            (
                i.layer,
                i.position,
                self.tokens[i.position].text,
                i.written_size,
                " ".join(i.written.tokens),
                i.read_size,
                " ".join(i.read.tokens),
            )
            for i in self.imprints
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            **self.aim.to_dict(),
            "loss": self.loss,
            "tokens": [token.to_dict() for token in self.tokens],
            "imprints": [imprint.to_dict() for imprint in self.imprints],
        }

    def plot(self) -> Cells:
        """What would be written into values, layer by position."""
        grid = self.grids()[0]
        squares = tuple(
            tuple(Square(clip(cell.token), cell.strength, cell.more) for cell in line)
            for line in grid.cells
        )
        columns = tuple(
            (str(p), word) for p, word in zip(self.positions, grid.columns, strict=True)
        )
        meaning = "size of the gradient"
        return Cells(grid.title, grid.note, columns, grid.names, squares, meaning)


def _cell(imprint: Imprint, side: str, largest: float) -> GridCell:
    reading: Reading = getattr(imprint, side)
    size: float = getattr(imprint, f"{side}_size")
    if size < NOTHING * largest:
        return GridCell("", 0.0)
    more = f"{' '.join(reading.tokens)} · {size:.3g}"
    return GridCell(clip(reading.tokens[0]), size / largest, more, reading.tokens[0])


def backward(
    recording: Recording,
    target: Wanted | None = None,
    position: int = -1,
    *,
    first: bool = False,
    layers: Some = None,
    positions: Some = None,
    k: int = 5,
) -> Backward:
    """What the loss of a target would write; see `lexray.trace.trace.Trace.backward`."""
    from lexray.trace.apply.gradients import gradients  # imports transformers

    model = recording.model
    aim = Aim.of(recording, target, position, first=first)
    at = choose(positions, len(recording), "position")
    blocks = model.architecture.blocks
    chosen = [n for n in choose(layers, model.n_layers, "layer") if not blocks[n].ff.absent]
    refuse_inner_norms(model, chosen)

    def loss(logits: Float[Tensor, "n d_vocab"]) -> Float[Tensor, ""]:
        return -logits[aim.position].log_softmax(-1)[aim.target.id]

    names: Any = ["mlp_write", "mlp_in", "coefficients", "pre", "shared_weight"]
    gradient = gradients(recording, loss, names, own_actions(recording))
    imprints: list[Imprint] = []
    for n in chosen:
        down = -gradient.slopes[n, "mlp_write"]
        slopes = gradient.slopes[n, "pre"]
        sizes = (
            gradient.states[n, "coefficients"].norm(dim=1) * down.norm(dim=1),
            gradient.states[n, "mlp_in"].norm(dim=1) * slopes.norm(dim=1),
        )
        written = _read(recording, down, n, "value", at, k)
        read = _read(recording, gradient.states[n, "mlp_in"], n, "key", at, k)
        for i, p in enumerate(at):
            w, r = (float(size[p]) for size in sizes)
            imprints.append(Imprint(n, p, written[i], w, read[i], r))
    source = model.space.source("backward")
    return Backward(
        source, aim, gradient.value, recording.tokens, tuple(chosen), at, tuple(imprints)
    )


def refuse_inner_norms(model: Anatomy, layers: Sequence[int]) -> None:
    """Raises where experts have norms of their own: what a loss would write into them is not what
    arrives behind the feed-forward."""
    ffs = {n: model.architecture.blocks[n].ff for n in layers}
    if normed := [n for n, ff in ffs.items() if isinstance(ff, Experts) and ff.own_norm]:
        raise LexrayError(
            f"the backward lens does not reach the experts of {model.name} in layers "
            f"{', '.join(map(str, normed))}, behind which stands a norm of their own; choose other "
            "layers, or trace.contributions() for what their neurons added"
        )


def _read(
    recording: Recording, x: Float[Tensor, "n d_model"], layer: int, kind: Any, at: Any, k: int
) -> Sequence[Reading]:
    """Vectors as words; those that are zero read as anything, and their size says so."""
    space = space_of(recording.model, layer)
    rows = x[list(at)].float()
    rows = torch.nn.functional.normalize(rows, dim=1)
    names = [f"L{layer} position {p}" for p in at]
    return space.readings(recording.model.place(rows), kind, names, k, None, kind)
