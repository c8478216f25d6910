"""Quantised weights of a module in memory.

Layers of bitsandbytes, fp8 and compressed-tensors keep the tensors that their files have, and are
read by the same readers; the tensors of torchao and the layers of HQQ de-quantise themselves. Those
of others (GPTQ's and AWQ's are arranged for one kernel) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lexray.checkpoint.base import Box, Checkpoint, TensorInfo
from lexray.checkpoint.quant.bitsandbytes import BitsAndBytes
from lexray.checkpoint.quant.checkpoint import QuantisedCheckpoint
from lexray.checkpoint.quant.compressed import CompressedTensors
from lexray.checkpoint.quant.find import SETTINGS, find_method, method_name
from lexray.checkpoint.quant.fp8 import Float8
from lexray.errors import LexrayError

AS_FILES = (BitsAndBytes, CompressedTensors, Float8)
"""Methods whose layers keep what their files have."""


@dataclass(frozen=True)
class Kept:
    """Read from the tensors that its layer keeps."""

    inside: Checkpoint
    name: str

    @property
    def info(self) -> TensorInfo:
        return self.inside.info(self.name)

    def read(self, box: Box) -> Tensor:
        return self.inside.read_unchecked(self.name, *(slice(*bounds) for bounds in box))


@dataclass(frozen=True)
class Own:
    """De-quantised as a whole by its own method, then cut."""

    shape: tuple[int, ...]
    stored: str
    dequantise: Callable[[], Tensor]

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.shape, torch.float32, stored=self.stored)

    def read(self, box: Box) -> Tensor:
        with torch.no_grad():
            whole = self.dequantise().float()
        return whole[tuple(slice(*bounds) for bounds in box)].clone()


LiveWeight = Kept | Own
"""A weight that is kept as something else."""


class Tensors(Checkpoint):
    """Tensors in memory, by name."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor], config: dict[str, Any]) -> None:
        self.name, self._tensors, self._config = name, tensors, config

    @property
    def config(self) -> dict[str, Any]:
        return self._config

    def names(self) -> Collection[str]:
        return self._tensors.keys()

    def info(self, name: str) -> TensorInfo:
        if name not in self._tensors:
            raise self.missing(name)
        return TensorInfo(tuple(self._tensors[name].shape), self._tensors[name].dtype)

    def _read(self, name: str, box: Box) -> Tensor:
        return self._tensors[name].detach()[tuple(slice(*bounds) for bounds in box)]


def find_live(
    module: nn.Module, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, LiveWeight], set[str]]:
    """The quantised weights of a module, and the tensors that are only parts of them."""
    weights, hidden = _own(module, tensors)
    kept = dict(tensors) | _bitsandbytes(module)
    name, settings = type(module).__name__, _settings(module)
    if settings is None:
        return weights, hidden
    known = {k: plain(v) for k, v in kept.items() if k not in weights and k not in hidden}
    method = find_method(Tensors(name, known, {SETTINGS[0]: settings}))
    if isinstance(method, AS_FILES):
        inside = Tensors(name, known, {})
        claimed = method.claim(known)
        if claimed:
            whole = QuantisedCheckpoint(inside, method)
            weights |= {weight: Kept(whole, weight) for weight in claimed}
            parts = {part for roles in claimed.values() for part in roles.values()}
            hidden |= parts | {n for n in known if method.hides(n)}
    elif not weights and _has_odd(tensors):
        raise LexrayError(
            f"a {name} whose layers are quantised by {method_name(settings)} cannot be read in "
            "memory, where they are arranged for their kernels; open its files instead"
        )
    return weights, hidden


def _settings(module: nn.Module) -> dict[str, Any] | None:
    """What a module's config says of its quantisation."""
    settings: Any = getattr(getattr(module, "config", None), SETTINGS[0], None)
    if hasattr(settings, "to_dict"):
        settings = settings.to_dict()
    return settings if isinstance(settings, dict) and settings else None


def _has_odd(tensors: Mapping[str, Tensor]) -> bool:
    """Whether weights are whole numbers."""
    return any(
        not t.is_floating_point() and t.dim() >= 2 and t.dtype != torch.bool
        for t in tensors.values()
    )


def plain(tensor: Tensor) -> Tensor:
    """The numbers of a parameter, without the class that a library gave it."""
    return tensor.detach().as_subclass(Tensor) if type(tensor) is not Tensor else tensor


def _bitsandbytes(module: nn.Module) -> dict[str, Tensor]:
    """The states of bitsandbytes' parameters under the names that they have in files."""
    tensors: dict[str, Tensor] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for name, weight in part._parameters.items():
            stem = f"{path}.{name}" if path else name
            state = getattr(weight, "quant_state", None)
            if state is not None and hasattr(state, "as_dict"):
                if getattr(state, "packing_format_for_cpu", False):
                    raise LexrayError(
                        f"bitsandbytes has rearranged {stem} in memory when the model ran on this "
                        "CPU; open the model before its first run, or open its files"
                    )
                packed = state.as_dict(packed=True)
                tensors |= {f"{stem}.{key}": value for key, value in packed.items()}
            scale = getattr(weight, "SCB", None)
            scale = getattr(getattr(part, "state", None), "SCB", None) if scale is None else scale
            if isinstance(scale, Tensor) and type(weight).__name__ == "Int8Params":
                tensors[f"{path}.SCB"] = scale
    return tensors


def _own(
    module: nn.Module, tensors: Mapping[str, Tensor]
) -> tuple[dict[str, LiveWeight], set[str]]:
    """Tensors of torchao and layers of HQQ."""
    weights: dict[str, LiveWeight] = {}
    hidden: set[str] = set()
    for name, tensor in tensors.items():
        kind = type(tensor)
        if kind.__module__.startswith("torchao.") and hasattr(tensor, "dequantize"):
            weights[name] = Own(tuple(tensor.shape), f"torchao {kind.__name__}", tensor.dequantize)
    for path, part in module.named_modules():
        layer: Any = part
        if type(part).__name__ == "HQQLinear" and type(part).__module__.startswith("hqq."):
            shape = tuple(int(n) for n in layer.meta["shape"])
            words = f"HQQ {layer.meta['nbits']}-bit"
            weights[f"{path}.weight"] = Own(shape, words, layer.dequantize)
            hidden |= {n for n in tensors if n.startswith(f"{path}.") and n != f"{path}.bias"}
    return weights, hidden
