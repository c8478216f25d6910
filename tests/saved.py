"""Tiny models on disk, as other people's tools would have written them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel

from tests.families.zoo import build


def write_tokenizer(folder: Path, tokens: list[str]) -> None:
    """A `tokenizer.json` of whole words."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    Tokenizer(WordLevel(vocabulary, unk_token=tokens[0])).save(str(folder / "tokenizer.json"))


def words(n: int) -> list[str]:
    return ["<unk>", *(f"word{i}" for i in range(1, n))]


def save(
    name: str, folder: Path, *, dtype: torch.dtype | None = None, n_tokens: int | None = 37
) -> PreTrainedModel:
    """The zoo's model of this name, written to `folder` with a tokenizer of so many words."""
    module = build(name)
    state = {key: value.to(dtype or value.dtype) for key, value in module.state_dict().items()}
    module.save_pretrained(folder, state_dict=state)
    if n_tokens is not None:
        write_tokenizer(folder, words(n_tokens))
    return module


def weight(module: Any, name: str) -> Tensor:
    """A parameter of a live module."""
    found: Tensor = module.get_parameter(name).detach()
    return found
