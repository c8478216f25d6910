"""What a format has to say: which tensors it stores a weight in, and how they are to be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar

import torch

from lexray.checkpoint.base import Checkpoint, TensorInfo
from lexray.checkpoint.fields import Fields, brief
from lexray.checkpoint.quant.packed import PackedWeight, broken
from lexray.errors import LexrayError

Roles = dict[str, str]
"""The stored tensors of one weight, by what they are for."""

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SIDE = (
    *("input_scale", "input_zero_point", "input_global_scale", "input_scale_ub"),
    *("activation_scale", "output_scale", "k_scale", "v_scale", "q_scale", "kv_scale"),
    *("k_proj.output_scale", "v_proj.output_scale", "prob_scale"),
)
"""How tensors end that scale activations, which are no weights."""


class Method(ABC):
    """One way of quantising, as a config describes it."""

    names: ClassVar[tuple[str, ...]]
    """What configs call it: `quant_method`."""
    title: ClassVar[str]
    """What people call it."""
    marks: ClassVar[tuple[str, ...]]
    """How the names of its tensors end, for the error that there are none."""

    def __init__(self, settings: Fields, where: str) -> None:
        self.settings = settings
        self.where = where

    @abstractmethod
    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        """Each weight that is stored in this way, under its plain name, and its tensors."""

    @abstractmethod
    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        """How a weight is read; looks at headers, and at small tensors that describe it."""

    def hides(self, name: str) -> bool:
        """Whether a tensor is none of the model's own parameters."""
        return name.endswith(tuple(f".{side}" for side in SIDE))

    def refuse(self, field: str, why: str = "which lexray does not read") -> LexrayError:
        """The error for a setting that is unknown."""
        value = self.settings.get(field)
        return LexrayError(
            f"{self.where} is quantised by {self.title} with {field} {brief(value)}, {why}; take "
            "another quantisation of the model, its original weights, or a GGUF file"
        )

    def positive(self, field: str, default: int | None = None) -> int | None:
        """A size: None where none is stated (also as -1, 0 is refused)."""
        value = self.settings.whole(field)
        if value is None or value == -1:
            return default if value is None else None
        if not 1 <= value <= 1 << 30:
            raise self.refuse(field, "which is no size")
        return value


def join(
    names: Collection[str],
    key: str,
    needed: Mapping[str, str],
    allowed: Mapping[str, str] | None = None,
    plain: str = ".weight",
) -> dict[str, Roles]:
    """Weights by plain name, from the stems whose tensors end in `key`.

    `needed` and `allowed` are the endings of the tensors by role; one that is needed and missing is
    an error, as then nothing else would make sense of the rest.
    """
    claims: dict[str, Roles] = {}
    for name in names:
        if not name.endswith(key):
            continue
        stem = name.removesuffix(key)
        roles = {role: stem + ending for role, ending in needed.items()}
        if missing := [tensor for tensor in roles.values() if tensor not in names]:
            raise broken(stem + plain, f"{name} is there, but {', '.join(missing)} is not")
        for role, ending in (allowed or {}).items():
            if stem + ending in names:
                roles[role] = stem + ending
        claims[stem + plain] = roles
    return claims


def expect(name: str, info: TensorInfo, dtypes: Iterable[torch.dtype]) -> TensorInfo:
    """What is stored, if it has one of these dtypes."""
    known = tuple(dtypes)
    if info.dtype not in known:
        words = " or ".join(str(dtype).removeprefix("torch.") for dtype in known)
        stored = str(info.dtype).removeprefix("torch.")
        raise broken(name, f"it is stored as {stored}, where {words} is expected")
    return info
