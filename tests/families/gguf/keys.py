"""Which metadata llama.cpp's converter writes for an architecture.

Read in https://github.com/ggml-org/llama.cpp (`conversion/`, formerly `convert_hf_to_gguf.py`); the
keys' names are the `gguf` package's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gguf import Keys

Config = dict[str, Any]
Metadata = dict[str, Any]


def falcon_kv(c: Config) -> int:
    return int(c["num_kv_heads"]) if c["new_decoder_architecture"] else 1


def d_head(c: Config) -> int:
    return int(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])


def base(c: Config) -> Metadata:
    """What most architectures write, of what their config has."""
    rope = c.get("rope_parameters") or {}
    return {
        Keys.LLM.BLOCK_COUNT: c["num_hidden_layers"],
        Keys.LLM.CONTEXT_LENGTH: c["max_position_embeddings"],
        Keys.LLM.EMBEDDING_LENGTH: c["hidden_size"],
        Keys.LLM.FEED_FORWARD_LENGTH: c["intermediate_size"],
        Keys.Attention.HEAD_COUNT: c["num_attention_heads"],
        Keys.Attention.HEAD_COUNT_KV: c.get("num_key_value_heads"),
        Keys.Attention.LAYERNORM_RMS_EPS: c.get("rms_norm_eps"),
        Keys.Attention.LAYERNORM_EPS: c.get("layer_norm_eps"),
        Keys.Attention.KEY_LENGTH: c.get("head_dim"),
        Keys.Attention.VALUE_LENGTH: c.get("head_dim"),
        Keys.LLM.EXPERT_COUNT: c.get("num_local_experts") or c.get("num_experts"),
        Keys.LLM.EXPERT_USED_COUNT: c.get("num_experts_per_tok"),
        Keys.Rope.FREQ_BASE_SWA: rope.get("sliding_attention", {}).get("rope_theta"),
        **scaling(rope.get("full_attention", rope)),
    }


def scaling(rope: Config) -> Metadata:
    kind = rope.get("rope_type")
    keys: Metadata = {Keys.Rope.FREQ_BASE: rope.get("rope_theta")}
    if kind in ("linear", "yarn"):
        keys |= {Keys.Rope.SCALING_TYPE: kind, Keys.Rope.SCALING_FACTOR: rope["factor"]}
    if kind == "yarn":
        keys |= {
            Keys.Rope.SCALING_ORIG_CTX_LEN: rope["original_max_position_embeddings"],
            Keys.Rope.SCALING_YARN_ATTN_FACTOR: rope.get("attention_factor"),
            Keys.Rope.SCALING_YARN_BETA_FAST: rope.get("beta_fast"),
            Keys.Rope.SCALING_YARN_BETA_SLOW: rope.get("beta_slow"),
        }
    return keys


def only(keys: Metadata, *wanted: str) -> Metadata:
    return {key: keys[key] for key in wanted}


SIZES = (
    Keys.LLM.BLOCK_COUNT,
    Keys.LLM.CONTEXT_LENGTH,
    Keys.LLM.EMBEDDING_LENGTH,
    Keys.LLM.FEED_FORWARD_LENGTH,
    Keys.Attention.HEAD_COUNT,
)
KV, RMS, LAYER = (
    Keys.Attention.HEAD_COUNT_KV,
    Keys.Attention.LAYERNORM_RMS_EPS,
    Keys.Attention.LAYERNORM_EPS,
)
LENGTHS = (Keys.Attention.KEY_LENGTH, Keys.Attention.VALUE_LENGTH)


def llama_keys(c: Config) -> Metadata:
    return base(c) | {
        Keys.LLM.VOCAB_SIZE: c["vocab_size"],
        Keys.Rope.DIMENSION_COUNT: d_head(c),
    }


def qwen_moe_keys(c: Config) -> Metadata:
    return base(c) | {
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
        Keys.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH: c.get("shared_expert_intermediate_size"),
    }


def gemma_keys(c: Config) -> Metadata:
    return only(base(c), *SIZES, KV, RMS, *LENGTHS)


def gemma2_keys(c: Config) -> Metadata:
    return gemma_keys(c) | {
        Keys.LLM.ATTN_LOGIT_SOFTCAPPING: c["attn_logit_softcapping"],
        Keys.LLM.FINAL_LOGIT_SOFTCAPPING: c["final_logit_softcapping"],
        Keys.Attention.SLIDING_WINDOW: c["sliding_window"],
    }


def gemma3_keys(c: Config) -> Metadata:
    return base(c) | {Keys.Attention.SLIDING_WINDOW: c["sliding_window"]}


def phi2_keys(c: Config) -> Metadata:
    turned = c["rope_parameters"]["partial_rotary_factor"] * c["hidden_size"]
    return only(base(c), *SIZES, LAYER) | {
        Keys.LLM.FEED_FORWARD_LENGTH: 4 * c["hidden_size"],
        Keys.Attention.HEAD_COUNT_KV: c["num_attention_heads"],
        Keys.Rope.DIMENSION_COUNT: int(turned) // c["num_attention_heads"],
    }


def phi3_keys(c: Config) -> Metadata:
    rope, length = c["rope_parameters"], c["max_position_embeddings"]
    original = rope.get("original_max_position_embeddings") or length
    keys = only(base(c), *SIZES, KV, RMS, Keys.Rope.FREQ_BASE) | {
        Keys.Rope.SCALING_ORIG_CTX_LEN: original,
        Keys.Rope.DIMENSION_COUNT: int(rope.get("partial_rotary_factor", 1.0) * d_head(c)),
        Keys.Attention.SLIDING_WINDOW: c["sliding_window"] or 0,
    }
    if "long_factor" in rope:
        stretched = 1 + math.log(length / original) / math.log(original)
        keys[Keys.Rope.SCALING_ATTN_FACTOR] = math.sqrt(stretched)
    return keys


def gpt2_keys(c: Config) -> Metadata:
    return {
        Keys.LLM.BLOCK_COUNT: c["n_layer"],
        Keys.LLM.CONTEXT_LENGTH: c["n_positions"],
        Keys.LLM.EMBEDDING_LENGTH: c["n_embd"],
        Keys.LLM.FEED_FORWARD_LENGTH: 4 * c["n_embd"],
        Keys.Attention.HEAD_COUNT: c["n_head"],
        Keys.Attention.LAYERNORM_EPS: c["layer_norm_epsilon"],
    }


def neox_keys(c: Config) -> Metadata:
    turned = c["rope_parameters"]["partial_rotary_factor"] * d_head(c)
    return only(base(c), *SIZES, LAYER) | {
        Keys.Rope.DIMENSION_COUNT: int(turned),
        Keys.LLM.USE_PARALLEL_RESIDUAL: c["use_parallel_residual"],
    }


def bloom_keys(c: Config) -> Metadata:
    return {
        Keys.LLM.BLOCK_COUNT: c["n_layer"],
        Keys.LLM.CONTEXT_LENGTH: c.get("seq_length", c["hidden_size"]),
        Keys.LLM.EMBEDDING_LENGTH: c["hidden_size"],
        Keys.LLM.FEED_FORWARD_LENGTH: 4 * c["hidden_size"],
        Keys.Attention.HEAD_COUNT: c["n_head"],
        Keys.Attention.HEAD_COUNT_KV: c["n_head"],
        Keys.Attention.LAYERNORM_EPS: c["layer_norm_epsilon"],
    }


def falcon_keys(c: Config) -> Metadata:
    return {
        Keys.LLM.CONTEXT_LENGTH: 2048,
        Keys.LLM.TENSOR_DATA_LAYOUT: "jploski",
        Keys.LLM.EMBEDDING_LENGTH: c["hidden_size"],
        Keys.LLM.FEED_FORWARD_LENGTH: 4 * c["hidden_size"],
        Keys.LLM.BLOCK_COUNT: c["num_hidden_layers"],
        Keys.Attention.HEAD_COUNT: c["num_attention_heads"],
        Keys.Attention.HEAD_COUNT_KV: falcon_kv(c),
        Keys.Attention.LAYERNORM_EPS: c["layer_norm_epsilon"],
    }


def stablelm_keys(c: Config) -> Metadata:
    turned = c["rope_parameters"]["partial_rotary_factor"] * d_head(c)
    return only(base(c), *SIZES, KV, LAYER) | {
        Keys.Rope.DIMENSION_COUNT: int(turned),
        Keys.LLM.USE_PARALLEL_RESIDUAL: c["use_parallel_residual"],
    }


def olmo_keys(c: Config) -> Metadata:
    return base(c) | {
        Keys.Attention.LAYERNORM_EPS: 1e-5,
        Keys.Attention.CLAMP_KQV: c.get("clip_qkv"),
    }


def cohere_keys(c: Config) -> Metadata:
    return base(c) | {Keys.LLM.LOGIT_SCALE: c["logit_scale"], Keys.Rope.SCALING_TYPE: "none"}


def cohere2_keys(c: Config) -> Metadata:
    return cohere_keys(c) | {
        Keys.Attention.SLIDING_WINDOW: c["sliding_window"],
        Keys.LLM.VOCAB_SIZE: c["vocab_size"],
        Keys.Rope.DIMENSION_COUNT: c["hidden_size"] // c["num_attention_heads"],
    }


def granite_keys(c: Config) -> Metadata:
    return llama_keys(c) | {
        Keys.LLM.EMBEDDING_SCALE: c["embedding_multiplier"],
        Keys.LLM.RESIDUAL_SCALE: c["residual_multiplier"],
        Keys.Attention.SCALE: c["attention_multiplier"],
        Keys.LLM.LOGIT_SCALE: c["logits_scaling"],
    }


def starcoder2_keys(c: Config) -> Metadata:
    return base(c) | {
        Keys.Attention.LAYERNORM_EPS: c["norm_epsilon"],
        Keys.Attention.SLIDING_WINDOW: c["sliding_window"],
    }


def mpt_keys(c: Config) -> Metadata:
    return {
        Keys.LLM.BLOCK_COUNT: c["n_layers"],
        Keys.LLM.CONTEXT_LENGTH: c["max_seq_len"],
        Keys.LLM.EMBEDDING_LENGTH: c["d_model"],
        Keys.LLM.FEED_FORWARD_LENGTH: 4 * c["d_model"],
        Keys.Attention.HEAD_COUNT: c["n_heads"],
        Keys.Attention.LAYERNORM_EPS: 1e-5,
        Keys.Attention.CLAMP_KQV: c["attn_config"]["clip_qkv"],
        Keys.Attention.MAX_ALIBI_BIAS: float(c["attn_config"]["alibi_bias_max"]),
    }


METADATA: dict[str, Callable[[Config], Metadata]] = {
    "llama": llama_keys,
    "mistral": llama_keys,
    "mixtral": llama_keys,
    "smollm3": llama_keys,
    "qwen2_moe": qwen_moe_keys,
    "qwen3_moe": qwen_moe_keys,
    "gemma": gemma_keys,
    "gemma2": gemma2_keys,
    "gemma3_text": gemma3_keys,
    "phi": phi2_keys,
    "phi3": phi3_keys,
    "gpt2": gpt2_keys,
    "gpt_neox": neox_keys,
    "bloom": bloom_keys,
    "falcon": falcon_keys,
    "stablelm": stablelm_keys,
    "olmo": olmo_keys,
    "cohere": cohere_keys,
    "cohere2": cohere2_keys,
    "granite": granite_keys,
    "starcoder2": starcoder2_keys,
    "mpt": mpt_keys,
    "gpt_bigcode": lambda c: gpt2_keys(c) | {Keys.Attention.HEAD_COUNT_KV: 1},
}
