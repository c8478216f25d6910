"""The metadata of the newer architectures: mixtures, latent attention, hybrids."""

from __future__ import annotations

from collections.abc import Callable

import gguf
from gguf import Keys, RopeScalingType
from torch import Tensor

from tests.families.gguf.keys import (
    KV,
    LAYER,
    LENGTHS,
    RMS,
    SIZES,
    Config,
    Metadata,
    base,
    d_head,
    granite_keys,
    llama_keys,
    only,
    phi3_keys,
)

NONE = RopeScalingType.NONE.value
SIGMOID, SOFTMAX = (gguf.ExpertGatingFuncType[x].value for x in ("SIGMOID", "SOFTMAX"))


def n_layers(c: Config) -> int:
    kinds = c.get("layers_block_type")
    if c["model_type"] == "nemotron_h" and kinds:
        return len(kinds)
    if "num_decoder_layers" in c:
        return max(c["num_layers"], c["num_decoder_layers"])
    return int(next(c[k] for k in ("num_hidden_layers", "n_layer", "n_layers") if c.get(k)))


def rotary_dims(c: Config, default: float = 1.0) -> Metadata:
    partial = c["rope_parameters"].get("partial_rotary_factor", default)
    return {Keys.Rope.DIMENSION_COUNT: int(d_head(c) * partial)}


def windows(c: Config) -> Metadata:
    if c.get("sliding_window") is None:
        return {}
    return {
        Keys.Attention.SLIDING_WINDOW: c["sliding_window"],
        Keys.Attention.SLIDING_WINDOW_PATTERN: [
            kind == "sliding_attention" for kind in c["layer_types"]
        ],
    }


def groups(c: Config) -> Metadata:
    return {
        Keys.LLM.EXPERT_GROUP_COUNT: c.get("n_group"),
        Keys.LLM.EXPERT_GROUP_USED_COUNT: c.get("topk_group"),
    }


def routed(c: Config) -> Metadata:
    """DeepSeek's words, which many mixtures have."""
    return groups(c) | {
        Keys.LLM.EXPERT_COUNT: c["n_routed_experts"],
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
        Keys.LLM.EXPERT_SHARED_COUNT: c["n_shared_experts"],
        Keys.LLM.LEADING_DENSE_BLOCK_COUNT: c.get("first_k_dense_replace"),
        Keys.LLM.EXPERT_WEIGHTS_SCALE: float(c["routed_scaling_factor"]),
        Keys.LLM.EXPERT_WEIGHTS_NORM: c["norm_topk_prob"] or None,
    }


def ministral_keys(c: Config) -> Metadata:
    rope = c["rope_parameters"]
    return llama_keys(c) | {
        Keys.Rope.SCALING_YARN_LOG_MUL: rope["mscale_all_dim"],
        Keys.Attention.TEMPERATURE_SCALE: rope["llama_4_scaling_beta"],
    }


def minimax_keys(c: Config) -> Metadata:
    return base(c) | {
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["intermediate_size"],
        Keys.Rope.DIMENSION_COUNT: c["rotary_dim"],
        Keys.LLM.EXPERT_GATING_FUNC: SIGMOID,
    }


def phimoe_keys(c: Config) -> Metadata:
    return phi3_keys(c) | {
        Keys.LLM.EXPERT_COUNT: c["num_local_experts"],
        Keys.LLM.EXPERT_USED_COUNT: c["num_experts_per_tok"],
    }


def granite_moe_keys(c: Config) -> Metadata:
    return granite_keys(c) | {
        Keys.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH: c.get("shared_intermediate_size"),
    }


def mamba2_keys(c: Config) -> Metadata:
    return {
        Keys.SSM.CONV_KERNEL: c["mamba_d_conv"],
        Keys.SSM.STATE_SIZE: c["mamba_d_state"],
        Keys.SSM.GROUP_COUNT: c["mamba_n_groups"],
        Keys.SSM.INNER_SIZE: c["mamba_n_heads"] * c["mamba_d_head"],
        Keys.SSM.TIME_STEP_RANK: c["mamba_n_heads"],
    }


