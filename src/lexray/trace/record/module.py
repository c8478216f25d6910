"""transformers' own model, filled from a lexray checkpoint: what is traced is what is read.

Whatever the checkpoint is (a folder, GGUF, a LoRA adapter on its base, byte ranges of a server),
its tensors are handed to transformers one by one, when it asks for them, under the names that a
Hugging Face checkpoint has on disk. transformers renames and fuses them as it does its own files'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.models.auto import modeling_auto

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.lora import CONFIG as ADAPTER
from lexray.checkpoint.lora import LoraCheckpoint
from lexray.checkpoint.module import ModuleCheckpoint, modules_by_name
from lexray.checkpoint.overlay import beneath
from lexray.checkpoint.plain import read_json
from lexray.errors import LexrayError
from lexray.families.gguf.names import GGUFModel
from lexray.families.walk import tensor_names
from lexray.model.cache import Drawer
from lexray.model.weights import Weights
from lexray.trace.record.quiet import quiet
from lexray.trace.record.rows import Absent, look_up
from lexray.trace.record.unroll import unroll

INSIDE = ("language_model.", "text_model.")
"""Where a multimodal checkpoint keeps its text model, whose own class does without it."""

OWN = ("attn_config", "ffn_config", "per_layer_config")
"""Entries that are the text model's, though they are called like those of other modalities."""

FINAL_NORM = "lexray_final_norm"
"""The config's word on the final norm: "identity" where the model was trained without it."""

TASKS = {
    "SEQ_CLS": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "TOKEN_CLS": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
}
"""PEFT's names of what an adapter was trained for."""


MODULE: Drawer[None, nn.Module] = Drawer(most=1)
STORED: Drawer[None, nn.Module] = Drawer(most=1)


def module_of(model: Weights) -> nn.Module:
    """transformers' own model with this checkpoint's weights, made once; a live one as it is.

    Where layers share their weights, each layer is a module of its own, with the same parameters.
    """
    return MODULE.get(model.cache, None, lambda: unroll(model, build_module(model)))


def stored_module(model: Weights) -> nn.Module:
    """The same as a file has it: what layers share once."""
    if not model.architecture.unrolled:
        return module_of(model)
    return STORED.get(model.cache, None, lambda: build_module(model))


def build_module(model: Weights) -> nn.Module:
    """The model's transformers module, in eval mode, without gradients; a live one as it is."""
    if isinstance(model.checkpoint, ModuleCheckpoint):
        return model.checkpoint.module
    module = _fill(model, module_config(model))
    if model.config.get(FINAL_NORM) == "identity":
        _drop_final_norm(model, module)
    placed: nn.Module = module.to(model.device)
    return placed.requires_grad_(False)


def build_first_block(model: Weights) -> nn.Module:
    """The same with one block alone, as `model` describes no more, which looks tokens up in the
    embedding as it is stored; it has no output embedding. A live module as it is."""
    if isinstance(model.checkpoint, ModuleCheckpoint):
        return model.checkpoint.module
    config, a = deepcopy(module_config(model)), model.architecture
    config.num_hidden_layers = 1
    for entry, value in a.alone:
        setattr(config, entry, value)
    module = _fill(model, config, without=(a.embed, a.unembed))
    look_up(module.get_input_embeddings(), model.tensor(a.embed), module_dtype(model))
    placed: nn.Module = module.to(model.device)
    return placed.requires_grad_(False)


def _fill(model: Weights, config: PreTrainedConfig, without: Sequence[str] = ()) -> PreTrainedModel:
    cls = module_class(model, config)
    if isinstance(_file(model.checkpoint), GGUFModel):
        config = _with_biases(cls, config, model)
    return fill(cls, config, model, without)


