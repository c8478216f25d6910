"""The words of interest: the target, and those that can take its place in the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lexray.errors import LexrayError
from lexray.flow.graph import Word
from lexray.trace.read.project import project
from lexray.trace.read.targets import Target, Wanted, find_target
from lexray.trace.recording import Recording

PREDICTED, USUAL = 5, 10
"""How many of the model's best predictions are candidates, and how many candidates there are
(besides those that are asked for) when the prompt's last tokens have filled them up."""


@dataclass(frozen=True)
class ChosenWords:
    target: Target
    candidates: tuple[Word, ...]

    @property
    def note(self) -> str:
        return self.target.note


def find_words(
    trace: Recording,
    position: int,
    target: Wanted | None,
    extra: Sequence[Wanted],
) -> ChosenWords:
    """The target (by default the model's own prediction), words that were asked for, the best
    predictions, and the last tokens of the prompt. Of a word of several tokens the first counts."""
    if isinstance(extra, (str, int)):
        raise LexrayError(f"candidates={extra!r}: give a list of tokens")
    model, best = trace.model, [token for token, _ in predictions(trace, position)]
    chosen = find_target(model, best[0] if target is None else target, first=True)
    asked = [find_target(model, word, first=True).id for word in extra]
    seen = [i for i in reversed(trace.ids[: position + 1].tolist()) if i < model.space.n_rows]
    usual = dict.fromkeys([chosen.id, *best, *seen])
    ids = dict.fromkeys([chosen.id, *asked, *list(usual)[:USUAL]])
    return ChosenWords(chosen, tuple(Word(i, model.vocabulary.shown(i)) for i in ids))


def predictions(trace: Recording, position: int) -> list[tuple[int, float]]:
    """The tokens that the model itself holds most probable at a position, and how probable."""
    model, row = trace.model, trace.row(position)
    parts = trace.parts
    if (None, "logits") in parts:
        logits = trace.logits[row].float()
        mask = model.vocabulary.mask(len(logits)).to(logits.device)
        best = logits.masked_fill(~mask, -float("inf")).topk(min(PREDICTED, int(mask.sum())))
        chances = logits.softmax(0)[best.indices]
        return list(zip(best.indices.tolist(), chances.tolist(), strict=True))
    final = trace.final[row][None]
    transform = model.architecture.head is not None
    read = project(model, final, PREDICTED, transform=transform)
    return list(zip(read.top_ids[0].tolist(), read.top_probs[0].tolist(), strict=True))
