"""Activation patching: where two runs differ in what makes them answer differently.

Denoising puts what a clean run had into a corrupted one and asks how much of the answer comes back
(1: all of it); noising puts what the corrupted run had into the clean one and asks how much is lost
(1: all of it). The gradient says both approximately in one pass (attribution patching).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.address import Address
from lexray.choice import Some, choose
from lexray.edits.values import Edit, patch
from lexray.effects.aim import Aim, own_actions, recorded_logits, rough
from lexray.effects.grids import GridResult, number_grid
from lexray.effects.plots import by_layer, draw_cells, scatter, signed_map
from lexray.effects.removals import rerun_each
from lexray.errors import LexrayError
from lexray.result.charts.cells import Cells
from lexray.result.charts.panels import Panels
from lexray.result.readings import Source, Token
from lexray.result.table import Cell, Table
from lexray.trace.read.grid import Grid
from lexray.trace.read.targets import Wanted
from lexray.trace.read.vectors import has_kind
from lexray.trace.recording import Recording

Of = (
    Literal["residual", "attention", "cross", "mixer", "mlp", "heads", "head positions"]
    | Literal["laurel", "cross heads", "cross head positions"]
)
OFS: tuple[Of, ...] = (
    *("residual", "attention", "cross", "mixer", "mlp", "heads", "head positions"),
    *("laurel", "cross heads", "cross head positions"),
)
Way = Literal["denoising", "noising"]
CAUGHT = {
    "residual": "resid_pre",
    "attention": "attn_write",
    "cross": "cross_write",
    "mixer": "mixer_write",
    "laurel": "laurel_write",
    "mlp": "mlp_write",
}


@dataclass(frozen=True, eq=False)
class Patching(GridResult):
    """A grid of how much of the answer follows from each place."""

    source: Source
    of: Of
    way: Way
    aim: Aim
    clean: float
    """The metric of the clean run, and of the corrupted one."""
    corrupted: float
    tokens: tuple[Token, ...]
    """Of the clean run."""
    corrupted_tokens: tuple[Token, ...]
    lines: tuple[str, ...]
    columns: tuple[str, ...]
    exact: Float[Tensor, "lines columns"]
    """The share of the difference between the runs: 1 is all of it."""
    approximate: Float[Tensor, "lines columns"] | None = None
    """The same by the gradient."""
    note: str = ""

    @property
    def correlation(self) -> float | None:
        """Of the approximation with the exact grid."""
        if self.approximate is None or self.exact.numel() < 2:
            return None
        both = torch.stack([self.exact.flatten(), self.approximate.flatten()]).double()
        value = float(torch.corrcoef(both)[0, 1])
        return value if value == value else None

    @property
    def title(self) -> str:
        return f"{self.of.capitalize()}, {self.way}: the share of {self.aim.what} that follows"

    @property
    def _note(self) -> str:
        r = self.correlation
        said = f"clean {self.clean:.2f}, corrupted {self.corrupted:.2f}"
        approximate = "" if r is None else f"correlation with the gradient's estimate {r:.2f}"
        return " · ".join(filter(None, [self.source.model, said, approximate, self.note]))

    def top(self, n: int = 15) -> list[tuple[str, str, float]]:
        """The places that matter most: line, column, share."""
        order = self.exact.abs().flatten().argsort(descending=True)[:n].tolist()
        width = len(self.columns)
        return [
            (self.lines[i // width], self.columns[i % width], float(self.exact.flatten()[i]))
            for i in order
        ]

    def grid(self) -> Grid:
        return number_grid(self.title, self._note, self.columns, self.lines, self.exact)

    def csv_tables(self) -> list[Table]:
        columns = ("line", "column", "number", "exact", "approximate")
        rows: list[tuple[Cell, ...]] = [
            (
                line,
                column,
                j,
                float(self.exact[i, j]),
                None if self.approximate is None else float(self.approximate[i, j]),
            )
            for i, line in enumerate(self.lines)
            for j, column in enumerate(self.columns)
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            **self.aim.to_dict(),
            "of": self.of,
            "way": self.way,
            "clean": self.clean,
            "corrupted": self.corrupted,
            "tokens": [token.to_dict() for token in self.tokens],
            "corrupted_tokens": [token.to_dict() for token in self.corrupted_tokens],
            "lines": list(self.lines),
            "columns": list(self.columns),
            "exact": self.exact.tolist(),
            "approximate": None if self.approximate is None else self.approximate.tolist(),
            "correlation": self.correlation,
            "note": self.note,
        }

    def plot(self) -> Cells | Panels:
        """The grid; of heads also the approximation against the exact share."""
        if self.of not in ("heads", "cross heads"):
            columns = [(str(i), name) for i, name in enumerate(self.columns)]
            meaning = "share of the answer"
            return draw_cells(self.title, self._note, columns, self.lines, self.exact, meaning)
        layers = [Address.parse(line).layer for line in self.lines]
        panels = [signed_map("exact", by_layer(self.exact, layers), "head", "layer")]
        if self.approximate is not None:
            points = [
                (f"{line}{column}", float(self.exact[i, j]), float(self.approximate[i, j]))
                for i, line in enumerate(self.lines)
                for j, column in enumerate(self.columns)
            ]
            panels.append(scatter("exact", "by the gradient", points, slope=1.0, same="the same"))
        return Panels(self.title, self._note, tuple(panels))


def patching(
    clean: Recording,
    corrupted: Recording,
    target: Wanted | None = None,
    position: int = -1,
    *,
    of: str = "residual",
    way: str = "denoising",
    against: Wanted | None = None,
    first: bool = False,
    layers: Some = None,
    positions: Some = None,
    approximate: bool = True,
    encoder: bool = False,
) -> Patching:
    """How much of the difference between two runs' answers follows from each place.

    - `clean`, `corrupted`: traces of prompts of the same length that are answered differently.
    - `target`, `against`, `position`, `first`: what the answer is; by default the clean run's.
    - `of`: "residual" (the stream that leaves each layer), "attention", "mixer" or "mlp" (what
      they write), layer by position; "heads" (all positions at once), layer by head; "head
      positions", head by position. Of Gemma 3n also "laurel"; of an encoder–decoder "cross",
      "cross heads" and "cross head positions" for its cross-attention.
    - `encoder=True`: in the encoder, at positions of the source; else in the decoder.
    - `way`: "denoising" (clean into corrupted) or "noising" (corrupted into clean).
    - `layers`, `positions`: only these. `approximate=False` leaves the gradient out.

    >>> other = model.trace("That story was")
    >>> lx.patching(trace, other, " good", of="heads").correlation
    """
    grid, into = _Grid.of(clean, corrupted, of, layers, positions, encoder), _way(way)
    aim = Aim.of(clean, target, position, against, first=first)
    ends = [float(aim.metric(recorded_logits(run, aim))) for run in (clean, corrupted)]
    if abs(ends[0] - ends[1]) < 1e-6:
        raise LexrayError(
            f"both runs give {aim.what} the same value ({ends[0]:.4f}): there is no difference to "
            "find the place of; choose another target, or prompts that are answered differently"
        )
    source, base = (clean, corrupted) if into == "denoising" else (corrupted, clean)
    start = ends[1] if into == "denoising" else ends[0]
    span = (ends[0] - ends[1]) * (1 if into == "denoising" else -1)
    edits = list(grid.edits(source))
    logits = dict(rerun_each(base, edits, aim, f"patching {of}"))
    values = torch.tensor([float(aim.metric(logits[edit])) for edit in edits])
    exact = ((values - start) / span).view(len(grid.lines), len(grid.columns))
    guess = grid.estimate(base, source, aim) / span if approximate else None
    notes = [*aim.notes, rough(base)]
    return Patching(
        clean.model.space.source("patching"),
        grid.kind,
        into,
        aim,
        ends[0],
        ends[1],
        grid.side(clean).tokens,
        grid.side(corrupted).tokens,
        tuple(grid.lines),
        tuple(grid.columns),
        exact,
        guess,
        " · ".join(filter(None, notes)),
    )


def _way(way: str) -> Way:
    for known in get_args(Way):
        if way == known:
            chosen: Way = known
            return chosen
    raise LexrayError(f"patching goes by denoising or noising, not by {way!r}")


def _side(run: Recording, encoder: bool) -> Recording:
    if not encoder:
        return run
    if run.source is None:
        raise LexrayError(f"{run.model.name} has no encoder beside it: it is one stack of layers")
    return run.source


@dataclass(frozen=True, eq=False)
class _Grid:
    """Which places are patched: lines by columns."""

    kind: Of
    layers: tuple[int, ...]
    n_heads: int
    positions: tuple[int, ...]
    tokens: tuple[Token, ...]
    encoder: bool

    @classmethod
    def of(
        cls,
        clean: Recording,
        corrupted: Recording,
        of: str,
        layers: Some,
        positions: Some,
        encoder: bool,
    ) -> _Grid:
        kind = next((known for known in OFS if known == of), None)
        if kind is None:
            raise LexrayError(f"what is patched is one of {', '.join(OFS)}, not {of!r}")
        whole = clean
        clean, corrupted = (_side(run, encoder) for run in (clean, corrupted))
        if len(clean) != len(corrupted):
            raise LexrayError(
                f"the {'sources' if encoder else 'runs'} have {len(clean)} and {len(corrupted)} "
                "tokens; what is patched position by position needs prompts of the same length"
            )
        model = clean.model
        chosen = choose(layers, model.n_layers, "layer")
        blocks, named = model.architecture.blocks, kind.replace("head positions", "heads")
        if whole.source is None and named.startswith("cross"):
            raise LexrayError(f"{model.name} has no cross-attention: it is one stack of layers")
        if not (there := tuple(n for n in chosen if has_kind(blocks[n], named))):
            raise LexrayError(f"layers {', '.join(map(str, chosen))} have no {kind} to be patched")
        at = choose(positions, len(clean), "position")
        if named == kind and "heads" in kind and positions is not None:
            raise LexrayError("heads are patched at all positions; of='head positions' takes some")
        return cls(kind, there, model.n_heads, at, clean.tokens, encoder)

    def side(self, run: Recording) -> Recording:
        """Where it is patched: the encoder's pass, or the whole run's."""
        return _side(run, self.encoder)

    @property
    def _heads(self) -> list[str]:
        letter = "X" if self.kind.startswith("cross") else "H"
        return [f"{letter}{h}" for h in range(self.n_heads)]

    @property
    def lines(self) -> list[str]:
        layers = [str(Address(n, encoder=self.encoder)) for n in self.layers]
        if self.kind.endswith("head positions"):
            return [f"{layer}{head}" for layer in layers for head in self._heads]
        return layers

    @property
    def columns(self) -> list[str]:
        if self.kind.endswith("heads"):
            return self._heads
        return [self.tokens[p].shown for p in self.positions]

    def edits(self, source: Recording) -> Iterator[Edit]:
        """Line by line."""
        own = "attn" if self.kind == "attention" else self.kind
        part = f".{own}" if self.kind in CAUGHT and self.kind != "residual" else ""
        for line in self.lines:
            if self.kind.endswith("heads"):
                yield from (patch(f"{line}{head}", source) for head in self._heads)
            else:
                yield from (patch(line + part, source, positions=p) for p in self.positions)

    def estimate(
        self, base: Recording, source: Recording, aim: Aim
    ) -> Float[Tensor, "lines columns"]:
        """By how much the metric would move, if it went on as the gradient in `base` says."""
        from lexray.trace.apply.gradients import gradients  # imports transformers

        name: Any = CAUGHT.get(self.kind, "cross_z" if self.kind.startswith("cross") else "z")
        caught: Any = "resid_post" if self.kind == "residual" and self.encoder else name
        gradient = gradients(
            base, lambda logits: aim.metric(logits[aim.position]), [caught], own_actions(base)
        )
        gradient = gradient if gradient.source is None or not self.encoder else gradient.source
        lines, last = [], base.model.n_layers - 1
        for n in self.layers:
            if self.kind == "residual" and n == last and not self.encoder:
                lines.append(self._last(base, source, aim))
                continue
            at = n + 1 if self.kind == "residual" else n
            key = (n if caught == "resid_post" else at), caught
            there = self._recorded(source, at, name).to(gradient.states[key])
            move = (there - gradient.states[key]) * gradient.slopes[key]
            lines.append(self._sums(move))
        if self.kind.endswith("head positions"):
            return torch.cat(lines).cpu()
        return torch.stack(lines).cpu()

    def _recorded(self, source: Recording, at: int, name: str) -> Float[Tensor, "n width"]:
        run = self.side(source)
        whole = run.entering(at) if self.kind == "residual" else run.parts.get((at, name))
        assert whole is not None  # of a run that was kept whole
        return whole.flatten(1)

    def _sums(self, move: Float[Tensor, "n width"]) -> Tensor:
        """What belongs to each column (and of heads by position, to each line of the layer)."""
        if self.kind in CAUGHT:
            return move.sum(1)[list(self.positions)]
        heads = move.view(len(move), self.n_heads, -1).sum(2)
        return heads.sum(0) if self.kind.endswith("heads") else heads[list(self.positions)].T

    def _last(self, base: Recording, source: Recording, aim: Aim) -> Tensor:
        """What leaves the last layer: only the position that is looked at can matter, and there
        the answer becomes that of the other run."""
        ends = [float(aim.metric(recorded_logits(run, aim))) for run in (source, base)]
        effects = torch.zeros(len(self.positions))
        for i, p in enumerate(self.positions):
            effects[i] = ends[0] - ends[1] if p == aim.position else 0.0
        return effects
