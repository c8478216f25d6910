"""Decoders: the first ones, and those that most others are built like."""

from __future__ import annotations

from tests.families.zoo.options import (
    FALCON,
    GPT2,
    MOE,
    OPT,
    ROPE,
    Variant,
    llama_like,
)

DECODERS = [
    Variant("gpt2", "gpt2", GPT2),
    Variant("gpt2-untied-wide", "gpt2", GPT2 | {"n_inner": 31, "tie_word_embeddings": False}),
    Variant("gpt2-inverse-layer", "gpt2", GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    Variant("gptj", "gptj", GPT2 | {"rotary_dim": 6}),
    Variant(
        "gpt-neo",
        "gpt_neo",
        {
            "vocab_size": 37,
            "hidden_size": 24,
            "num_layers": 2,
            "num_heads": 3,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 3,
            "max_position_embeddings": 32,
        },
    ),
    llama_like("neox", "gpt_neox", num_key_value_heads=None, num_attention_heads=3),
    llama_like(
        "neox-sequential",
        "gpt_neox",
        num_attention_heads=3,
        use_parallel_residual=False,
        attention_bias=False,
        tie_word_embeddings=True,
        rope_parameters=ROPE | {"rope_type": "default", "partial_rotary_factor": 0.5},
    ),
    Variant("opt", "opt", OPT),
    Variant("opt-350m", "opt", OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    Variant(
        "opt-bare", "opt", OPT | {"layer_norm_elementwise_affine": False, "enable_bias": False}
    ),
    Variant(
        "bloom",
        "bloom",
        {"vocab_size": 37, "hidden_size": 24, "n_layer": 2, "n_head": 3},
    ),
    llama_like("llama", "llama"),
    llama_like(
        "llama-biased-tied", "llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    llama_like(
        "llama-free-head", "llama", head_dim=10, num_attention_heads=6, num_key_value_heads=3
    ),
    llama_like(
        "llama3-rope",
        "llama",
        max_position_embeddings=128,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 100.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    llama_like(
        "llama-linear-rope", "llama", rope_parameters=ROPE | {"rope_type": "linear", "factor": 3.0}
    ),
    llama_like(
        "llama-yarn",
        "llama",
        head_dim=12,
        max_position_embeddings=128,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    llama_like("mistral", "mistral", sliding_window=3, head_dim=8),
    llama_like("mixtral", "mixtral", num_local_experts=5, num_experts_per_tok=2),
    llama_like("qwen2", "qwen2"),
    llama_like(
        "qwen2-window", "qwen2", use_sliding_window=True, sliding_window=3, max_window_layers=1
    ),
    llama_like("qwen3", "qwen3", head_dim=10),
    llama_like(
        "qwen3-biased-tied", "qwen3", head_dim=8, attention_bias=True, tie_word_embeddings=True
    ),
    llama_like(
        "qwen2-moe",
        "qwen2_moe",
        **MOE,
        shared_expert_intermediate_size=14,
        mlp_only_layers=[1],
    ),
    llama_like("qwen3-moe", "qwen3_moe", **MOE, head_dim=8, norm_topk_prob=True),
    llama_like(
        "qwen3-moe-window",
        "qwen3_moe",
        **MOE,
        head_dim=8,
        decoder_sparse_step=2,
        use_sliding_window=True,
        sliding_window=3,
        max_window_layers=1,
    ),
    llama_like("gemma", "gemma", head_dim=10),
    llama_like("gemma-relu", "gemma", head_dim=8, hidden_act="relu", attention_bias=True),
    llama_like(
        "gemma2",
        "gemma2",
        head_dim=10,
        query_pre_attn_scalar=7,
        sliding_window=3,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=3.0,
    ),
    llama_like(
        "gemma3",
        "gemma3_text",
        head_dim=10,
        query_pre_attn_scalar=7,
        sliding_window=3,
        num_hidden_layers=3,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
    llama_like(
        "gemma3-both-ways",
        "gemma3_text",
        head_dim=8,
        sliding_window=4,
        num_hidden_layers=7,
        use_bidirectional_attention=True,
        attn_logit_softcapping=0.5,
    ),
    llama_like("phi", "phi", num_key_value_heads=None, num_attention_heads=3),
    llama_like(
        "phi-qk-norm", "phi", num_attention_heads=3, num_key_value_heads=3, qk_layernorm=True
    ),
    llama_like("phi3", "phi3", sliding_window=4),
    llama_like(
        "phi3-longrope",
        "phi3",
        hidden_size=32,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": [1.0, 1.1, 1.3, 1.7],
            "long_factor": [2.0, 2.0, 3.0, 4.0],
            "original_max_position_embeddings": 32,
        },
    ),
    Variant("falcon-7b", "falcon", FALCON),
    Variant(
        "falcon-new",
        "falcon",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    Variant(
        "falcon-new-one-norm",
        "falcon",
        FALCON
        | {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
    ),
    Variant(
        "falcon-rw",
        "falcon",
        FALCON | {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True},
        attention="sdpa",  # transformers' eager path adds Falcon's ALiBi twice
    ),
    llama_like("stablelm", "stablelm", hidden_size=32),
    llama_like(
        "stablelm-parallel",
        "stablelm",
        hidden_size=32,
        use_parallel_residual=True,
        use_qkv_bias=True,
        qk_layernorm=True,
    ),
    llama_like("olmo", "olmo"),
    llama_like("olmo-clipped", "olmo", clip_qkv=0.4, tie_word_embeddings=True),
    llama_like("olmo2", "olmo2"),
    llama_like("smollm3", "smollm3", num_hidden_layers=4),
    llama_like("cohere", "cohere", head_dim=6),
    llama_like("cohere-qk-norm", "cohere", use_qk_norm=True, attention_bias=True),
    llama_like("cohere2", "cohere2", sliding_window=3, num_hidden_layers=4),
]
