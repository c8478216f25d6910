"""Forms of one word: what is left of them without simple English endings."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

INFLECTION = re.compile(r"(?<=..)('s|ies|es|s|ing|ed|ly|er|y|e)$")


def merge_inflections(groups: Int[Tensor, "n"], folded: Callable[[int], str]) -> Int[Tensor, "n"]:
    """Groups joined by the stem of what they stand for: walk, walks, walked, walking."""
    first: dict[str, int] = {}
    renamed: dict[int, int] = {}
    for group in dict.fromkeys(groups.tolist()):
        text = folded(group) if group >= 0 else ""
        stem = INFLECTION.sub("", text) or text
        renamed[group] = first.setdefault(stem, group) if stem else group
    return torch.tensor([renamed[group] for group in groups.tolist()])