def module_names(model: Weights, module: nn.Module) -> dict[str, str]:
    """Each tensor of the checkpoint, and the name of the module's parameter that it ends up in.

    Several may share one (experts, which transformers fuses); what the module has no place for is
    left out.
    """
    names = model.checkpoint.names()
    if isinstance(model.checkpoint, ModuleCheckpoint) or not isinstance(module, PreTrainedModel):
        return {name: name for name in names}
    conversions = get_model_conversion_mapping(module)
    renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    state, prefix = module.state_dict(), module.base_model_prefix

    def rename(name: str) -> str:
        key, _ = rename_source_key(name, renamings, converters, prefix, state)
        if key not in state and name in state:
            key, _ = rename_source_key(name, [], [], prefix, state)
        return str(key)

    pairs = ((name, rename(inner)) for inner, name in text_names(model).items())
    return {name: key for name, key in pairs if key in state}


def module_config(model: Weights) -> PreTrainedConfig:
    """transformers' configuration, made of the model's own `config.json` or GGUF metadata."""
    known = transformers.CONFIG_MAPPING
    types = (model.config.get("model_type"), *model.family.model_types)
    fitting = [t for t in types if t in known and t in model.family.model_types]
    fitting.sort(key=lambda t: not _speaks(known[t]))  # the text of a multimodal model may not
    if not fitting:
        raise LexrayError(
            f"{model.name} cannot be run: transformers {transformers.__version__} has no model of "
            f"type {types[0]!r}, and lexray leaves every forward pass to transformers"
        )
    cls = known[fitting[0]]
    entries = {k: _number(v) for k, v in model.config.items() if _belongs(k, cls)}
    entries |= {"model_type": fitting[0]} | _rope(entries) | _labels(model.checkpoint)
    entries |= _special_tokens(model) | dict(model.architecture.settings)
    try:
        config: PreTrainedConfig = cls.from_dict(entries)
    except Exception as error:  # each class checks its entries in its own way
        raise LexrayError(
            f"transformers cannot make sense of the config of {model.name}: {error}; correct it, "
            "or pass config={...}"
        ) from error
    return config


def _speaks(cls: type[PreTrainedConfig]) -> bool:
    """Whether transformers has a language model of this config."""
    causal, masked = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    )
    return cls in causal or cls in masked


def _belongs(key: str, cls: type) -> bool:
    """Not code of the checkpoint's author, not another modality, not what the class derives."""
    derived = getattr(cls, key, None)
    fixed = isinstance(derived, property) and derived.fset is None
    other = key.endswith("_config") and key not in OWN
    return key != "auto_map" and not other and not fixed


def _number(entry: Any) -> Any:
    """Infinity, for which JSON has no word, as transformers writes it; all else as it is."""
    if isinstance(entry, list):
        return [_number(each) for each in entry]
    return float(entry["__float__"]) if isinstance(entry, dict) and "__float__" in entry else entry


