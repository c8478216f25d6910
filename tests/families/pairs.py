"""Tiny random encoder–decoders, with awkward sizes, built by transformers' own classes."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel

from tests.families.zoo import Variant, randomise

T5: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 24,
    "d_kv": 7,
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 6,
    "relative_attention_max_distance": 5,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
BART: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 18,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
GATED = {"feed_forward_proj": "gated-gelu"}
PAIRS = [
    Variant("t5", "t5", T5),
    Variant(
        "flan-t5", "t5", T5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}
    ),
    Variant("mt5", "mt5", T5 | GATED),
    Variant("umt5", "umt5", T5 | {"feed_forward_proj": "gated-silu"}),
    Variant("bart", "bart", BART | {"scale_embedding": True}),
    Variant("mbart", "mbart", BART),
    Variant("marian", "marian", BART | {"decoder_vocab_size": 37}),
    Variant("pegasus", "pegasus", BART | {"scale_embedding": True}),
]


@cache
def build_pair(name: str) -> PreTrainedModel:
    """The model of the variant of this name."""
    return make_pair(next(v for v in PAIRS if v.name == name))


def make_pair(variant: Variant) -> PreTrainedModel:
    config = AutoConfig.for_model(variant.model_type, **variant.options)
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config, attn_implementation="eager").eval()
    for name, buffer in model.named_buffers():
        if name == "final_logits_bias":
            buffer.normal_()
    return randomise(model)
