"""The metadata of the architectures that came last."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gguf import Keys

from tests.families.gguf.keys import KV, LAYER, RMS, SIZES, Config, Metadata, base, only
from tests.families.gguf.newer import NONE, SIGMOID, attending, deepseek_keys, groups, windows


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


def layered_keys(c: Config) -> Metadata:
    """What Gemma 3n and 4 have."""
    return base(c | {"intermediate_size": None}) | {
        Keys.LLM.FINAL_LOGIT_SOFTCAPPING: c["final_logit_softcapping"],
        Keys.LLM.EMBD_LENGTH_PER_LAYER_INP: c["hidden_size_per_layer_input"],
        Keys.Attention.SHARED_KV_LAYERS: c["num_kv_shared_layers"],
        **windows(c),
    }


def gemma4_keys(c: Config) -> Metadata:
    wide = c["per_layer_config"][str(c["num_hidden_layers"] - 1)]
    kinds, width = c["layer_types"], c["intermediate_size"]
    ff: int | list[int] = width
    if c["use_double_wide_mlp"]:
        first = len(kinds) - c["num_kv_shared_layers"]
        ff = [width if n < first else 2 * width for n in range(len(kinds))]
    few = wide.get("num_key_value_heads", c["num_key_value_heads"])
    return layered_keys(c) | {
        KV: [few if "full" in kind else c["num_key_value_heads"] for kind in kinds],
        Keys.LLM.FEED_FORWARD_LENGTH: ff,
        Keys.Attention.KEY_LENGTH: wide["head_dim"],
        Keys.Attention.VALUE_LENGTH: wide["head_dim"],
        Keys.Attention.KEY_LENGTH_SWA: c["head_dim"],
        Keys.Attention.VALUE_LENGTH_SWA: c["head_dim"],
        Keys.Rope.DIMENSION_COUNT: wide["head_dim"],
        Keys.Rope.DIMENSION_COUNT_SWA: c["head_dim"],
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
        Keys.LLM.EXPERT_USED_COUNT: c["top_k_experts"],
    }


def gemma3n_keys(c: Config) -> Metadata:
    share = torch.tensor(c["activation_sparsity_pattern"], dtype=torch.float32)
    return layered_keys(c) | {
        Keys.LLM.FEED_FORWARD_LENGTH: c["intermediate_size"],
        Keys.LLM.ALTUP_ACTIVE_IDX: c["altup_active_idx"],
        Keys.LLM.ALTUP_NUM_INPUTS: c["altup_num_inputs"],
        Keys.LLM.ACTIVATION_SPARSITY_SCALE: torch.distributions.Normal(0, 1).icdf(share).tolist(),
    }


def kimi_linear_keys(c: Config) -> Metadata:
    full = [n for n, kind in enumerate(c["layer_types"]) if kind == "full_attention"]
    turned, inner = c["qk_rope_head_dim"], c["kv_lora_rank"]
    names = {"num_experts_per_tok": c["num_experts_per_token"], "num_experts": c["num_experts"]}
    length = {"max_position_embeddings": c["model_max_length"]}
    return (
        base(c | names | length)
        | attending(c | {"num_key_value_heads": 1}, full)
        | {
            Keys.LLM.VOCAB_SIZE: c["vocab_size"],
            Keys.SSM.CONV_KERNEL: c["linear_conv_kernel_dim"],
            Keys.KDA.HEAD_DIM: c["linear_head_dim"],
            Keys.Attention.Q_LORA_RANK: c["q_lora_rank"],
            Keys.Attention.KV_LORA_RANK: inner,
            Keys.Rope.DIMENSION_COUNT: turned,
            Keys.Attention.KEY_LENGTH: inner + turned,
            Keys.Attention.VALUE_LENGTH: None,
            Keys.Attention.KEY_LENGTH_MLA: c["qk_nope_head_dim"] + turned,
            Keys.Attention.VALUE_LENGTH_MLA: c["v_head_dim"],
            Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
            Keys.LLM.EXPERT_SHARED_COUNT: c["num_shared_experts"],
            Keys.LLM.LEADING_DENSE_BLOCK_COUNT: 1,
            Keys.LLM.EXPERT_WEIGHTS_SCALE: c["routed_scaling_factor"],
            Keys.LLM.EXPERT_GATING_FUNC: SIGMOID,
        }
    )


def modernbert_keys(c: Config) -> Metadata:
    return base(c | {"rms_norm_eps": c["norm_eps"], "layer_norm_eps": c["norm_eps"]}) | {
        Keys.Attention.SLIDING_WINDOW: c["local_attention"],
        Keys.Attention.SLIDING_WINDOW_PATTERN: c.get("global_attn_every_n_layers"),
        Keys.Attention.CAUSAL: False,
        Keys.Rope.SCALING_TYPE: NONE,
        Keys.LLM.VOCAB_SIZE: c["vocab_size"],
    }


def nomic_keys(c: Config) -> Metadata:
    return base(c) | {
        Keys.Attention.CAUSAL: False,
        "tokenizer.ggml.token_type_count": c["type_vocab_size"],
    }


METADATA: dict[str, Callable[[Config], Metadata]] = {
    "dbrx": dbrx_keys,
    "glm_moe_dsa": glm5_keys,
    "mistral4": mistral4_keys,
    "minicpm3": minicpm3_keys,
    "mimo_v2_flash": mimo_keys,
    "kimi_linear": kimi_linear_keys,
    "modernbert": modernbert_keys,
    "nomic_bert": nomic_keys,
    "gemma4_text": gemma4_keys,
    "gemma3n_text": gemma3n_keys,
}