def _rope(entries: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF states one factor per dimension, good for every length: LongRoPE with equal halves."""
    key = "rope_parameters" if "rope_parameters" in entries else "rope_scaling"
    scaling = entries.get(key)
    if not isinstance(scaling, dict) or "short_factor" not in scaling or "long_factor" in scaling:
        return {}
    length = entries.get("max_position_embeddings")
    completed = {"long_factor": scaling["short_factor"], "original_max_position_embeddings": length}
    return {key: completed | scaling}


def _file(checkpoint: Checkpoint) -> Checkpoint:
    """What lies under edits and adapters."""
    checkpoint = beneath(checkpoint)
    return beneath(checkpoint.base) if isinstance(checkpoint, LoraCheckpoint) else checkpoint


def _special_tokens(model: Weights) -> dict[str, int | None]:
    """GGUF states them beside the vocabulary; a class's own defaults mean another vocabulary."""
    file = _file(model.checkpoint)
    if not isinstance(file, GGUFModel):
        return {}
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {k: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for k, name in keys.items()}
    d_vocab = model.architecture.d_vocab
    return {
        f"{k}_token_id": i if isinstance(i, int) and i < d_vocab else None for k, i in ids.items()
    }


def _with_biases(
    cls: type[PreTrainedModel], config: PreTrainedConfig, model: Weights
) -> PreTrainedConfig:
    """GGUF has no word for which maps have biases: the config under which its tensors find room."""
    best, fewest = config, _misfits(cls, config, model)
    for flag, value in config.to_dict().items():
        if fewest and "bias" in flag and isinstance(value, bool):
            other = deepcopy(best)
            setattr(other, flag, not value)
            if (misfits := _misfits(cls, other, model)) < fewest:
                best, fewest = other, misfits
    return best


def _misfits(cls: type[PreTrainedModel], config: PreTrainedConfig, model: Weights) -> int:
    """How many tensors have no parameter, and how many biases no tensor."""
    with torch.device("meta"), quiet():
        module = cls(deepcopy(config))
    placed = module_names(model, module)
    filled = set(placed.values())
    empty = [n for n in module.state_dict() if n.endswith(".bias") and n not in filled]
    return len(model.checkpoint.names()) - len(placed) + len(empty)


def _task(checkpoint: Checkpoint) -> str | None:
    checkpoint = beneath(checkpoint)
    path = checkpoint.asset(ADAPTER) if isinstance(checkpoint, LoraCheckpoint) else None
    return None if path is None else read_json(path).get("task_type")


def _labels(checkpoint: Checkpoint) -> dict[str, Any]:
    """How many classes a classifier that came with an adapter knows."""
    checkpoint = beneath(checkpoint)
    if not isinstance(checkpoint, LoraCheckpoint) or _task(checkpoint) not in TASKS:
        return {}
    added = [n for n in checkpoint.names() if n not in checkpoint.base.names()]
    sizes = [shape[0] for n in added if len(shape := checkpoint.info(n).shape) == 2]
    return {"num_labels": sizes[0]} if sizes else {}


def module_class(model: Weights, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that the checkpoint was saved from, or the language model of its family."""
    task = TASKS.get(_task(model.checkpoint) or "")
    if task is not None and type(config) in task:
        return _one(task[type(config)])
    for name in model.config.get("architectures") or ():
        cls = getattr(transformers, str(name), None)
        if getattr(cls, "config_class", None) is type(config) and _is_final(cls, model, config):
            return _one(cls)
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING
    mappings = [causal, masked] if model.architecture.causal else [masked, causal]
    if model.architecture.encoder is not None:
        mappings = [modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING]
    for mapping in mappings:
        if type(config) in mapping:
            return _one(mapping[type(config)])
    named = getattr(transformers, type(config).__name__.replace("Config", "ForCausalLM"), None)
    if named is not None:  # Mistral 4's is in none of the tables
        return _one(named)
    raise LexrayError(f"transformers has no language model for the config of {model.name}")


def _one(classes: Any) -> type[PreTrainedModel]:
    """A mapping's entry, which may be several classes."""
    cls: type[PreTrainedModel] = classes[0] if isinstance(classes, (tuple, list)) else classes
    return cls


def _is_final(cls: Any, model: Weights, config: PreTrainedConfig) -> bool:
    """Whether to use this class: not pre-training's two heads, nor a body whose tied head is known.

    A body without a head of its own stays one; nothing is made up.
    """
    a, body = model.architecture, modeling_auto.MODEL_MAPPING.get(type(config), None)
    if cls.__name__.endswith("ForPreTraining"):
        return a.head is None  # ELECTRA's discriminator
    return cls is not body or not (a.causal and a.unembed in model.checkpoint.names())


class Lazy:
    """A tensor of a checkpoint, read when transformers takes its `[...]`."""

    def __init__(self, model: Weights, name: str, lock: Lock) -> None:
        self.model, self.name, self.lock = model, name, lock

    def __getitem__(self, index: Any) -> Tensor:
        with self.lock:
            return self.model.tensor(self.name, *_own_part(self.model, self.name))


def _own_part(model: Weights, name: str) -> tuple[slice, ...]:
    """What of a tensor belongs to the layers that are described: of one that has a part for each
    layer of the model (Gemma's second embedding) those of the first ones, else all."""
    inputs, n = model.architecture.layer_inputs, len(model.architecture.blocks)
    if inputs is None or name not in (inputs.table, inputs.project.weight):
        return ()
    own = slice(0, n * inputs.width)
    return (slice(None), own) if name == inputs.table else (own,)


def text_names(model: Weights) -> dict[str, str]:
    """The text model's tensors: their names in a model of text alone, and on disk."""
    names, a = model.checkpoint.names(), model.architecture
    inner = next((word for word in INSIDE if word in a.embed), None)
    if inner is None:
        return {name: name for name in names}
    ends = (a.unembed, a.unembed_bias)
    inside = (name for name in names if inner in name or name in ends)
    return {name.replace(inner, "", 1): name for name in inside}


def module_dtype(model: Weights) -> torch.dtype:
    """The dtype asked for, else the one most of the weights have; 8 bits become float32."""
    if model.dtype is not None:
        return model.dtype
    counts: dict[torch.dtype, int] = {}
    for name in model.checkpoint.names():
        info = model.checkpoint.info(name)
        if info.dtype.is_floating_point:
            counts[info.dtype] = counts.get(info.dtype, 0) + torch.Size(info.shape).numel()
    most = max(counts, key=lambda dtype: counts[dtype], default=torch.float32)
    return torch.float32 if most.itemsize == 1 else most


def fill(
    cls: type[PreTrainedModel],
    config: PreTrainedConfig,
    model: Weights,
    without: Sequence[str] = (),
) -> PreTrainedModel:
    """A module of this class with the checkpoint's tensors; none missing, none made up. Those that
    it is to be `without` take no memory and are no numbers."""
    names, lock, info = text_names(model), Lock(), model.checkpoint.info
    tensors = {
        inner: Absent(info(name).shape, module_dtype(model))
        if name in without
        else Lazy(model, name, lock)
        for inner, name in names.items()
    }
    try:
        with quiet():
            module, report = cls.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=module_dtype(model),
                output_loading_info=True,
            )
    except LexrayError:
        raise
    except Exception as error:  # each class checks its config and its tensors in its own way
        raise LexrayError(f"{model.name} does not fit {cls.__name__}: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise LexrayError(
            f"{model.name} cannot be run as {cls.__name__}: it has no tensor for {_some(missing)}; "
            "its config's architectures should name the class it was saved from"
        )
    if left := sorted(_read_by(model) - module_names(model, module).keys()):
        raise LexrayError(
            f"{model.name} cannot be run as {cls.__name__}, which has no place for {_some(left)}"
        )
    return module


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _read_by(model: Weights) -> set[str]:
    """The tensors of the body that readings use: those that the family's description names."""
    body = replace(model.architecture, unembed="", unembed_bias=None, head=None)
    return tensor_names(body) & set(model.checkpoint.names())


class SkippedNorm(nn.Module):
    """A norm that is not applied; it keeps its parameters, so that the model can be saved."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        for name, parameter in norm.named_parameters(recurse=False):
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> Tensor:
        return x


def _drop_final_norm(model: Weights, module: PreTrainedModel) -> None:
    path = final_norm_path(model, module)
    if path is None:
        raise LexrayError(
            f'{model.name} says {FINAL_NORM}: "identity", but has no final norm with a gain'
        )
    module.set_submodule(path, SkippedNorm(module.get_submodule(path)))


def final_norm_path(model: Weights, module: nn.Module) -> str | None:
    """Where the final norm lies in the module; None for a model without one, or without gains."""
    norm = model.architecture.final_norm
    name = None if norm is None else module_names(model, module).get(norm.gain or "")
    return None if name is None else name.rpartition(".")[0]


def block_modules(model: Weights, module: nn.Module) -> list[nn.Module]:
    """The module of each layer, in order."""
    entries = model.config | dict(model.architecture.unrolled)
    there = model.family.architecture(entries, ModuleCheckpoint(module, values=False).names())
    modules = modules_by_name(module)
    return [modules[block.module] for block in there.blocks[: len(model.architecture.blocks)]]
