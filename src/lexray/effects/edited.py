"""What lasting edits changed: which tensors, and what follows some prompts before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lexray.checkpoint.overlay import OverlayCheckpoint
from lexray.model.anatomy import Anatomy
from lexray.result.readings import Token
from lexray.result.table import Cell, Result, Table
from lexray.trace.record.prompt import read_prompts


@dataclass(frozen=True)
class Followed:
    """A prompt, and what the two models expect after it."""

    prompt: str
    before: Token
    p_before: float
    after: Token
    p_after: float
    p_kept: float
    """The probability that the edited model leaves to what was expected before."""
    divergence: float
    """Of the edited model's expectation from the other's, in nats (Kullback-Leibler)."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "before": self.before.to_dict(),
            "p_before": self.p_before,
            "after": self.after.to_dict(),
            "p_after": self.p_after,
            "p_kept": self.p_kept,
            "divergence": self.divergence,
        }


@dataclass(frozen=True)
class EditedModel(Result):
    """The edits, the tensors they touch, and some prompts before and after."""

    model: str
    edits: tuple[str, ...]
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    followed: tuple[Followed, ...] = ()

    def tables(self) -> list[Table]:
        rows = tuple((name, " × ".join(map(str, shape))) for name, shape in self.tensors)
        note = "; ".join(self.edits)
        tables = [Table(("tensor", "shape"), rows, f"{self.model}: changed", note)]
        if self.followed:
            lines: list[tuple[Cell, ...]] = [
                (f.prompt, f.before.shown, f.p_before, f.after.shown, f.p_after, f.divergence)
                for f in self.followed
            ]
            columns = ("prompt", "before", "p", "after", "p ", "divergence")
            title = "What follows, before and after"
            tables.append(Table(columns, tuple(lines), title, "divergence in nats"))
        return tables

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "edits": list(self.edits),
            "tensors": [{"name": name, "shape": list(shape)} for name, shape in self.tensors],
            "followed": [f.to_dict() for f in self.followed],
        }


def compare_edited(
    before: Anatomy, after: Anatomy, edits: Sequence[str], prompts: Sequence[str]
) -> EditedModel:
    """Two models on the same prompts: what each expects next."""
    checkpoint = after.checkpoint
    assert isinstance(checkpoint, OverlayCheckpoint)
    tensors = tuple((n, checkpoint.info(n).shape) for n in sorted(checkpoint.touched()))
    followed = tuple(_follow(before, after, prompt) for prompt in prompts)
    return EditedModel(before.name, tuple(edits), tensors, followed)


def _follow(before: Anatomy, after: Anatomy, prompt: str) -> Followed:
    from lexray.trace.record.run import record  # imports transformers

    ids = read_prompts(before, prompt).ids
    p, q = (
        record(model, ids, what="logits", positions=-1, layers=[0])[0].logits[0].float().softmax(-1)
        for model in (before, after)
    )
    old, new = int(p.argmax()), int(q.argmax())
    divergence = float((p * (p.clamp(min=1e-30).log() - q.clamp(min=1e-30).log())).sum())
    token = before.space.token
    return Followed(
        prompt, token(old), float(p[old]), token(new), float(q[new]), float(q[old]), divergence
    )
