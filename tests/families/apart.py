"""What tests need of models unlike most: with shared layers, with narrow or hidden decoders."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import DebertaV2ForMaskedLM, PreTrainedModel

from lexray.model.model import Model
from lexray.trace.record.module import module_of

NARROW = {"albert": "predictions.dense", "electra": "generator_predictions.dense"}
"""The map from the model's width to that of the embedding."""


def with_own_layers(module: PreTrainedModel) -> PreTrainedModel:
    """The same, each layer with weights of its own where several shared them."""
    found: Any = module_of(Model.from_module(module))
    if found is not module:
        for part in found.modules():
            for key, parameter in part._parameters.items():
                part._parameters[key] = None if parameter is None else nn.Parameter(parameter + 0)
    return found


def decode(module: Any, h: Tensor) -> Tensor:
    """The logits that a model's decoder alone makes of a state, without the LM head's transform."""
    if isinstance(module, DebertaV2ForMaskedLM) and not module.legacy:
        E = module.deberta.embeddings.word_embeddings.weight
        return linear(h, E, module.lm_predictions.lm_head.bias)
    decoder: Any = module.get_output_embeddings()
    if decoder.in_features != h.shape[-1] and module.config.model_type in NARROW:
        h = linear(h, module.get_submodule(NARROW[module.config.model_type]).weight)
    logits: Tensor = decoder(h)
    return logits
