"""Which of transformers' classes a checkpoint is run as, and with which of its configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.lora import CONFIG as ADAPTER
from lexray.checkpoint.lora import LoraCheckpoint
from lexray.checkpoint.overlay import beneath
from lexray.checkpoint.plain import read_json
from lexray.errors import LexrayError
from lexray.families.gguf.names import GGUFModel
from lexray.model.weights import Weights

OWN = ("attn_config", "ffn_config", "per_layer_config")
"""Entries that are the text model's, though they are called like those of other modalities."""

TASKS = {
    "SEQ_CLS": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "TOKEN_CLS": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
}
"""PEFT's names of what an adapter was trained for."""


def module_config(model: Weights) -> PreTrainedConfig:
    """transformers' configuration, made of the model's own `config.json` or GGUF metadata."""
    known = transformers.CONFIG_MAPPING
    family = model.family
    types = (model.config.get("model_type"), *family.model_types)
    fitting = [t for t in types if t in known and t in family.model_types]
    fitting.sort(key=lambda t: (not _speaks(known[t]), _sees(known[t])))
    defaults: Mapping[str, Any] = {}
    if family.runs_as is not None:  # whose class has other defaults
        fitting, defaults = [family.runs_as], family.defaults
    if not fitting:
        raise LexrayError(
            f"{model.name} cannot be run: transformers {transformers.__version__} has no model of "
            f"type {types[0]!r}, and lexray leaves every forward pass to transformers"
        )
    cls = known[fitting[0]]
    said = {**defaults, **model.config}
    entries = {k: _number(v) for k, v in said.items() if _belongs(k, cls)}
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


def running_entries(model: Weights) -> dict[str, Any]:
    """The model's config as the module that runs it has it: by this the module is described."""
    a = model.architecture
    return model.config | dict(a.settings) | dict(a.unrolled)


def _speaks(cls: type[PreTrainedConfig]) -> bool:
    """Whether transformers has a language model of this config."""
    causal, masked = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING,
    )
    return cls in causal or cls in masked


def _sees(cls: type[PreTrainedConfig]) -> bool:
    """Whether a model of this config has other senses, which would be built at their full size."""
    return bool(cls.sub_configs)


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


def file_beneath(checkpoint: Checkpoint) -> Checkpoint:
    """What lies under edits and adapters."""
    checkpoint = beneath(checkpoint)
    return beneath(checkpoint.base) if isinstance(checkpoint, LoraCheckpoint) else checkpoint


def _special_tokens(model: Weights) -> dict[str, int | None]:
    """GGUF states them beside the vocabulary; a class's own defaults mean another vocabulary."""
    file = file_beneath(model.checkpoint)
    if not isinstance(file, GGUFModel):
        return {}
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {k: file.metadata.get(f"tokenizer.ggml.{name}_token_id") for k, name in keys.items()}
    d_vocab = model.architecture.d_vocab
    return {
        f"{k}_token_id": i if isinstance(i, int) and i < d_vocab else None for k, i in ids.items()
    }


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
