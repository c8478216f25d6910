"""From what a user gives as a prompt to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lexray.errors import LexrayError

if TYPE_CHECKING:
    from lexray.model import Model

Prompt = str | Tensor | Sequence[int] | list[str] | list[list[int]] | list[Tensor]
"""A text or its token ids; or several of either, which make a batch."""


@dataclass(frozen=True)
class Prompts:
    """Token ids of one sequence or of several."""

    ids: tuple[tuple[int, ...], ...]
    single: bool


def read_prompts(model: Model, prompt: Prompt, *, special: bool = True) -> Prompts:
    """The ids of a prompt or a batch; texts get the tokens that the tokenizer adds (BOS, [CLS])."""
    batch = _is_batch(prompt)
    items: list[Any] = list(prompt) if batch else [prompt]
    if not items:
        raise LexrayError("the prompt is empty: give a text, token ids, or a list of either")
    ids = tuple(_ids(model, item, special, i if batch else None) for i, item in enumerate(items))
    return Prompts(ids, not batch)


def _is_batch(prompt: Any) -> bool:
    if isinstance(prompt, str):
        return False
    if isinstance(prompt, Tensor):
        return prompt.ndim == 2
    if not isinstance(prompt, Sequence):
        raise LexrayError(
            f"a prompt is a text, token ids, or a list of either, not a {type(prompt).__name__}"
        )
    return any(isinstance(item, (str, Sequence)) or getattr(item, "ndim", 0) for item in prompt)


def _ids(model: Model, item: Any, special: bool, index: int | None) -> tuple[int, ...]:
    which = "the prompt" if index is None else f"prompt {index}"
    ids = encode(model, item, special) if isinstance(item, str) else _numbers(item, which)
    if not ids:
        raise LexrayError(f"{which} is empty: a forward pass needs at least one token")
    rows = len_embedding(model)
    if wrong := [i for i in ids if not 0 <= i < rows]:
        raise LexrayError(
            f"{which} has the token {wrong[0]}, but the ids of {model.name} are 0–{rows - 1}"
        )
    return tuple(ids)


def encode(model: Model, text: str, special: bool) -> list[int]:
    """The ids of a text, special tokens as the tokenizer adds them; an empty text has none."""
    try:
        return model.vocabulary.encode(text, special=special) if text else []
    except LexrayError as error:
        raise LexrayError(
            f"{error}; where a model comes without a tokenizer, or one that cannot encode, give "
            "the token ids instead, as in model.trace([5, 11, 3])"
        ) from error


def _numbers(item: Any, which: str) -> list[int]:
    try:
        values = item.tolist() if isinstance(item, Tensor) else list(item)
        if any(isinstance(v, (bool, float, str)) for v in values):
            raise TypeError
        return [int(v) for v in values]
    except (TypeError, ValueError) as error:
        raise LexrayError(f"{which} should be a text or a list of token ids") from error


def len_embedding(model: Model) -> int:
    """How many tokens the model's embedding has."""
    return int(model.checkpoint.info(model.architecture.embed).shape[0])


def refuse_too_long(model: Model, length: int, new_tokens: int = 0) -> None:
    """Raises for a sequence that the model has no positions for."""
    most = longest(model)
    if most is not None and length + new_tokens > most:
        more = f" and {new_tokens} new ones" if new_tokens else ""
        raise LexrayError(
            f"the prompt has {length} tokens{more}, but {model.name} was made for at most {most}; "
            "shorten it"
        )


def longest(model: Model) -> int | None:
    """The longest sequence that the model was made for, if it says so."""
    a = model.architecture
    if a.positions is None:
        return a.n_ctx
    rows = model.checkpoint.info(a.positions).shape[0] - a.position_offset
    return rows if a.n_ctx is None else min(rows, a.n_ctx)


def padded(ids: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch with its attention mask, padded at the right end."""
    longest = max(map(len, ids))
    rows = [[*row, *[pad] * (longest - len(row))] for row in ids]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in ids]
    return torch.tensor(rows, device=device), torch.tensor(mask, device=device)
