"""Quantised checkpoints, spoiled: their settings, their tensors, their bytes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lexray.model.info import info
from lexray.model.model import Model
from tests.checkpoint.quant.writers import FORMATS, write
from tests.fuzz.spoil import each, spoil_bytes, spoil_header, spoil_json

SIZES = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
DTYPES = [torch.int32, torch.int8, torch.uint8, torch.float16, torch.float32, torch.int64]


def make_sound(folder: Path) -> None:
    for form in FORMATS:
        model = LlamaForCausalLM(LlamaConfig(**SIZES))
        write(model, form, folder / "quantised" / form, folder / "quantised" / f"{form}-plain")


def spoil(sound: Path, folder: Path, random: Random) -> Path:
    form = random.choice([*FORMATS])
    source = sound / "quantised" / form
    config = json.loads((source / "config.json").read_text())
    weights = (source / "model.safetensors").read_bytes()
    match random.randrange(4):
        case 0:
            key = FORMATS[form].key
            config[key] = spoil_json(config[key], random)
        case 1:
            weights = spoil_header(weights, random)
        case 2:
            weights = spoil_bytes(weights, random)
        case 3:
            return _spoil_tensor(source, folder, config, random)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def _spoil_tensor(source: Path, folder: Path, config: object, random: Random) -> Path:
    """A tensor of the first attention, missing or made into another."""
    tensors = load_file(source / "model.safetensors")
    name = random.choice(sorted(n for n in tensors if ".self_attn." in n))
    tensor = tensors.pop(name)
    if random.random() < 0.9:
        tensors[name] = _other(tensor, random).contiguous()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _other(tensor: Tensor, random: Random) -> Tensor:
    size = torch.Size(n + random.choice([-1, 0, 1]) for n in tensor.shape)
    match random.randrange(6):
        case 0:
            return tensor.flatten()
        case 1:
            return tensor.float().to(random.choice(DTYPES))
        case 2:
            return torch.zeros(size, dtype=tensor.dtype)
        case 3:
            return (tensor.float() * 0 + random.choice([-1, 2**31 - 1, 1e9])).to(tensor.dtype)
        case 4 if tensor.is_floating_point():
            return torch.full_like(tensor.float(), random.choice([torch.nan, torch.inf]))
        case _:
            return tensor.flatten()[:0]


def use(path: Path) -> None:
    """Parts of the first attention by rows and columns, and what is said of the whole."""
    model = Model.from_pretrained(path)
    raw = model.view("raw")

    def read() -> None:
        head = raw.head("L0H1")
        for tensor in (head.W_Q, head.W_K, head.W_V, head.W_O):
            assert tensor.ndim == 2
            assert tensor.isfinite().all()

    each(read, lambda: str(info(model)), lambda: raw.head("L0H3").W_O)
