"""The models of a comparison: each a `Model`, or what `Model.from_pretrained` opens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from lexray.checkpoint.lora import CONFIG as ADAPTER_CONFIG
from lexray.checkpoint.lora import LoraCheckpoint
from lexray.checkpoint.opening import open_checkpoint
from lexray.errors import LexrayError
from lexray.model.model import Model

Given = Model | str | Path
"""A model, or what `Model.from_pretrained` opens."""


class OpeningOptions(TypedDict, total=False):
    """The options of `Model.from_pretrained`."""

    revision: str | None
    token: str | None
    remote: bool
    adapter: str | Path | None
    family: str | None
    config: Mapping[str, Any] | None
    device: str | torch.device
    dtype: torch.dtype | None


def open_both(a: Given, b: Given) -> tuple[Model, Model]:
    """Two models; where the second is a name, it is opened and read as the first one is."""
    first = a if isinstance(a, Model) else Model.from_pretrained(_name(a))
    return first, open_other(first, b)


def open_as_papers_do(a: Given, b: Given) -> tuple[Model, Model]:
    """The same, read raw as the papers do, unless another view than the default was chosen."""
    first, second = open_both(a, b)
    return first.with_view(first.options.papers), second.with_view(second.options.papers)


def open_other(
    first: Model, other: Given, *, on_first: bool = False, **options: Unpack[OpeningOptions]
) -> Model:
    """A second model, placed and read as the first one is, as far as the options do not differ.

    `options` are all those that the first can be opened with. `on_first`: the folder of a LoRA
    adapter is put on top of the first model, whatever base it names. A `Model` stays as it is.
    """
    if isinstance(other, Model):
        return other
    opening: OpeningOptions = {"device": first.device, "dtype": first.dtype, **options}
    if on_first and (Path(_name(other)) / ADAPTER_CONFIG).exists():
        return _open_adapter(first, other, opening).with_view(first.options)
    return Model.from_pretrained(_name(other), **opening).with_view(first.options)


def _open_adapter(first: Model, adapter: str | Path, opening: OpeningOptions) -> Model:
    """The first model with an adapter on top; what is said of its files holds for the adapter."""
    under = first.checkpoint
    if isinstance(under, LoraCheckpoint):
        raise LexrayError(f"{under.name} is an adapter itself, and cannot be the base of {adapter}")
    checkpoint = open_checkpoint(adapter, base=under, token=opening.get("token"))
    return Model(
        checkpoint,
        family=opening.get("family"),
        config=opening.get("config"),
        device=opening["device"],
        dtype=opening["dtype"],
    )


def _name(given: str | Path) -> str | Path:
    if isinstance(given, (str, Path)):
        return given
    raise LexrayError(
        "two models are compared, each a Model or what Model.from_pretrained opens, not "
        f"something of type {type(given).__name__}"
    )
