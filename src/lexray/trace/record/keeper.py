"""What is kept of a pass: each sequence's part of what hooks see, at the positions asked for."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from lexray.trace.apply.actions import Action, RunRows
from lexray.trace.apply.editor import Editor
from lexray.trace.record.plan import RecordPlan

Kept = dict[tuple[int | None, str], Tensor]
"""What was recorded of one sequence: by layer (None: the whole model) and name."""


@dataclass
class Keeper:
    """Takes tensors of a batch, cut to the sequences and positions that are kept."""

    plan: RecordPlan
    _: KW_ONLY
    editor: Editor | None = None
    """Who changes the pass; what comes of it is kept."""

    def __post_init__(self) -> None:
        self.kept: list[Kept] = [{} for _ in self.plan.lengths]
        self.shape = len(self.plan.lengths), max(self.plan.lengths)

    def keep(self, layer: int | None, name: str, x: Tensor, *, everywhere: bool = False) -> None:
        """Keeps x (see `as_batch`) at all positions, or at those that are kept."""
        x = self.as_batch(x)
        for s, (kept, length) in enumerate(zip(self.kept, self.plan.lengths, strict=True)):
            mine = x[s, :length].detach()
            if not everywhere and len(self.plan.positions[s]) < length:
                mine = mine[self.plan.rows(s, x.device)]
            kept[layer, name] = mine.to(self.plan.device, copy=True)

    def as_batch(self, x: Tensor) -> Tensor:
        """x as (batch, position, …), also where a module flattened these or left the batch out."""
        if x.shape[:2] == self.shape:
            return x
        batch, n = self.shape
        if x.shape[:-1].numel() == n:
            return x.reshape(1, n, -1).expand(batch, n, -1)
        return x.reshape(batch, n, -1)

    def keep_weights(self, layer: int, weights: Tensor) -> None:
        for s, (kept, length) in enumerate(zip(self.kept, self.plan.lengths, strict=True)):
            mine = weights[s, :, self.plan.rows(s, weights.device), :length]
            kept[layer, "pattern"] = mine.detach().to(self.plan.device, copy=True)

    def keep_edits(self) -> None:
        """What edits added where, and vectors that they changed behind the hooks that look."""
        if self.editor is None:
            return
        for (row, layer, point), x in self.editor.added.items():
            at = self.plan.rows(row, x.device)
            key = (layer + 1, "pre") if point == "post" else (layer, point)
            before = self.kept[row].get((key[0], f"{key[1]}_edited"), 0)
            self.kept[row][key[0], f"{key[1]}_edited"] = before + x[at].to(self.plan.device)
        if "attention" not in self.plan.what:
            return
        for row, actions in enumerate(self.editor.rows):
            for action in actions:
                if action.layer in self.plan.layers and isinstance(action.operation, RunRows):
                    self._keep_rows(row, action, action.operation)

    def _keep_rows(self, row: int, action: Action, operation: RunRows) -> None:
        """Queries, keys and values that came from another run."""
        if action.point not in ("q", "k", "v"):
            return
        rows = operation.rows if operation.unturned is None else operation.unturned
        whole = range(self.plan.lengths[row]) if action.point != "q" else self.plan.positions[row]
        place = {position: i for i, position in enumerate(whole)}
        kept = self.kept[row][action.layer, action.point]
        for position, x in zip(action.positions, rows, strict=True):
            if position in place:
                kept[place[position], action.index] = x.to(kept)

    def add(self, n: int, name: str, out: Tensor) -> None:
        """Adds a later module's output to one that is kept."""
        before = [kept[n, name] for kept in self.kept]
        self.keep(n, name, out)
        for kept, x in zip(self.kept, before, strict=True):
            kept[n, name] = kept[n, name] + x
