"""Decoders that came last."""

from __future__ import annotations

from tests.families.zoo.options import (
    DEEPSEEK,
    GRANITE,
    LATENT,
    LLAMA,
    MOE,
    TEMPERED,
    Variant,
    llama_like,
)

LATEST = [
    Variant(
        "mistral4",
        "mistral4",
        LLAMA | LATENT | DEEPSEEK | {"rope_parameters": TEMPERED | {"partial_rotary_factor": 0.4}},
        unlisted="Mistral4ForCausalLM",
    ),
    llama_like("internlm3", "internlm3", qkv_bias=True, bias=True),
    llama_like("iquestcoder", "iquestcoder"),
    llama_like("youtu", "youtu", **LATENT, pad_token_id=None),  # transformers zeroes its row
    llama_like("helium", "helium", head_dim=6),
    llama_like("hyperclovax", "hyperclovax", **GRANITE),
    llama_like("hyperclovax-plain", "hyperclovax", use_post_norm=False),
    llama_like("vaultgemma", "vaultgemma", head_dim=8, query_pre_attn_scalar=5, sliding_window=3),
    llama_like(
        "mellum",
        "mellum",
        **MOE,
        head_dim=8,
        sliding_window=3,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
        mlp_layer_types=["dense", "sparse", "sparse"],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
]
