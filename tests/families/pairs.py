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
STACK: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "query_pre_attn_scalar": 5,
    "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 64,
    "bos_token_id": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
WIDE = STACK | {
    "hidden_size": 30,
    "intermediate_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
}
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
BARE = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
START = {"decoder_start_token_id": 2}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 8,
    "intermediate_size": 10,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
SEEING: dict[str, Any] = {
    "text_config": WIDE | {"hidden_size": 24, "sliding_window": 4},
    "vision_config": VISION,
    "mm_tokens_per_image": 4,
    "eoi_token_index": 35,
}
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
    Variant("plbart", "plbart", BART | {"pad_token_id": 1, "bos_token_id": 0}),
    Variant("m2m", "m2m_100", BART | {"pad_token_id": 1, "bos_token_id": 0}),
    Variant("blenderbot", "blenderbot", BART),
    Variant(
        "t5gemma", "t5gemma", START | {"encoder": WIDE, "decoder": STACK | CAPS, "vocab_size": 37}
    ),
    Variant(
        "t5gemma-untied",
        "t5gemma",
        START
        | {"encoder": STACK | BARE, "decoder": STACK | BARE | {"attention_bias": True}}
        | {"tie_word_embeddings": False, "vocab_size": 37},
    ),
    Variant("t5gemma2", "t5gemma2", START | {"encoder": SEEING, "decoder": STACK}),
    Variant(
        "t5gemma2-biases",
        "t5gemma2",
        START
        | {"encoder": SEEING, "image_token_index": 36}
        | {"decoder": STACK | {"attention_bias": True, "final_logit_softcapping": 3.0}},
    ),
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
