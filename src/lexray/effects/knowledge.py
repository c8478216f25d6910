"""A small knowledge edit: one fact, written into the feed-forward of one layer.

After ROME ("Locating and Editing Factual Associations in GPT", arXiv 2202.05262): a feed-forward
is a memory W k = v. The key k is what its neurons are at the last token of the subject; the value
is what it would have to write there for the answer to follow, found by a few steps up the gradient.
W then gets the smallest change that maps k to it and, by the covariance C of the keys of a text,
moves little else: W + (v − W k) (C⁻¹ k)ᵀ / (kᵀ C⁻¹ k).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.edits.values import Edit, RankOne
from lexray.errors import LexrayError
from lexray.families import FeedForward
from lexray.model.anatomy import Anatomy
from lexray.progress import track
from lexray.trace.apply.actions import Action, Plus
from lexray.trace.read.targets import find_target
from lexray.trace.record.prompt import encode, longest
from lexray.trace.recording import Recording

STEPS, ENOUGH = 40, 0.9
"""Steps up the gradient at most, and the answer's probability that is enough."""
STEP = 0.15
"""The length of a step, of what the feed-forward wrote there before."""
FARTHEST = 6.0
"""The length of the whole way, likewise."""
RIDGE = 0.02
"""Of the mean variance, added to every direction's."""
WINDOW = 256


def work_out(model: Anatomy, edits: tuple[Edit, ...], text: str | None) -> tuple[Edit, ...]:
    """Edits with the keys and values of their facts."""
    return tuple(
        fact(model, edit, text) if isinstance(edit, RankOne) and edit.key is None else edit
        for edit in edits
    )


def fact(model: Anatomy, edit: RankOne, text: str | None = None) -> RankOne:
    """The key and the value of a fact."""
    ff = model.architecture.blocks[edit.site.layer].ff if edit.site.layer < model.n_layers else None
    edit.site.check(model)
    if edit.site.kind != "mlp" or not isinstance(ff, FeedForward):
        raise LexrayError(f"facts are written into dense feed-forwards (L17.mlp), not {edit.site}")
    assert edit.prompt is not None
    assert edit.answer is not None
    fact = Fact.of(model, edit)
    key = fact.recording[edit.site.layer].coefficients
    assert key is not None
    k = key[fact.position].float()
    change = fact.climb()
    direction = torch.linalg.solve(covariance(model, edit.site.layer, text, len(k)), k.double())
    share = direction / (direction @ k.double())
    return replace(edit, key=share.float(), value=change)


@dataclass(frozen=True, eq=False)
class Fact:
    """Where a fact is written: the run of its prompt, and the subject's last token."""

    recording: Recording
    layer: int
    position: int
    answer: int

    @classmethod
    def of(cls, model: Anatomy, edit: RankOne) -> Fact:
        from lexray.trace.record.run import record  # imports transformers

        assert edit.prompt is not None
        assert edit.answer is not None
        ids = encode(model, edit.prompt, True)
        (recording,) = record(model, [ids])
        position = len(ids) - 1 if edit.subject is None else _ends(recording, edit)
        answer = find_target(model, edit.answer, first=True).id
        return cls(recording, edit.site.layer, position, answer)

    def climb(self) -> Float[Tensor, "d_model"]:
        """What must be added to what the feed-forward writes, for the answer to follow."""
        from lexray.trace.apply.gradients import gradients  # imports transformers

        wrote = self.recording[self.layer].mlp_write[self.position].float()
        change, size = torch.zeros_like(wrote), float(wrote.norm())
        names: Any = ["mlp_write"]
        for _ in track(range(STEPS), STEPS, "finding what to write"):
            action = Action(self.layer, "mlp", (self.position,), Plus(change.clone()))
            gradient = gradients(self.recording, self._log_probability, names, [action])
            if gradient.value > torch.tensor(ENOUGH).log():
                break
            slope = gradient.slopes[self.layer, "mlp_write"][self.position].float()
            change = change + STEP * size * slope / slope.norm().clamp(min=1e-12)
            change = change * min(1.0, FARTHEST * size / float(change.norm()))
        return change

    def _log_probability(self, logits: Float[Tensor, "n d_vocab"]) -> Float[Tensor, ""]:
        return logits[-1].log_softmax(-1)[self.answer]


def _ends(recording: Recording, edit: RankOne) -> int:
    """The position of the subject's last token."""
    assert edit.prompt is not None
    assert edit.subject is not None
    end, length = edit.prompt.rindex(edit.subject) + len(edit.subject), 0
    for position, token in enumerate(recording.tokens):
        length += len(token.text) if token.text in edit.prompt else 0
        if length >= end:
            return position
    return len(recording) - 1


def covariance(
    model: Anatomy, layer: int, text: str | None, width: int
) -> Float[Tensor, "width width"]:
    """The mean of k kᵀ over a text's tokens, with some variance in every direction; without a
    text, all directions alike."""
    from lexray.trace.record.run import record  # imports transformers

    if text is None:
        return torch.eye(width, dtype=torch.float64)
    ids = encode(model, text, False)
    size = min(WINDOW, longest(model) or WINDOW)
    pieces = [ids[i : i + size] for i in range(0, len(ids), size)]
    total, n = torch.zeros(width, width, dtype=torch.float64), 0
    for piece in track(pieces, len(pieces), "reading the text"):
        (run,) = record(model, [piece], layers=[layer], what="mlp")
        keys = run[layer].coefficients
        assert keys is not None
        total += keys.double().T @ keys.double()
        n += len(piece)
    if n == 0:
        raise LexrayError("the text over which keys are averaged is empty")
    total /= n
    ridge = RIDGE * float(total.diagonal().mean())
    return total + ridge * torch.eye(width, dtype=torch.float64)
