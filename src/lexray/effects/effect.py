"""What one change does to the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from lexray.edits.values import Edits
from lexray.effects.aim import Aim, Said, own_actions, recorded_logits, rough, run_prompt
from lexray.errors import LexrayError
from lexray.result.readings import Source, Token
from lexray.result.table import Cell, Result, Table
from lexray.trace.apply.resolve import ReadyEdits
from lexray.trace.read.targets import Wanted
from lexray.trace.recording import Recording


@dataclass(frozen=True)
class MovedToken:
    """A token and its probabilities before and after a change."""

    token: Token
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before

    def to_dict(self) -> dict[str, Any]:
        return {"token": self.token.to_dict(), "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Effect(Result):
    """The answer before and after, and the tokens that rose and fell most."""

    source: Source
    edits: tuple[str, ...]
    aim: Aim
    before: Said
    after: Said
    rose: tuple[MovedToken, ...]
    fell: tuple[MovedToken, ...]
    note: str = ""

    @property
    def change(self) -> float:
        """Of the logit, or of the difference of two."""
        return self.after.logit - self.before.logit

    def tables(self) -> list[Table]:
        shown, against = self.aim.target.shown, self.aim.against
        measure = "logit" if against is None else f"logit less that of {against.shown}"
        rows: tuple[tuple[Cell, ...], ...] = (
            (measure, self.before.logit, self.after.logit, self.change),
            (
                "probability",
                self.before.probability,
                self.after.probability,
                self.after.probability - self.before.probability,
            ),
            ("rank", self.before.rank, self.after.rank, self.after.rank - self.before.rank),
        )
        note = " · ".join(filter(None, [self.source.model, self.note]))
        title = f"{shown} after: {'; '.join(self.edits)}"
        return [
            Table((shown, "before", "after", "change"), rows, title, note),
            self._moved(),
        ]

    def _moved(self) -> Table:
        columns = ("rose", "from", "to", "fell", "from ", "to ")
        rows: list[tuple[Cell, ...]] = [
            (a.token.shown, a.before, a.after, b.token.shown, b.before, b.after)
            for a, b in zip(self.rose, self.fell, strict=True)
        ]
        return Table(columns, tuple(rows), "Probabilities that moved most")

    def csv_tables(self) -> list[Table]:
        columns = ("token", "id", "before", "after", "change")
        rows: list[tuple[Cell, ...]] = [
            (m.token.text, m.token.id, m.before, m.after, m.change)
            for m in (*self.rose, *reversed(self.fell))
        ]
        return [Table(columns, tuple(rows))]

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.source.to_dict(),
            **self.aim.to_dict(),
            "edits": list(self.edits),
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "rose": [moved.to_dict() for moved in self.rose],
            "fell": [moved.to_dict() for moved in self.fell],
            "note": self.note,
        }


def effect(
    recording: Recording,
    edits: Edits,
    target: Wanted | None = None,
    position: int = -1,
    *,
    against: Wanted | None = None,
    first: bool = False,
    k: int = 10,
) -> Effect:
    """The answer with and without edits; see `lexray.trace.trace.Trace.effect`."""
    if k < 1:
        raise LexrayError(f"asked for the {k} tokens that moved most; k must be at least 1")
    aim = Aim.of(recording, target, position, against, first=first)
    changes = ReadyEdits.check(recording.model, edits, run_prompt(recording))
    if not changes:
        raise LexrayError('there is nothing to change: give edits, as in "ablate L23H4"')
    changes.fit_run(recording)
    before, after = recorded_logits(recording, aim), changed_logits(recording, changes, aim)
    rose, fell = moved_most(recording, before, after, k)
    return Effect(
        recording.model.space.source("effect"),
        tuple(map(str, changes.edits)),
        aim,
        aim.look(before),
        aim.look(after),
        rose,
        fell,
        " · ".join(filter(None, [*aim.notes, rough(recording)])),
    )


def changed_logits(recording: Recording, changes: ReadyEdits, aim: Aim) -> Float[Tensor, "d_vocab"]:
    """The answer of the changed run, from the first layer on that changes."""
    from lexray.trace.apply.rerun import Rerun  # imports transformers

    actions = changes.for_run(recording)
    rerun = Rerun(recording, own_actions(recording))
    return rerun.logits([actions], aim.position)[0].to(recording.logits.device)


def moved_most(
    recording: Recording,
    before: Float[Tensor, "d_vocab"],
    after: Float[Tensor, "d_vocab"],
    k: int,
) -> tuple[tuple[MovedToken, ...], tuple[MovedToken, ...]]:
    """The tokens whose probability rose most, and fell most."""
    p, q = before.float().softmax(-1), after.float().softmax(-1)
    space = recording.model.space
    n = min(k, len(p), space.n_rows)

    def moved(order: Tensor) -> tuple[MovedToken, ...]:
        return tuple(MovedToken(space.token(i), float(p[i]), float(q[i])) for i in order.tolist())

    change = (q - p)[: space.n_rows]
    ends: Sequence[Tensor] = (change.topk(n).indices, (-change).topk(n).indices)
    return moved(ends[0]), moved(ends[1])
