"""The metadata of the architectures that came last."""

from __future__ import annotations

from collections.abc import Callable

from gguf import Keys

from tests.families.gguf.keys import KV, LAYER, RMS, SIZES, Config, Metadata, base, only
from tests.families.gguf.newer import SIGMOID, deepseek_keys, groups


def dbrx_keys(c: Config) -> Metadata:
    heads, ff = c["attn_config"], c["ffn_config"]
    return {
        Keys.LLM.BLOCK_COUNT: c["n_layers"],
        Keys.LLM.CONTEXT_LENGTH: c["max_seq_len"],
        Keys.LLM.EMBEDDING_LENGTH: c["d_model"],
        Keys.LLM.FEED_FORWARD_LENGTH: ff["ffn_hidden_size"],
        Keys.Attention.HEAD_COUNT: c["n_heads"],
        Keys.Attention.HEAD_COUNT_KV: heads["kv_n_heads"],
        Keys.Rope.FREQ_BASE: c["rope_parameters"]["rope_theta"],
        Keys.Attention.CLAMP_KQV: float(heads["clip_qkv"]),
        Keys.LLM.EXPERT_COUNT: ff["moe_num_experts"],
        Keys.LLM.EXPERT_USED_COUNT: ff["moe_top_k"],
        LAYER: 1e-5,
    }


def glm5_keys(c: Config) -> Metadata:
    return deepseek_keys(c) | {
        Keys.Attention.Indexer.HEAD_COUNT: c["index_n_heads"],
        Keys.Attention.Indexer.KEY_LENGTH: c["index_head_dim"],
        Keys.Attention.Indexer.TOP_K: c["index_topk"],
    }


def mistral4_keys(c: Config) -> Metadata:
    """Neither which scores experts get, nor how queries grow."""
    return deepseek_keys(c) | {Keys.LLM.EXPERT_GATING_FUNC: None}


def minicpm3_keys(c: Config) -> Metadata:
    return only(base(c), *SIZES, KV, RMS) | {
        Keys.LLM.VOCAB_SIZE: c["vocab_size"],
        Keys.Attention.Q_LORA_RANK: c["q_lora_rank"],
        Keys.Attention.KV_LORA_RANK: c["kv_lora_rank"],
        Keys.Attention.KEY_LENGTH: c["qk_nope_head_dim"] + c["qk_rope_head_dim"],
        Keys.Rope.DIMENSION_COUNT: c["qk_rope_head_dim"],
    }


def mimo_keys(c: Config) -> Metadata:
    """With the three layers that guess further tokens, which have windows."""
    slides = [kind == "sliding_attention" for kind in c["layer_types"]] + [True] * 3
    few = c["num_key_value_heads"]
    share = c["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    return (
        base(c)
        | groups(c)
        | {
            Keys.LLM.BLOCK_COUNT: len(slides),
            Keys.LLM.NEXTN_PREDICT_LAYERS: 3,
            KV: [2 * few if slide else few for slide in slides],
            Keys.Attention.SLIDING_WINDOW: c["sliding_window"],
            Keys.Attention.SLIDING_WINDOW_PATTERN: slides,
            Keys.Attention.VALUE_LENGTH: c["v_head_dim"],
            Keys.LLM.EXPERT_COUNT: c["n_routed_experts"],
            Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
            Keys.LLM.EXPERT_GATING_FUNC: SIGMOID,
            Keys.Rope.DIMENSION_COUNT: int(c["head_dim"] * share),
            "{arch}.attention.value_scale": c["attention_value_scale"],
        }
    )


METADATA: dict[str, Callable[[Config], Metadata]] = {
    "dbrx": dbrx_keys,
    "glm_moe_dsa": glm5_keys,
    "mistral4": mistral4_keys,
    "minicpm3": minicpm3_keys,
    "mimo_v2_flash": mimo_keys,
}
