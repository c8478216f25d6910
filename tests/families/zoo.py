"""Tiny random models of every family, with awkward sizes, built by transformers' own classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, PreTrainedModel

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


VARIANTS = [
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
    llama_like(
        "ministral",
        "ministral",
        sliding_window=3,
        head_dim=8,
        num_hidden_layers=3,
        layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    ),
    llama_like("ministral3", "ministral3", head_dim=8, rope_parameters=TEMPERED),
    llama_like("seed-oss", "seed_oss", head_dim=8, attention_out_bias=True),
    llama_like("cwm", "cwm", head_dim=8, sliding_window=3),
    llama_like(
        "minimax-m2",
        "minimax_m2",
        head_dim=8,
        num_local_experts=5,
        num_experts_per_tok=2,
        rotary_dim=4,
    ),
    llama_like(
        "phimoe",
        "phimoe",
        num_local_experts=5,
        lm_head_bias=True,
        attention_bias=True,
        router_jitter_noise=0.3,
    ),
    llama_like("granite", "granite", **GRANITE),
    llama_like("granite-moe", "granitemoe", **GRANITE, num_local_experts=5),
    llama_like(
        "granite-moe-shared",
        "granitemoeshared",
        **GRANITE,
        num_local_experts=5,
        shared_intermediate_size=14,
    ),
    llama_like("glm", "glm", head_dim=8),
    llama_like("glm4", "glm4", head_dim=8, rms_norm_eps=1e-5),
    llama_like("glm4-moe", "glm4_moe", **DEEPSEEK, use_qk_norm=True, attention_bias=True),
    llama_like("solar-open", "solar_open", **DEEPSEEK, head_dim=8),
    llama_like("dots1", "dots1", **DEEPSEEK),
    llama_like("starcoder2", "starcoder2", sliding_window=3),
    llama_like("arcee", "arcee"),
    llama_like("nemotron", "nemotron", head_dim=8),
    llama_like("jais2", "jais2"),
    llama_like("apertus", "apertus"),
    llama_like("nanochat", "nanochat"),
    llama_like(
        "exaone4", "exaone4", sliding_window=3, layer_types=["sliding_attention", "full_attention"]
    ),
    llama_like(
        "exaone4-global", "exaone4", sliding_window=None, layer_types=["full_attention"] * 2
    ),
    llama_like("ernie", "ernie4_5", head_dim=8, use_bias=True),
    llama_like("ernie-moe", "ernie4_5_moe", moe_num_experts=5, moe_k=2, moe_intermediate_size=12),
    llama_like(
        "hunyuan",
        "hunyuan_v1_dense",
        head_dim=8,
        rope_parameters=ROPE | {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0},
    ),
    llama_like("hunyuan-moe", "hunyuan_v1_moe", head_dim=8, num_experts=5, moe_topk=2),
    llama_like(
        "cohere2-moe",
        "cohere2_moe",
        head_dim=6,
        sliding_window=3,
        num_hidden_layers=3,
        num_experts=5,
        num_experts_per_tok=2,
        num_shared_experts=2,
        first_k_dense_replace=1,
        sliding_window_pattern=2,
        prefix_dense_intermediate_size=14,
    ),
    llama_like(
        "cohere2-moe-sigmoid",
        "cohere2_moe",
        head_dim=6,
        num_experts=5,
        num_experts_per_tok=2,
        expert_selection_fn="sigmoid",
        rms_norm_eps=1e-5,
    ),
    llama_like(
        "olmo3", "olmo3", sliding_window=3, layer_types=["sliding_attention", "full_attention"]
    ),
    llama_like("olmoe", "olmoe", num_experts=5, num_experts_per_tok=2),
    llama_like("flex-olmo", "flex_olmo", num_experts=5, num_experts_per_tok=2),
    Variant(
        "mpt",
        "mpt",
        {"vocab_size": 37, "d_model": 24, "n_layers": 2, "n_heads": 3, "max_seq_len": 64},
    ),
    Variant("gpt-bigcode", "gpt_bigcode", GPT2 | {"n_inner": 31}),
    Variant("gpt-bigcode-heads", "gpt_bigcode", GPT2 | {"multi_query": False}),
    Variant("codegen", "codegen", GPT2 | {"n_embd": 32, "n_head": 8, "rotary_dim": 2}),
    Variant(
        "xglm",
        "xglm",
        {
            "vocab_size": 37,
            "d_model": 24,
            "ffn_dim": 20,
            "num_layers": 2,
            "attention_heads": 3,
            "max_position_embeddings": 32,
        },
    ),
    llama_like(
        "deepseek-v2", "deepseek_v2", **LATENT, **DEEPSEEK, topk_method="group_limited_greedy"
    ),
    llama_like(
        "deepseek-v2-lite",
        "deepseek_v2",
        **LATENT | {"q_lora_rank": None},
        **DEEPSEEK,
        rope_parameters=YARN,
    ),
    llama_like(
        "deepseek-v3",
        "deepseek_v3",
        **LATENT,
        **DEEPSEEK,
        attention_bias=True,
        rope_parameters=YARN,
    ),
    llama_like("deepseek-v3-halves", "deepseek_v3", **LATENT, **DEEPSEEK, rope_interleave=False),
    llama_like(
        "deepseek-v32",
        "deepseek_v32",
        **LATENT,
        **DEEPSEEK,
        index_topk=64,
        index_head_dim=6,
        index_n_heads=2,
    ),
    llama_like("glm4-moe-lite", "glm4_moe_lite", **LATENT, **DEEPSEEK),
    llama_like(
        "gpt-oss",
        "gpt_oss",
        head_dim=8,
        sliding_window=3,
        num_local_experts=5,
        num_experts_per_tok=2,
        rope_parameters=YARN | {"truncate": False},
    ),
    llama_like(
        "llama4",
        "llama4_text",
        head_dim=8,
        num_hidden_layers=2,
        num_local_experts=5,
        num_experts_per_tok=2,
        intermediate_size_mlp=14,
        moe_layers=[1],
        no_rope_layers=[1, 0],
        floor_scale=3,
        attn_scale=0.5,
        attention_chunk_size=4,
        attention_bias=True,
    ),
    Variant("bert", "bert", BERT, masked=True),
    Variant("bert-untied", "bert", BERT | {"tie_word_embeddings": False}, masked=True),
    Variant("roberta", "roberta", BERT | {"pad_token_id": 1}, masked=True),
    Variant("xlm-roberta", "xlm-roberta", BERT | {"pad_token_id": 1}, masked=True),
    Variant("electra", "electra", BERT | {"embedding_size": 16}, masked=True),
    Variant("electra-as-wide", "electra", BERT | {"embedding_size": 24}, masked=True),
    Variant("albert", "albert", BERT | {"embedding_size": 16, "num_hidden_layers": 3}, masked=True),
    Variant(
        "albert-groups",
        "albert",
        BERT
        | {
            "embedding_size": 10,
            "num_hidden_layers": 3,
            "num_hidden_groups": 2,
            "inner_group_num": 2,
        },
        masked=True,
    ),
    Variant("mpnet", "mpnet", BERT | {"pad_token_id": 1}, masked=True),
    Variant(
        "deberta-v2",
        "deberta-v2",
        DEBERTA
        | {"type_vocab_size": 2, "position_biased_input": True, "max_relative_positions": 4},
        masked=True,
    ),
    Variant(
        "deberta-v3",
        "deberta-v2",
        DEBERTA
        | {
            "position_buckets": 4,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "legacy": False,
        },
        masked=True,
    ),
    Variant("deberta-content", "deberta-v2", DEBERTA | {"pos_att_type": ["c2p"]}, masked=True),
    Variant(
        "eurobert",
        "eurobert",
        LLAMA | {"attention_bias": True, "mlp_bias": True},
        masked=True,
    ),
    Variant(
        "distilbert",
        "distilbert",
        {
            "vocab_size": 37,
            "dim": 24,
            "n_layers": 2,
            "n_heads": 3,
            "hidden_dim": 20,
            "max_position_embeddings": 32,
        },
        masked=True,
    ),
    Variant(
        "modernbert",
        "modernbert",
        BERT | {"num_hidden_layers": 4, "local_attention": 4, "hidden_size": 24, "pad_token_id": 0},
        masked=True,
    ),
    Variant(
        "modernbert-biased",
        "modernbert",
        BERT | {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "pad_token_id": 0},
        masked=True,
    ),
    llama_like("qwen3-next", "qwen3_next", **QWEN_NEXT | MOE),
    llama_like("qwen3.5", "qwen3_5_text", **QWEN_NEXT | {"tie_word_embeddings": True}),
    llama_like("qwen3.5-moe", "qwen3_5_moe_text", **QWEN_NEXT | MOE),
    llama_like(
        "granite4",
        "granitemoehybrid",
        **GRANITE | MAMBA2 | {"num_local_experts": 4, "shared_intermediate_size": 9},
        layer_types=["full_attention", "linear_attention", "full_attention"],
    ),
    llama_like(
        "granite4-dense",
        "granitemoehybrid",
        **GRANITE | MAMBA2 | {"num_local_experts": 0, "shared_intermediate_size": 9},
        layer_types=["full_attention", "linear_attention", "full_attention"],
        position_embedding_type="rope",
    ),
    llama_like(
        "jamba",
        "jamba",
        num_hidden_layers=4,
        attn_layer_period=3,
        attn_layer_offset=0,
        num_experts=4,
        mamba_d_state=5,
        mamba_dt_rank=6,
    ),
    llama_like("bamba", "bamba", **MAMBA2, attn_layer_indices=[0, 2]),
    llama_like(
        "falcon-h1",
        "falcon_h1",
        **MAMBA2 | {"num_hidden_layers": 2},
        mamba_d_ssm=48,
        lm_head_multiplier=0.6,
        embedding_multiplier=3.0,
        mlp_multipliers=[0.7, 1.4],
        key_multiplier=0.5,
        attention_in_multiplier=1.3,
        attention_out_multiplier=0.8,
        ssm_multipliers=[0.9, 1.1, 0.8, 1.2, 0.7],
        ssm_in_multiplier=1.5,
        ssm_out_multiplier=0.6,
        mamba_rms_norm=True,
    ),
    llama_like(
        "lfm2",
        "lfm2",
        num_hidden_layers=3,
        block_multiple_of=4,
        layer_types=["full_attention", "conv", "full_attention"],
    ),
    llama_like(
        "lfm2-moe",
        "lfm2_moe",
        **MOE,
        num_dense_layers=1,
        layer_types=["full_attention", "conv", "full_attention"],
    ),
    llama_like(
        "nemotron-h",
        "nemotron_h",
        layers_block_type=["attention", "mamba", "mlp", "moe", "attention"],
        head_dim=7,
        ssm_state_size=5,
        mamba_num_heads=6,
        mamba_head_dim=4,
        n_groups=2,
        chunk_size=4,
        n_routed_experts=6,
        moe_intermediate_size=12,
        moe_shared_expert_intermediate_size=9,
        n_group=3,
        topk_group=2,
        routed_scaling_factor=1.5,
    ),
    llama_like(
        "olmo-hybrid",
        "olmo_hybrid",
        **{k: v for k, v in QWEN_NEXT.items() if k != "head_dim"},
    ),
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


@cache
def build(name: str) -> PreTrainedModel:
    """The model of the variant of this name."""
    return make(find(name))


def find(name: str) -> Variant:
    """The variant of this name."""
    return next(v for v in VARIANTS if v.name == name)


def class_of(variant: Variant) -> Any:
    """What makes a variant's model, by transformers' tables or by name."""
    if variant.unlisted:
        return getattr(transformers, variant.unlisted)
    return AutoModelForMaskedLM if variant.masked else AutoModelForCausalLM


def make(variant: Variant) -> PreTrainedModel:
    """The model of a variant: every parameter random, gains and biases included."""
    config = AutoConfig.for_model(variant.model_type, **variant.options)
    torch.manual_seed(0)
    made_by = class_of(variant)
    make_class = made_by._from_config if variant.unlisted else made_by.from_config
    return randomise(make_class(config, attn_implementation=variant.attention).eval())


def randomise(model: PreTrainedModel) -> PreTrainedModel:
    """Every parameter random, gains and biases included."""
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(noise * 0.3 if parameter.ndim > 1 else parameter + noise * 0.3)
    return model
