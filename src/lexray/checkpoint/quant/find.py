"""Which format a checkpoint's config names, and what is done with it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lexray.checkpoint.assets import QUANTISED
from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.fields import Fields, text
from lexray.checkpoint.plain import read_json
from lexray.checkpoint.quant.awq import AWQ
from lexray.checkpoint.quant.bitsandbytes import BitsAndBytes
from lexray.checkpoint.quant.compressed import CompressedTensors
from lexray.checkpoint.quant.fp8 import Float8
from lexray.checkpoint.quant.gptq import GPTQ
from lexray.checkpoint.quant.hqq import HQQ
from lexray.checkpoint.quant.method import Method
from lexray.checkpoint.quant.mlx import MLX
from lexray.checkpoint.quant.modelopt import ModelOpt
from lexray.checkpoint.quant.mxfp4 import MXFP4
from lexray.checkpoint.quant.torchao import TorchAO
from lexray.errors import LexrayError

METHODS: tuple[type[Method], ...] = (
    *(AWQ, BitsAndBytes, CompressedTensors, Float8, GPTQ, HQQ, MLX, ModelOpt, MXFP4, TorchAO),
)
SETTINGS = ("quantization_config", "quantization", "compression_config")
"""Where a config speaks of quantisation: transformers', MLX's and an older name."""


def find_method(checkpoint: Checkpoint) -> Method | None:
    """How a checkpoint is quantised, as far as lexray reads that; None for plain weights, and for
    methods that nobody here knows (they are refused where the model is opened)."""
    settings = _settings(checkpoint)
    if settings is None:
        return None
    name = method_name(settings)
    for method in METHODS:
        if name in method.names:
            return method(Fields(settings, f"the config of {checkpoint.name}"), checkpoint.name)
    return None


def known_methods() -> list[str]:
    """What people call the formats that are read."""
    return sorted(method.title for method in METHODS)


def hint_at(names: Collection[str]) -> str:
    """Which formats the names of tensors look like, for a checkpoint whose config says nothing."""
    marks = [(m.title, mark) for m in METHODS for mark in m.marks]
    titles = {title for title, mark in marks if any(name.endswith(mark) for name in names)}
    if not titles:
        return ""
    return (
        f"its tensors look like those of {' or '.join(sorted(titles))}, which lexray reads where "
        "the quantization_config of config.json (or quantize_config.json) says so: download that "
        "too"
    )


def _settings(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The config's words on quantisation, or those of a file beside the weights."""
    try:
        config = checkpoint.config
    except LexrayError:
        return None
    for inside in (config, config.get("text_config")):
        for key in SETTINGS:
            settings = inside.get(key) if isinstance(inside, dict) else None
            if isinstance(settings, dict) and settings:
                return settings
    for filename, method in QUANTISED.items():
        path = checkpoint.asset(filename)
        if path is not None:
            settings = read_json(path)
            inner = settings.get("quantization")
            return {"quant_method": method} | (inner if isinstance(inner, dict) else settings)
    return None


def method_name(settings: dict[str, Any]) -> str | None:
    """The method that a config names: MLX names none, old bitsandbytes only how much it loads."""
    named = text(settings.get("quant_method"))
    if named is not None:
        return named
    if settings.get("load_in_4bit") is True or settings.get("load_in_8bit") is True:
        return "bitsandbytes"
    if "config_groups" in settings:
        return "compressed-tensors"
    return "mlx" if {"bits", "group_size"} <= settings.keys() else None