def attending(c: Config, layers: list[int]) -> Metadata:
    """Layers without attention have no heads of keys and values."""
    count = c["num_key_value_heads"]
    return {KV: [count if n in layers else 0 for n in range(n_layers(c))]}


def granite_hybrid_keys(c: Config) -> Metadata:
    attend = [n for n, kind in enumerate(c["layer_types"]) if "full" in kind]
    return (
        granite_moe_keys(c)
        | mamba2_keys(c)
        | attending(c, attend)
        | {
            Keys.Rope.SCALING_FINETUNED: False,
            Keys.LLM.CONTEXT_LENGTH: 2**20,
            Keys.LLM.EXPERT_COUNT: c["num_local_experts"],
        }
    )


def bamba_keys(c: Config) -> Metadata:
    keys = llama_keys(c) | mamba2_keys(c) | attending(c, c["attn_layer_indices"])
    return keys | rotary_dims(c) | {Keys.Rope.SCALING_FINETUNED: True}


def chatglm_keys(c: Config) -> Metadata:
    return only(base(c), *SIZES, KV) | {
        RMS: 1e-5,
        Keys.LLM.CONTEXT_LENGTH: c["hidden_size"],
        Keys.Rope.DIMENSION_COUNT: c["hidden_size"] // c["num_attention_heads"] // 2,
        Keys.Rope.FREQ_BASE: 10000,
    }


def glm_moe_keys(c: Config) -> Metadata:
    keys = base(c) | routed(c) | rotary_dims(c, 0.5)
    return keys | {Keys.LLM.EXPERT_GATING_FUNC: SIGMOID}


def nemotron_keys(c: Config) -> Metadata:
    turned = c["rope_parameters"]["partial_rotary_factor"] * c["hidden_size"]
    return base(c) | {
        RMS: None,
        LAYER: c["norm_eps"],
        Keys.Rope.DIMENSION_COUNT: int(turned) // c["num_attention_heads"],
        Keys.Rope.SCALING_TYPE: NONE,
    }


def curves(state: dict[str, Tensor]) -> Metadata:
    """Apertus' activations have learned numbers, one of a kind for each layer."""
    return {
        f"xielu.{x}": [t.float().item() for name, t in state.items() if name.endswith(f".{x}")]
        for x in ("alpha_p", "alpha_n", "beta", "eps")
    }


def ernie_moe_keys(c: Config) -> Metadata:
    return base(c) | {
        Keys.LLM.EXPERT_COUNT: c["moe_num_experts"],
        Keys.LLM.EXPERT_USED_COUNT: c["moe_k"],
        Keys.LLM.INTERLEAVE_MOE_LAYER_STEP: c["moe_layer_interval"],
        Keys.LLM.LEADING_DENSE_BLOCK_COUNT: c["moe_layer_start_index"],
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
        Keys.LLM.EXPERT_SHARED_COUNT: c["moe_num_shared_experts"],
        Keys.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH: c["intermediate_size"]
        // c["num_key_value_heads"],
    }


def hunyuan_keys(c: Config) -> Metadata:
    rope, size = c["rope_parameters"], d_head(c)
    if rope.get("rope_type") != "dynamic":
        return base(c)
    return base(c) | {
        Keys.Rope.FREQ_BASE: rope["rope_theta"] * rope["alpha"] ** (size / (size - 2)),
        Keys.Rope.SCALING_TYPE: NONE,
        Keys.Rope.SCALING_FACTOR: 1.0,
        Keys.Rope.SCALING_ORIG_CTX_LEN: 256 * 1024,
        Keys.LLM.CONTEXT_LENGTH: 256 * 1024,
    }


def hunyuan_moe_keys(c: Config) -> Metadata:
    return hunyuan_keys(c) | {
        Keys.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH: c["intermediate_size"],
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["intermediate_size"],
        Keys.LLM.EXPERT_USED_COUNT: c["moe_topk"],
        Keys.LLM.EXPERT_SHARED_COUNT: 1,
    }


