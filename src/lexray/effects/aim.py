"""What is looked at in an answer: a token's logit (or the difference of two), its probability and
its rank at one position."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.edits.values import Edit
from lexray.trace.apply.actions import Action
from lexray.trace.apply.resolve import ReadyEdits
from lexray.trace.read.targets import Target, Wanted, find_target
from lexray.trace.recording import Recording


@dataclass(frozen=True)
class Said:
    """How an answer stands."""

    logit: float
    """Of the target, or how much more it has than the other token."""
    probability: float
    rank: int
    """From 1."""

    def to_dict(self) -> dict[str, Any]:
        return {"logit": self.logit, "probability": self.probability, "rank": self.rank}


@dataclass(frozen=True)
class Aim:
    """A token that is wanted at a position, perhaps against another one."""

    target: Target
    against: Target | None
    position: int

    @classmethod
    def of(
        cls,
        recording: Recording,
        target: Wanted | None,
        position: int,
        against: Wanted | None = None,
        *,
        first: bool = False,
    ) -> Aim:
        """By default the most probable token of the recorded run."""
        row = recording.row(position)
        if target is None:
            target = int(recording.logits[row].argmax())
        model = recording.model
        other = None if against is None else find_target(model, against, first=first)
        return cls(find_target(model, target, first=first), other, recording.positions[row])

    def metric(self, logits: Float[Tensor, "*rows d_vocab"]) -> Float[Tensor, "*rows"]:
        """The target's logit, or how much more it has than the other token."""
        logits = logits.float()
        logit = logits[..., self.target.id]
        return logit if self.against is None else logit - logits[..., self.against.id]

    def probability(self, logits: Float[Tensor, "*rows d_vocab"]) -> Float[Tensor, "*rows"]:
        return logits.float().softmax(-1)[..., self.target.id]

    def rank(self, logits: Float[Tensor, "*rows d_vocab"]) -> Tensor:
        """From 1."""
        return (logits > logits[..., self.target.id, None]).sum(-1) + 1

    def look(self, logits: Float[Tensor, "d_vocab"]) -> Said:
        return Said(
            float(self.metric(logits)), float(self.probability(logits)), int(self.rank(logits))
        )

    @property
    def what(self) -> str:
        """What is measured, in words."""
        if self.against is None:
            return f"the logit of {self.target.shown}"
        return f"the logit of {self.target.shown} less that of {self.against.shown}"

    @property
    def notes(self) -> list[str]:
        return [self.target.note, "" if self.against is None else self.against.note]

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target.to_dict(),
            "against": None if self.against is None else self.against.to_dict(),
            "position": self.position,
        }


def recorded_logits(recording: Recording, aim: Aim) -> Float[Tensor, "d_vocab"]:
    """The answer of the recorded run."""
    logits: Tensor = recording.logits[recording.row(aim.position)]
    return logits


def own_edits(recording: Recording) -> tuple[Edit, ...]:
    """What was changed in a recorded run."""
    return cast("tuple[Edit, ...]", recording.edits)


def own_actions(recording: Recording) -> tuple[Action, ...]:
    changes = ReadyEdits.check(recording.model, own_edits(recording), run_prompt(recording))
    return changes.for_run(recording)


def run_prompt(recording: Recording) -> Any:
    """Gives the recording of a prompt that an edit names; of a source, with the same target."""
    from lexray.trace.record.pair import run_pair  # imports transformers
    from lexray.trace.record.run import run_whole

    if recording.source is not None:
        return partial(run_pair, recording.model, recording.ids[1:].tolist())
    return partial(run_whole, recording.model)


def rough(recording: Recording) -> str:
    """A word on numbers of few digits."""
    dtype = recording.final.dtype
    if dtype not in (torch.bfloat16, torch.float16):
        return ""
    name = str(dtype).removeprefix("torch.")
    return f"run in {name}: small changes are lost in rounding; dtype=torch.float32 shows them"
