"""A module spread over several devices and the disk, by accelerate."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lexray.checkpoint.module import ModuleCheckpoint
from lexray.errors import LexrayError
from lexray.model.weights import Weights
from lexray.trace.record.module import MODULE, build_in_files
from lexray.trace.record.unroll import unroll

Places = dict[str, str | int | torch.device]


def spread_module(
    model: Weights, device_map: str | Mapping[str, str | int], offload: str | Path | None
) -> nn.Module:
    """The model's module with its parts where the map says; what is recorded of a run lands on the
    model's own device as ever. It is made in files first, so that it may be larger than any of its
    places; a map that is given again replaces the one before."""
    try:
        from accelerate import dispatch_model
    except ImportError as error:
        raise LexrayError("a device map needs accelerate: pip install accelerate") from error
    if isinstance(device_map, str) and device_map != "auto":
        raise LexrayError(f"device_map={device_map!r}; give 'auto' or a place for each part")
    module: Any = MODULE.peek(model.cache, None)
    if module is None or hasattr(module, "hf_device_map"):
        module = unroll(model, build_in_files(model))
    if hasattr(module, "hf_device_map"):
        raise LexrayError(f"{model.name} is spread already, and a live module is left as it is")
    places = _places(model, module, device_map)
    folder = _folder(model, module, places, offload)
    if folder is not None:  # which goes with the module, also where spreading it fails
        weakref.finalize(module, shutil.rmtree, folder, ignore_errors=True)
    spread: nn.Module = dispatch_model(module, places, offload_dir=folder, force_hooks=True)
    if not isinstance(model.checkpoint, ModuleCheckpoint) or model.architecture.unrolled:
        MODULE.put(model.cache, None, spread)
    return spread


def _places(model: Weights, module: Any, device_map: str | Mapping[str, str | int]) -> Places:
    """A place for each part; parts of one that holds everything are named, as accelerate looks for
    parts by their names."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import check_device_map

    if isinstance(device_map, str):
        whole = getattr(module, "_no_split_modules", None)
        return dict(infer_auto_device_map(module, no_split_module_classes=list(whole or ())))
    places: Places = dict(device_map)
    if "" in places:
        places = (
            dict.fromkeys((name for name, _ in module.named_children()), places.pop("")) | places
        )
    try:
        check_device_map(module, places)
    except ValueError as error:
        raise LexrayError(f"the device map does not fit {model.name}: {error}") from error
    return places


def _folder(
    model: Weights, module: nn.Module, places: Places, offload: str | Path | None
) -> str | None:
    """An own folder for what goes to the disk, if anything does: accelerate would take what it
    finds in one for what belongs there."""
    parts = [part for part, place in places.items() if place == "disk"]
    if not parts:
        return None
    if offload is None:
        raise LexrayError(
            f"{', '.join(parts[:5])} of {model.name} go to the disk; offload= says to which folder"
        )
    stems = tuple(f"{part}." for part in parts)
    size = sum(x.nbytes for name, x in module.state_dict().items() if f"{name}.".startswith(stems))
    try:
        Path(offload).mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(offload).free
        if size > free:
            raise LexrayError(f"{size:,} bytes of {model.name} go to {offload}, which has {free:,}")
        return tempfile.mkdtemp(prefix="lexray-", dir=offload)
    except OSError as error:
        raise LexrayError(f"{offload} cannot take parts of {model.name}: {error}") from error


def entry_device(model: Weights, module: nn.Module) -> torch.device:
    """Where tokens go in; parts that wait on the disk are nowhere."""
    devices = (parameter.device for parameter in module.parameters())
    return next((d for d in devices if d.type != "meta"), model.device)