def deepseek_keys(c: Config) -> Metadata:
    rope, turned = c["rope_parameters"], c["qk_rope_head_dim"]
    even, sparse = rope.get("mscale_all_dim"), c.get("n_routed_experts") is not None
    keys = (
        base(c)
        | (routed(c) if sparse else {})
        | {
            KV: 1,
            Keys.LLM.VOCAB_SIZE: c["vocab_size"],
            Keys.Attention.Q_LORA_RANK: c["q_lora_rank"],
            Keys.Attention.KV_LORA_RANK: c["kv_lora_rank"],
            Keys.Attention.KEY_LENGTH: c["kv_lora_rank"] + turned,
            Keys.Attention.VALUE_LENGTH: c["kv_lora_rank"],
            Keys.Attention.KEY_LENGTH_MLA: c["qk_nope_head_dim"] + turned,
            Keys.Attention.VALUE_LENGTH_MLA: c["v_head_dim"],
            Keys.Rope.DIMENSION_COUNT: turned,
            Keys.Rope.SCALING_YARN_LOG_MUL: None if even is None else 0.1 * even,
        }
    )
    if sparse:
        softmax = c["model_type"] == "deepseek_v2"
        return keys | {Keys.LLM.EXPERT_GATING_FUNC: SOFTMAX if softmax else SIGMOID}
    return keys | {
        Keys.LLM.LEADING_DENSE_BLOCK_COUNT: c["num_hidden_layers"],
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["intermediate_size"],
        Keys.LLM.EXPERT_SHARED_COUNT: 0,
    }


def gpt_oss_keys(c: Config) -> Metadata:
    return base(c) | {
        Keys.Attention.SLIDING_WINDOW: c["sliding_window"],
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["intermediate_size"],
    }


def llama4_keys(c: Config) -> Metadata:
    return llama_keys(c) | {
        Keys.LLM.FEED_FORWARD_LENGTH: c["intermediate_size_mlp"],
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["intermediate_size"],
        Keys.LLM.INTERLEAVE_MOE_LAYER_STEP: c["interleave_moe_layer_step"],
    }


def delta_keys(c: Config) -> Metadata:
    values = c["linear_num_value_heads"]
    return (
        base(c)
        | rotary_dims(c, 0.25)
        | {
            Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c.get("moe_intermediate_size"),
            Keys.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH: c.get("shared_expert_intermediate_size"),
            Keys.SSM.CONV_KERNEL: c["linear_conv_kernel_dim"],
            Keys.SSM.STATE_SIZE: c["linear_key_head_dim"],
            Keys.SSM.GROUP_COUNT: c["linear_num_key_heads"],
            Keys.SSM.TIME_STEP_RANK: values,
            Keys.SSM.INNER_SIZE: c["linear_value_head_dim"] * values,
            Keys.LLM.FULL_ATTENTION_INTERVAL: 4,
        }
    )


def jamba_keys(c: Config) -> Metadata:
    period, offset = c["attn_layer_period"], c["attn_layer_offset"]
    attend = [n for n in range(n_layers(c)) if (n - offset) % period == 0 and n >= offset]
    counts = (Keys.LLM.EXPERT_COUNT, Keys.LLM.EXPERT_USED_COUNT)
    return (
        only(base(c), *SIZES, RMS, *counts)
        | attending(c, attend)
        | {
            Keys.SSM.CONV_KERNEL: c["mamba_d_conv"],
            Keys.SSM.INNER_SIZE: c["mamba_expand"] * c["hidden_size"],
            Keys.SSM.STATE_SIZE: c["mamba_d_state"],
            Keys.SSM.TIME_STEP_RANK: c["mamba_dt_rank"],
        }
    )


def falcon_h1_keys(c: Config) -> Metadata:
    head = {key: d_head(c) for key in LENGTHS}
    theta = {Keys.Rope.FREQ_BASE: c["rope_parameters"]["rope_theta"]}
    return only(base(c), *SIZES, KV, RMS) | mamba2_keys(c) | head | theta


