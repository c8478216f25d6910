"""How a model was opened, so that it can be opened again: by another process, or from a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from lexray.errors import LexrayError


@dataclass(frozen=True)
class Origin:
    """What `from_pretrained` was given; never a token, which is a secret."""

    source: str
    revision: str | None = None
    remote: bool = False
    adapter: str | None = None
    family: str | None = None
    config: Mapping[str, Any] | None = None
    device: str = "cpu"
    dtype: str | None = None

    @classmethod
    def of(cls, source: str | Path, adapter: str | Path | None, **rest: Any) -> Origin:
        """Paths as they are from everywhere."""
        dtype, device = rest.pop("dtype"), rest.pop("device")
        return cls(
            _whole(source),
            adapter=None if adapter is None else _whole(adapter),
            device=str(device),
            dtype=None if dtype is None else str(dtype).removeprefix("torch."),
            **rest,
        )

    @property
    def options(self) -> dict[str, Any]:
        """What was said beside the source."""
        said = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {f.name: said[f.name] for f in fields(self)[1:] if said[f.name] != f.default}


def _whole(source: str | Path) -> str:
    """A path that is there, from the root on; a name or a Hub id as it is."""
    path = Path(source)
    return str(path.resolve()) if path.exists() else str(source)


def read_dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A type of numbers by itself or by its name: "float32", "bf16"."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    short = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
    name = short.get(str(dtype), str(dtype)).removeprefix("torch.")
    kind = getattr(torch, name, None)
    if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
        raise LexrayError(
            f"dtype {dtype!r} is no type of weights; there are float32, float16, bfloat16, float64"
        )
    return kind


Reopen = tuple[Callable[..., Any], tuple[Any, ...]]
