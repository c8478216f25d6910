"""A model that is already in memory: the tensors of a `torch.nn.Module`, not copied."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from lexray.checkpoint.base import Box, Checkpoint, TensorInfo
from lexray.checkpoint.lora import HEAD
from lexray.checkpoint.low_rank import LowRank, Shift
from lexray.checkpoint.quant.checkpoint import without_settings
from lexray.checkpoint.quant.live import find_live
from lexray.errors import LexrayError

WRAPPERS = re.compile(r"(?:_orig_mod|_checkpoint_wrapped_module)\.")
"""What torch.compile and activation checkpointing put into the names of what they wrap."""

HIDDEN = re.compile(r"\.(?:lora_\w+|original_module|modules_to_save)\.")
MERGE = "call its merge_and_unload() and open the result"


class ModuleCheckpoint(Checkpoint):
    """The parameters and persistent buffers of a live module, under the names of its state dict.

    Unlike other checkpoints' reads, those of this one alias the module's memory (and stay on its
    device); only what an active LoRA adapter changes is computed afresh, and what accelerate has
    put away is fetched. Tensors without values are refused, unless its names are all that is asked
    for (`values`).
    """

    def __init__(self, module: nn.Module, *, values: bool = True) -> None:
        self._module = unwrap(module)
        tensors = state(self._module)
        self._live, parts = find_live(self._module, tensors)
        self._tensors = {n: t for n, t in tensors.items() if n not in parts or n in self._live}
        self._away = _away(self._module)
        for name, tensor in self._tensors.items():
            if values and name not in self._live and name not in self._away:
                _refuse_odd(name, tensor)
        config = getattr(self._module, "config", None)
        self.name = getattr(config, "_name_or_path", "") or type(self._module).__name__
        self.revision = getattr(config, "_commit_hash", None)
        self._saved = _saved_modules(self._module)
        self._names = self._plain_names()
        self._layers = _peft_layers(self._module)

    @property
    def module(self) -> nn.Module:
        """The model itself, out of its wrappers."""
        return self._module

    def names(self) -> Collection[str]:
        return self._names.keys()

    def info(self, name: str) -> TensorInfo:
        if name not in self._names:
            raise self.missing(name)
        if self._names[name] in self._live:
            return self._live[self._names[name]].info
        tensor = self._tensors[self._names[name]]
        return TensorInfo(tuple(tensor.shape), tensor.dtype)

    def _read(self, name: str, box: Box) -> Tensor:
        self.bytes_read += self._cost(name, box)
        part = self._own(name, box)
        change = self._change(name)
        if change is None:
            return part
        shape = self.info(name).shape
        stretch = change.stretch(lambda *index: self._own(name, self._box(name, index)), shape)
        return change.apply(part, box, stretch)

    def _own(self, name: str, box: Box) -> Tensor:
        """A part of a tensor without what an adapter changes of it."""
        where = self._names[name]
        if where in self._live:
            return self._live[where].read(box)
        tensor = self._tensors[where]
        if tensor.is_meta and where in self._away:
            kept, name = self._away[where]
            tensor = kept[name]
        return tensor.detach()[tuple(slice(*bounds) for bounds in box)]

    @property
    def config(self) -> dict[str, Any]:
        """The model's own; with an adapter, head and embedding may differ even if once tied."""
        config = getattr(self._module, "config", None)
        if config is None or not hasattr(config, "to_dict"):
            raise LexrayError(
                f"a {type(self._module).__name__} has no config to tell its family; "
                "give a model of transformers"
            )
        adapted = f"{HEAD}.weight" in self._names and (self._layers or self._saved)
        untied = {"tie_word_embeddings": False} if adapted else {}
        return {**without_settings(config.to_dict()), **untied}

    def _plain_names(self) -> dict[str, str]:
        """The names that the module would have without PEFT, and where their tensors are now."""
        names = {}
        for name in dict.fromkeys((*self._tensors, *self._live)):
            if not HIDDEN.search(name):
                names[name.replace(".base_layer.", ".")] = name
        for path, copy in self._saved.items():
            for name in self._tensors:
                if name.startswith(f"{path}.{copy}."):
                    names[path + name.removeprefix(f"{path}.{copy}")] = name
        return names

    def _change(self, name: str) -> LowRank | Shift | None:
        """What an adapter changes of a tensor: asked each time, as it may be merged meanwhile."""
        path, _, kind = name.rpartition(".")
        layer = self._layers.get(path)
        adapters = [] if layer is None else _active(path, layer)
        return _adaptation(layer, adapters[0], kind) if adapters else None


def _adaptation(layer: Any, adapter: str, kind: str) -> LowRank | Shift | None:
    """What an adapter of a PEFT layer does to the layer's `weight` or `bias`."""
    embedding = adapter in layer.lora_embedding_A
    tensors: dict[str, Tensor]
    if embedding:
        tensors = {"A": layer.lora_embedding_A[adapter], "B": layer.lora_embedding_B[adapter]}
    else:
        A, B = layer.lora_A[adapter], layer.lora_B[adapter]
        tensors = {"A": A.weight, "B": B.weight, "bias": B.bias}
    if layer.use_dora[adapter]:
        tensors["magnitude"] = layer.lora_magnitude_vector[adapter].weight

    def read(name: str, *index: slice) -> Tensor:
        return tensors[name].detach()[index]

    scale = float(layer.scaling[adapter])
    if kind == "weight":
        flipped = embedding or bool(layer.fan_in_fan_out)
        magnitude = "magnitude" if "magnitude" in tensors else None
        return LowRank(read, "A", "B", scale, flipped, magnitude)
    return None if tensors.get("bias") is None else Shift(read, "bias", scale)