def lfm2_keys(c: Config) -> Metadata:
    width = c["intermediate_size"]
    if c.get("block_auto_adjust_ff_dim"):
        each = c["block_multiple_of"]
        width = int(c["block_ffn_dim_multiplier"] * int(2 * width / 3))
        width = each * ((width + each - 1) // each)
    attend = [n for n, kind in enumerate(c["layer_types"]) if kind == "full_attention"]
    keys = (
        base(c)
        | attending(c, attend)
        | {
            RMS: c["norm_eps"],
            Keys.LLM.FEED_FORWARD_LENGTH: width,
            "{arch}.shortconv.l_cache": c["conv_L_cache"],
        }
    )
    if c["model_type"] == "lfm2":
        return keys
    return keys | {
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
        Keys.LLM.LEADING_DENSE_BLOCK_COUNT: c["num_dense_layers"],
        Keys.LLM.EXPERT_GATING_FUNC: SIGMOID,
    }


def nemotron_h_keys(c: Config) -> Metadata:
    kinds = c["layers_block_type"]
    attend = [n for n, kind in enumerate(kinds) if "attention" in kind]
    width = c["moe_intermediate_size"]
    inner = c["mamba_num_heads"] * c["mamba_head_dim"]
    keys = (
        base(c | {"num_hidden_layers": len(kinds)})
        | routed(c)
        | attending(c, attend)
        | {
            RMS: c["layer_norm_epsilon"],
            LAYER: None,
            Keys.LLM.FEED_FORWARD_LENGTH: [width if kind == "moe" else 0 for kind in kinds],
            Keys.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH: c["moe_shared_expert_intermediate_size"],
            Keys.SSM.CONV_KERNEL: c["conv_kernel"],
            Keys.SSM.STATE_SIZE: c["ssm_state_size"],
            Keys.SSM.GROUP_COUNT: c["n_groups"],
            Keys.SSM.INNER_SIZE: inner,
            Keys.SSM.TIME_STEP_RANK: c["mamba_num_heads"],
        }
    )
    return keys | {Keys.LLM.LEADING_DENSE_BLOCK_COUNT: None, Keys.Rope.FREQ_BASE: None}


def exaone_moe_keys(c: Config) -> Metadata:
    shared = c["moe_intermediate_size"] * c["num_shared_experts"]
    return (
        base(c)
        | windows(c)
        | {
            Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
            Keys.LLM.EXPERT_SHARED_COUNT: c["num_shared_experts"],
            Keys.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH: shared,
            Keys.LLM.EXPERT_WEIGHTS_SCALE: c["routed_scaling_factor"],
            Keys.LLM.EXPERT_WEIGHTS_NORM: c["norm_topk_prob"],
            Keys.LLM.LEADING_DENSE_BLOCK_COUNT: c.get("first_k_dense_replace", 0),
            Keys.Rope.SCALING_TYPE: NONE,
        }
    )


def afmoe_keys(c: Config) -> Metadata:
    """Not which layers look through windows: llama.cpp takes every fourth for one that does not."""
    return llama_keys(c) | {
        Keys.LLM.EXPERT_SHARED_COUNT: c["num_shared_experts"],
        Keys.LLM.EXPERT_FEED_FORWARD_LENGTH: c["moe_intermediate_size"],
        Keys.LLM.LEADING_DENSE_BLOCK_COUNT: c["num_dense_layers"],
        Keys.LLM.EXPERT_WEIGHTS_NORM: True,
        Keys.LLM.EXPERT_WEIGHTS_SCALE: c["route_scale"],
        Keys.Attention.SLIDING_WINDOW: c["sliding_window"],
    }


def bert_keys(c: Config) -> Metadata:
    chopped = c["pad_token_id"] + 1 if c["model_type"] == "roberta" else 0
    return base(c) | {
        Keys.LLM.CONTEXT_LENGTH: c["max_position_embeddings"] - chopped,
        Keys.Attention.CAUSAL: False,
        "tokenizer.ggml.token_type_count": c["type_vocab_size"],
    }


def distilbert_keys(c: Config) -> Metadata:
    return {
        Keys.LLM.BLOCK_COUNT: c["n_layers"],
        Keys.LLM.CONTEXT_LENGTH: c["max_position_embeddings"],
        Keys.LLM.EMBEDDING_LENGTH: c["dim"],
        Keys.LLM.FEED_FORWARD_LENGTH: c["hidden_dim"],
        Keys.Attention.HEAD_COUNT: c["n_heads"],
        Keys.Attention.LAYERNORM_EPS: 1e-12,
        Keys.Attention.CAUSAL: False,
        "tokenizer.ggml.token_type_count": 1,
    }


def t5_keys(c: Config) -> Metadata:
    return {
        Keys.LLM.CONTEXT_LENGTH: 512,
        Keys.LLM.EMBEDDING_LENGTH: c["d_model"],
        Keys.LLM.FEED_FORWARD_LENGTH: c["d_ff"],
        Keys.LLM.BLOCK_COUNT: c["num_layers"],
        Keys.LLM.DECODER_BLOCK_COUNT: c["num_decoder_layers"],
        Keys.Attention.HEAD_COUNT: c["num_heads"],
        Keys.Attention.KEY_LENGTH: c["d_kv"],
        Keys.Attention.VALUE_LENGTH: c["d_kv"],
        Keys.Attention.LAYERNORM_EPS: c["layer_norm_epsilon"],
        Keys.Attention.REL_BUCKETS_COUNT: c["relative_attention_num_buckets"],
        Keys.Attention.LAYERNORM_RMS_EPS: c["layer_norm_epsilon"],
        Keys.LLM.DECODER_START_TOKEN_ID: c["decoder_start_token_id"],
    }


METADATA: dict[str, Callable[[Config], Metadata]] = {
    "exaone_moe": exaone_moe_keys,
    "afmoe": afmoe_keys,
    "bert": bert_keys,
    "roberta": bert_keys,
    "distilbert": distilbert_keys,
    "eurobert": lambda c: base(c) | {Keys.Attention.CAUSAL: False, Keys.Rope.SCALING_TYPE: NONE},
    "t5": t5_keys,
    "mt5": t5_keys,
    "umt5": t5_keys,
    "ministral3": ministral_keys,
    "minimax_m2": minimax_keys,
    "phimoe": phimoe_keys,
    "granitemoe": granite_moe_keys,
    "granitemoeshared": granite_moe_keys,
    "granitemoehybrid": granite_hybrid_keys,
    "bamba": bamba_keys,
    "glm": chatglm_keys,
    "glm4": lambda c: base(c) | rotary_dims(c, 0.5),
    "glm4_moe": glm_moe_keys,
    "solar_open": glm_moe_keys,
    "dots1": lambda c: base(c) | routed(c),
    "arcee": llama_keys,
    "nemotron": nemotron_keys,
    "jais2": lambda c: base(c) | rotary_dims(c),
    "apertus": llama_keys,
    "exaone4": lambda c: base(c) | windows(c),
    "ernie4_5_moe": ernie_moe_keys,
    "hunyuan_v1_dense": hunyuan_keys,
    "hunyuan_v1_moe": hunyuan_moe_keys,
    "olmo3": lambda c: base(c) | windows(c),
    "olmoe": lambda c: base(c) | {RMS: 1e-5},
    "deepseek_v2": deepseek_keys,
    "deepseek_v3": deepseek_keys,
    "glm4_moe_lite": deepseek_keys,
    "youtu": deepseek_keys,
    "gpt_oss": gpt_oss_keys,
    "llama4_text": llama4_keys,
    "qwen3_next": delta_keys,
    "qwen3_5_text": delta_keys,
    "qwen3_5_moe_text": delta_keys,
    "jamba": jamba_keys,
    "falcon_h1": falcon_h1_keys,
    "lfm2": lfm2_keys,
    "lfm2_moe": lfm2_keys,
    "nemotron_h": nemotron_h_keys,
}
