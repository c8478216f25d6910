"""From what a user gives as a prompt to token ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.anatomy import Anatomy
from lexray.vocabulary.chat import is_chat


@dataclass(frozen=True)
class Prompts:
    """Token ids of one sequence or of several."""

    ids: tuple[tuple[int, ...], ...]
    single: bool


def read_prompts(model: Anatomy, prompt: Any, *, special: bool = True) -> Prompts:
    """The ids of a prompt or a batch; texts get the tokens that the tokenizer adds (BOS, [CLS])."""
    if is_chat(prompt):
        return Prompts((_chat_ids(model, prompt, "the conversation"),), True)
    prompt = _as_list(prompt)
    if not isinstance(prompt, (str, Sequence)) or isinstance(prompt, (bytes, bytearray)):
        raise LexrayError(
            "a prompt is a text, token ids, messages, or a list of these, not something of type "
            f"{type(prompt).__name__}"
        )
    items = [prompt] if isinstance(prompt, str) else [_as_list(item) for item in prompt]
    if not items:
        raise LexrayError("the prompt is empty: give a text, token ids, or a list of either")
    single = isinstance(prompt, str) or not any(isinstance(i, (str, Sequence)) for i in items)
    if single:
        return Prompts((_ids(model, prompt, special, "the prompt"),), True)
    ids = (
        _chat_ids(model, item, f"conversation {n}")
        if is_chat(item)
        else _ids(model, item, special, f"prompt {n}")
        for n, item in enumerate(items)
    )
    return Prompts(tuple(ids), False)


def _chat_ids(model: Anatomy, messages: Any, which: str) -> tuple[int, ...]:
    """Messages through the tokenizer's own template, which knows where special tokens belong."""
    return _ids(model, model.vocabulary.render_chat(messages), False, which)


def _as_list(item: Any) -> Any:
    """Tensors and arrays as lists or numbers."""
    return item.tolist() if hasattr(item, "tolist") else item


def _ids(model: Anatomy, item: Any, special: bool, which: str) -> tuple[int, ...]:
    ids = encode(model, item, special) if isinstance(item, str) else _numbers(item, which)
    if not ids:
        raise LexrayError(f"{which} is empty: a forward pass needs at least one token")
    rows = len_embedding(model)
    if wrong := [i for i in ids if not 0 <= i < rows]:
        raise LexrayError(
            f"{which} has the token {wrong[0]}, but the ids of {model.name} are 0–{rows - 1}"
        )
    return tuple(ids)


def encode(model: Anatomy, text: str, special: bool) -> list[int]:
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
        return [operator.index(_as_list(i)) for i in item]
    except TypeError as error:
        raise LexrayError(f"{which} should be a text or a list of token ids") from error


def len_embedding(model: Anatomy) -> int:
    """How many tokens the model's embedding has."""
    return int(model.checkpoint.info(model.architecture.embed).shape[0])


def refuse_too_long(model: Anatomy, length: int, new_tokens: int = 0) -> None:
    """Raises for a sequence that the model has no positions for."""
    most = longest(model)
    if most is not None and length + new_tokens > most:
        more = f" and {new_tokens} new ones" if new_tokens else ""
        raise LexrayError(
            f"the prompt has {length} tokens{more}, but {model.name} was made for at most {most}; "
            "shorten it"
        )


def longest(model: Anatomy) -> int | None:
    """The longest sequence that the model was made for, if it says so."""
    a = model.architecture
    if a.positions is None:
        return a.n_ctx
    rows = model.checkpoint.info(a.positions).shape[0] - a.position_offset
    return rows if a.n_ctx is None else min(rows, a.n_ctx)


def pad(ids: Sequence[Sequence[int]], filler: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A batch with its attention mask, padded at the right end."""
    longest = max(map(len, ids))
    rows = [[*row, *[filler] * (longest - len(row))] for row in ids]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in ids]
    return torch.tensor(rows, device=device), torch.tensor(mask, device=device)
