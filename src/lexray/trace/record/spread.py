"""A module spread over several devices and the disk, by accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lexray.errors import LexrayError
from lexray.model.weights import Weights
from lexray.trace.record.module import module_of


def spread_module(
    model: Weights, device_map: str | Mapping[str, str | int], offload: str | Path | None
) -> nn.Module:
    """The model's module with its parts where the map says; what is recorded of a run lands on the
    model's own device as ever. It is made in memory first."""
    try:
        from accelerate import dispatch_model, infer_auto_device_map
    except ImportError as error:
        raise LexrayError("a device map needs accelerate: pip install accelerate") from error
    module: Any = module_of(model)
    if isinstance(device_map, str):
        if device_map != "auto":
            raise LexrayError(f"device_map={device_map!r}; give 'auto' or a place for each part")
        whole = getattr(module, "_no_split_modules", None)
        places = infer_auto_device_map(module, no_split_module_classes=list(whole or ()))
    else:
        places = dict(device_map)
    if "disk" in places.values() and offload is None:
        parts = [part for part, place in places.items() if place == "disk"]
        raise LexrayError(
            f"{', '.join(parts[:5])} of {model.name} go to the disk; offload= says to which folder"
        )
    try:
        spread: nn.Module = dispatch_model(
            module, places, offload_dir=None if offload is None else str(offload), force_hooks=True
        )
    except ValueError as error:
        raise LexrayError(f"the device map does not fit {model.name}: {error}") from error
    return spread


def entry_device(model: Weights, module: nn.Module) -> torch.device:
    """Where tokens go in; parts that wait on the disk are nowhere."""
    devices = (parameter.device for parameter in module.parameters())
    return next((d for d in devices if d.type != "meta"), model.device)
