"""What a variant is, and the options that several have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LLAMA: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2: dict[str, Any] = {
    "vocab_size": 37,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_positions": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
}
MOE: dict[str, Any] = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 3,
}
OPT: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "ffn_dim": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 32,
    "word_embed_proj_dim": 24,
}
FALCON: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "ffn_hidden_size": 20,
    "max_position_embeddings": 64,
}
ROPE = {"rope_theta": 10_000.0}
TEMPERED = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 3,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 11,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
}
GRANITE: dict[str, Any] = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 1.7,
}
DBRX: dict[str, Any] = {
    "vocab_size": 37,
    "d_model": 24,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "attn_config": {"kv_n_heads": 2, "rope_theta": 500.0, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 11, "moe_num_experts": 5, "moe_top_k": 2},
}
GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "full", "full")],
    "sliding_window": 3,
    "head_dim": 6,
    "global_head_dim": 10,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 300.0,
            "partial_rotary_factor": 0.5,
            "factor": 1.5,
        },
    },
}
DEBERTA: dict[str, Any] = BERT | {
    "type_vocab_size": 0,
    "position_biased_input": False,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
}
DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "n_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
}


QWEN_NEXT: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "linear_attention", "full_attention"],
    "head_dim": 8,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 6,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "shared_expert_intermediate_size": 9,
}
MAMBA2: dict[str, Any] = {
    "num_hidden_layers": 3,
    "mamba_n_heads": 6,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 5,
    "mamba_chunk_size": 4,
}


@dataclass(frozen=True)
class Variant:
    """One configuration of one family."""

    name: str
    model_type: str
    options: dict[str, Any]
    masked: bool = False
    attention: str = "eager"
    unlisted: str = ""
    """The class of a model that transformers has and that its tables lack."""

    def __str__(self) -> str:
        return self.name


def llama_like(name: str, model_type: str, **options: Any) -> Variant:
    return Variant(name, model_type, LLAMA | options)