def modules_by_name(root: nn.Module) -> dict[str, nn.Module]:
    """The parts of a module by the names they would have without wrappers."""
    modules: dict[str, nn.Module] = {}
    for name, part in root.named_modules():
        modules.setdefault(WRAPPERS.sub("", f"{name}.").removesuffix("."), part)
    return modules


def unwrap(module: nn.Module) -> nn.Module:
    """The model inside DataParallel, torch.compile and PEFT's wrappers."""
    while (inner := _inside(module)) is not None:
        module = inner
    return module


def _inside(module: nn.Module) -> nn.Module | None:
    children = module._modules
    if type(module).__module__.startswith("peft."):
        _refuse_other_peft(module)
        return children.get("base_model") or children.get("model")
    wraps = isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    return children.get("module" if wraps else "_orig_mod")


def _refuse_other_peft(module: Any) -> None:
    for config in module.peft_config.values():
        if config.peft_type != "LORA":
            raise LexrayError(
                f"the model wears a PEFT adapter of type {config.peft_type}; lexray reads LORA. "
                f"If it can be merged, {MERGE}"
            )


def state(module: nn.Module) -> dict[str, Tensor]:
    """What `module.state_dict()` would hold, without its hooks: tied tensors under each name."""
    passing = {
        f"{path}.{name}" if path else name
        for path, part in module.named_modules(remove_duplicate=False)
        for name in part._non_persistent_buffers_set
    }
    buffers = module.named_buffers(remove_duplicate=False)
    kept = {name: tensor for name, tensor in buffers if name not in passing}
    tensors = dict(module.named_parameters(remove_duplicate=False)) | kept
    return {WRAPPERS.sub("", name): tensor for name, tensor in tensors.items()}


def _away(module: nn.Module) -> dict[str, tuple[Any, str]]:
    """Tensors that accelerate keeps elsewhere while their part does not run, and where."""
    away = {}
    for path, part in module.named_modules(remove_duplicate=False):
        hook: Any = getattr(part, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):
            if getattr(one, "offload", False):
                for name, tensor in (*part._parameters.items(), *part._buffers.items()):
                    if tensor is not None and tensor.is_meta:
                        whole = WRAPPERS.sub("", f"{path}.{name}" if path else name)
                        away[whole] = one.weights_map, name
    return away


def _refuse_odd(name: str, tensor: Tensor) -> None:
    """Raises for a tensor whose values are not simply there."""
    kind = f"{type(tensor).__module__}.{type(tensor).__name__}"
    if hasattr(tensor, "ds_id") or getattr(tensor, "_is_flat_param", False):
        kind = "sharded parameter of DeepSpeed or FSDP"
    elif type(tensor) in (Tensor, nn.Parameter, nn.Buffer):
        if not tensor.is_meta:
            return
        kind = "tensor on the meta device, without values"
    raise LexrayError(
        f"{name} is no plain tensor but a {kind}; load the whole model unquantised on one device "
        "(a gathered or de-quantised copy), or open its files instead"
    )


def _saved_modules(module: nn.Module) -> dict[str, str]:
    """PEFT's `modules_to_save`: the path of each, and of the copy inside which is in use."""
    saved = {}
    for path, part in module.named_modules():
        if {"original_module", "modules_to_save"} <= part._modules.keys():
            wrapper: Any = part
            adapters = [] if wrapper.disable_adapters else wrapper.active_adapters
            copies = [f"modules_to_save.{a}" for a in adapters if a in wrapper.modules_to_save]
            saved[WRAPPERS.sub("", path)] = (copies or ["original_module"])[0]
    return saved


def _peft_layers(module: nn.Module) -> dict[str, Any]:
    """PEFT's layers by their path in the state dict, each fit to be read."""
    layers: dict[str, Any] = {}
    for path, layer in module.named_modules():
        if "base_layer" in layer._modules:
            path = WRAPPERS.sub("", path)
            _active(path, layer)
            layers[path] = layer
    return layers


def _active(path: str, layer: Any) -> list[str]:
    """The adapter of a PEFT layer that is in use and not yet merged into its weight, if any."""
    if not hasattr(layer, "lora_A") or hasattr(layer, "parameter_name"):
        raise LexrayError(f"{path} is a {type(layer).__name__} of PEFT, not plain LoRA; {MERGE}")
    adapters = [
        adapter
        for adapter in ([] if layer.disable_adapters else layer.active_adapters)
        if adapter in {*layer.lora_A, *layer.lora_embedding_A} - set(layer.merged_adapters)
    ]
    odd = [a for a in adapters if a in getattr(layer, "lora_variant", {}) and not layer.use_dora[a]]
    if odd or len(adapters) > 1:
        raise LexrayError(f"{path} has the adapters {adapters}, not one of plain LoRA; {MERGE}")
    return adapters
