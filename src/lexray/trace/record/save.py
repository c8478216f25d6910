"""A model written to a folder: weights as transformers saves them, and the tokenizer's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lexray.checkpoint.assets import TOKENIZER_FILES
from lexray.checkpoint.lora import CONFIG as ADAPTER
from lexray.checkpoint.lora import PREFIX, WEIGHTS
from lexray.checkpoint.overlay import OverlayCheckpoint
from lexray.errors import LexrayError
from lexray.files import writing
from lexray.model.weights import Weights
from lexray.trace.record.module import module_names, stored_module
from lexray.trace.record.quiet import quiet
from lexray.vocabulary.gguf import GgufSource


def save_model(model: Weights, folder: str | Path) -> Path:
    """Safetensors, config and tokenizer in a new folder, which transformers opens."""
    target = new_folder(folder)
    with writing(target) as whole:
        module: Any = stored_module(model)
        with quiet():
            module.save_pretrained(whole)
        save_tokenizer(model, whole)
    return target


def new_folder(folder: str | Path) -> Path:
    """Where nothing is lost by writing."""
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise LexrayError(f"{target} exists and is not empty; choose another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LexrayError(f"cannot write {target}: {error.strerror}") from error
    return target


def save_tokenizer(model: Weights, folder: Path) -> None:
    """Its files as they are; that of a GGUF file, which has none, in the form of others."""
    for name in TOKENIZER_FILES:
        path = model.checkpoint.asset(name)
        if path is not None:
            (folder / name).write_bytes(path.read_bytes())
    source = model.vocabulary.source
    if isinstance(source, GgufSource):
        (folder / "tokenizer.json").write_text(source.tokenizer.to_str(), encoding="utf-8")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def save_lora(model: Weights, folder: str | Path) -> Path:
    """The edits of a model as a PEFT adapter of what lies under them."""
    checkpoint = model.checkpoint
    if not isinstance(checkpoint, OverlayCheckpoint):
        raise LexrayError(f"{model.name} has no edits to save; model.edited([…]) makes some")
    target, module = new_folder(folder), stored_module(model)
    names, parameters = module_names(model, module), module.state_dict()
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    for name in sorted(checkpoint.touched()):
        own = checkpoint.factors(name)
        inner = names.get(name, "")
        held = parameters[inner].shape if inner in parameters else ()
        split = tuple(held) != tuple(checkpoint.info(name).shape)
        if own is None or not inner.endswith(".weight") or split:
            raise LexrayError(
                f"the edit of {name} is no low-rank change of a linear map (a bias, a stack of "
                "experts, too much of a matrix, or one that the module has in parts); "
                ".save(folder) writes the whole model"
            )
        factors[inner.removesuffix(".weight")] = own
    flipped = _is_flipped(model, checkpoint)
    rank = max(left.shape[1] for left, _ in factors.values())
    tensors = {}
    for part, (left, right) in factors.items():
        B, A = (right.T, left.T) if flipped else (left, right)  # PEFT: out×r, r×in
        tensors[f"{PREFIX}{part}.lora_A.weight"] = _widen(A, 0, rank)
        tensors[f"{PREFIX}{part}.lora_B.weight"] = _widen(B, 1, rank)
    with writing(target) as whole:
        whole.mkdir(exist_ok=True)
        save_file(tensors, whole / WEIGHTS[0])
        settings = _settings(checkpoint.base.name, sorted(factors), rank, flipped)
        (whole / ADAPTER).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return target


def _is_flipped(model: Weights, checkpoint: OverlayCheckpoint) -> bool:
    """Whether matrices are stored in×out (GPT-2's Conv1D)."""
    return any(block.attention.o.in_first for block in model.architecture.blocks)


def _widen(x: Tensor, axis: int, rank: int) -> Tensor:
    """With zeros, to the rank that all share."""
    shape = list(x.shape)
    shape[axis] = rank - shape[axis]
    return torch.cat([x, x.new_zeros(shape)], axis).contiguous()


def _settings(base: str, modules: list[str], rank: int, flipped: bool) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": flipped,
        "target_modules": modules,
        "inference_mode": True,
    }
