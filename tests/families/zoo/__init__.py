"""Tiny random models of every family, with awkward sizes, built by transformers' own classes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

from tests.families.zoo.decoders import DECODERS
from tests.families.zoo.encoders import ENCODERS
from tests.families.zoo.hybrids import HYBRIDS
from tests.families.zoo.latest import LATEST
from tests.families.zoo.newer import NEWER
from tests.families.zoo.options import (
    BERT,
    DEBERTA,
    DEEPSEEK,
    GEMMA4,
    GPT2,
    LATENT,
    LLAMA,
    MOE,
    QWEN_NEXT,
    Variant,
)

__all__ = [
    "BERT",
    "DEBERTA",
    "DEEPSEEK",
    "GEMMA4",
    "GPT2",
    "LATENT",
    "LLAMA",
    "MOE",
    "QWEN_NEXT",
    "VARIANTS",
    "Variant",
    "build",
    "class_of",
    "find",
    "make",
    "randomise",
]

VARIANTS = [*DECODERS, *NEWER, *ENCODERS, *HYBRIDS, *LATEST]


@cache
def build(name: str) -> PreTrainedModel:
    """The model of the variant of this name."""
    return make(find(name))


def find(name: str) -> Variant:
    """The variant of this name."""
    return next(v for v in VARIANTS if v.name == name)


def class_of(variant: Variant) -> Any:
    """What makes a variant's model, by transformers' tables or by name."""
    if variant.unlisted:
        return getattr(transformers, variant.unlisted)
    return AutoModelForMaskedLM if variant.masked else AutoModelForCausalLM


def make(variant: Variant) -> PreTrainedModel:
    """The model of a variant: every parameter random, gains and biases included."""
    config = AutoConfig.for_model(variant.model_type, **variant.options)
    torch.manual_seed(0)
    made_by = class_of(variant)
    make_class = made_by._from_config if variant.unlisted else made_by.from_config
    return randomise(make_class(config, attn_implementation=variant.attention).eval())


def randomise(model: PreTrainedModel) -> PreTrainedModel:
    """Every parameter random, gains and biases included, and what a file keeps beside them."""
    stored = model.state_dict(keep_vars=True)
    beside = [x for name, x in model.named_buffers() if name in stored and x.is_floating_point()]
    with torch.no_grad():
        for tensor in [*model.parameters(), *beside]:
            noise = torch.randn_like(tensor)
            tensor.copy_(noise * 0.3 if tensor.ndim > 1 else tensor + noise * 0.3)
    return model
