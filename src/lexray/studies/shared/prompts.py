"""Prompts for studies that run the model: a file's, or a small set of our own."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from lexray.errors import LexrayError
from lexray.files import has_json_lines, open_text, parse_json_lines, read_json_lines
from lexray.model.cache import Drawer
from lexray.model.model import Model

OWN = "prompts.jsonl"
PREDICTED: Drawer[tuple[int, ...], int] = Drawer(most=2**14)
"""What follows a prompt, so that several studies of one model ask it once."""


@dataclass(frozen=True)
class Prompt:
    """A text to continue, and how it should go on, where that is known."""

    text: str
    answer: str | None = None


def own_prompts() -> list[Prompt]:
    """Plain facts with their answers, and openings of film reviews, which have none."""
    text = (files("lexray.studies.shared") / OWN).read_text(encoding="utf-8")
    return [_prompt(*line) for line in parse_json_lines(text.split("\n"), OWN)]


def read_prompts(path: Path | None) -> list[Prompt]:
    """The prompts of a .txt or .jsonl file, perhaps gzipped; without a file our own.

    Lines of .jsonl are objects with `prompt` and perhaps `answer` (or `attribute`).
    """
    if path is None:
        return own_prompts()
    if has_json_lines(path) or path.suffix.lower() == ".json":
        prompts = [_prompt(*line) for line in read_json_lines(path)]
    else:
        with open_text(path) as stream:
            prompts = [Prompt(line.rstrip()) for line in stream.read().splitlines() if line.strip()]
    if not prompts:
        raise LexrayError(f"there are no prompts in {path}")
    return prompts


def _prompt(where: str, row: Any) -> Prompt:
    text = row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise LexrayError(f"{where} has no text under 'prompt'")
    answer = row.get("answer", row.get("attribute"))
    if answer is not None and not isinstance(answer, str):
        raise LexrayError(f"{where}: the answer must be text, not {answer!r}")
    return Prompt(text, answer if answer and answer.strip() else None)


def answers_rightly(model: Model, prompt: Prompt) -> bool:
    """Whether the model's most probable next token is the first one of the answer."""
    if prompt.answer is None:
        raise LexrayError(f"the prompt {prompt.text!r} has no answer")
    ids = _ids(model, prompt.text)
    predicted = PREDICTED.get(model.cache, tuple(ids), lambda: next_token(model, ids))
    return predicted == _first_of_answer(model, ids, prompt)


def next_token(model: Model, ids: list[int]) -> int:
    """The token that the model finds most probable after these."""
    if not model.architecture.causal:
        raise LexrayError(
            f"{model.name} reads in both directions: it fills gaps, and does not continue a text"
        )
    trace = model.trace(ids, what="logits", layers=-1, positions=-1)
    return int(trace.logits[0].argmax())


def _ids(model: Model, text: str) -> list[int]:
    return model.vocabulary.encode(text, special=True)


def _first_of_answer(model: Model, ids: list[int], prompt: Prompt) -> int:
    """The token after the prompt in "prompt answer"; where the two fuse, the answer's own first."""
    assert prompt.answer is not None
    gap = "" if prompt.text[-1:].isspace() else " "
    answer = gap + prompt.answer.lstrip()
    whole = _ids(model, prompt.text + answer)
    if whole[: len(ids)] == ids and len(whole) > len(ids):
        return whole[len(ids)]
    return model.vocabulary.encode(answer)[0]
