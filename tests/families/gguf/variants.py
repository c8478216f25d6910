"""What is written as GGUF: variants of the zoo, with options that a file can carry."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType
from transformers import PreTrainedModel

from lexray.checkpoint.gguf.file import GGUFCheckpoint
from lexray.families.gguf.names import hf_named
from lexray.model.model import Model
from tests.families import zoo
from tests.families.gguf.writer import Converted, convert
from tests.families.zoo import Variant
from tests.families.zoo.options import DBRX, TEMPERED, YARN

Q8_0 = GGMLQuantizationType.Q8_0


def stored(name: str, rename: str | None = None, **options: Any) -> Variant:
    """A variant of the zoo, with options that a GGUF file cannot carry replaced."""
    variant = zoo.find(name)
    return replace(variant, name=rename or name, options=variant.options | options)


GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}
GEMMA4_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {
        "rope_type": "proportional",
        "rope_theta": 300.0,
        "partial_rotary_factor": 0.5,
    },
}
EVEN = {"mscale": 0.9, "mscale_all_dim": 0.9}
GPT_OSS_ROPE = {key: value for key, value in YARN.items() if "mscale" not in key}
GPT_OSS_ROPE |= {"truncate": False}
FACTORS = (
    *("lm_head_multiplier", "embedding_multiplier", "key_multiplier"),
    *("attention_in_multiplier", "attention_out_multiplier"),
    *("ssm_in_multiplier", "ssm_out_multiplier"),
)
EACH = {"mlp_multipliers": [1.0, 1.0], "ssm_multipliers": [1.0] * 5}
VARIANTS = [
    stored("llama"),
    stored("llama-biased-tied"),
    stored("llama-free-head"),
    stored("llama3-rope"),
    stored("llama-linear-rope"),
    stored("llama-yarn"),
    stored("mistral", sliding_window=None),
    stored("mixtral"),
    stored("qwen2"),
    stored("qwen2-moe", mlp_only_layers=[]),
    stored("qwen3"),
    stored("qwen3-biased-tied"),
    stored("qwen3-moe"),
    stored("gemma"),
    stored("gemma2", query_pre_attn_scalar=10),
    stored(
        "gemma3",
        query_pre_attn_scalar=10,
        num_hidden_layers=7,
        layer_types=None,
        rope_parameters=GEMMA3_ROPE,
    ),
    stored("phi"),
    stored("phi3"),
    stored("phi3", "phi4", hidden_size=32, sliding_window=None, partial_rotary_factor=0.75),
    stored("phi3-longrope"),
    stored("gpt2"),
    stored("gpt2-untied-wide"),
    stored("neox"),
    stored("neox-sequential"),
    stored("bloom"),
    stored("falcon-7b"),
    stored("falcon-new"),
    stored("falcon-new-one-norm"),
    stored("stablelm"),
    stored("stablelm-parallel"),
    stored("olmo"),
    stored("olmo-clipped"),
    stored("olmo2"),
    stored("smollm3"),
    stored("cohere"),
    stored("cohere-qk-norm"),
    stored("cohere2"),
    stored("granite"),
    stored("starcoder2"),
    stored("ernie"),
    stored("mpt"),
    stored("gpt-bigcode"),
    stored("seed-oss"),
    stored("ministral3"),
    stored("minimax-m2"),
    stored("phimoe", router_jitter_noise=0.01, sliding_window=None),
    stored("granite-moe"),
    stored("granite-moe-shared"),
    stored("granite4"),
    stored("granite4-dense", position_embedding_type=None),
    stored("bamba", hidden_size=32, mamba_n_heads=8),
    stored("glm", hidden_size=32, rms_norm_eps=1e-5, max_position_embeddings=32),
    stored("glm4"),
    stored("glm4-moe"),
    stored("solar-open", rope_parameters={"rope_theta": 1e6, "partial_rotary_factor": 1.0}),
    stored("dots1"),
    stored("arcee"),
    stored("nemotron", hidden_size=32),
    stored("jais2"),
    stored("apertus"),
    stored("exaone4"),
    stored("exaone4-global"),
    stored("ernie-moe"),
    stored("hunyuan"),
    stored("hunyuan-moe"),
    stored("olmo3"),
    stored("olmo3", "olmo3-yarn", rope_parameters=YARN),
    stored("olmoe"),
    stored("deepseek-v2"),
    stored("deepseek-v2-lite", rope_parameters=YARN | EVEN, n_group=1, topk_group=1),
    stored("deepseek-v3", rope_parameters=YARN | EVEN),
    stored("glm4-moe-lite"),
    stored("youtu"),
    stored("gpt-oss", rope_parameters=GPT_OSS_ROPE),
    stored(
        "llama4",
        num_hidden_layers=4,
        moe_layers=None,
        interleave_moe_layer_step=2,
        no_rope_layers=None,
        floor_scale=8192,
        attn_scale=0.1,
        attention_chunk_size=8192,
    ),
    stored("qwen3-next"),
    stored("qwen3.5"),
    stored("qwen3.5-moe"),
    stored("jamba"),
    stored("falcon-h1", **dict.fromkeys(FACTORS, 1.0), **EACH),
    stored("lfm2"),
    stored("lfm2-moe"),
    stored("nemotron-h", head_dim=8),
    stored("exaone-moe"),
    stored("afmoe", num_hidden_layers=5, global_attn_every_n_layers=4),
    stored("dbrx", attn_config=DBRX["attn_config"] | {"clip_qkv": 0.4}),
    stored("glm5"),
    stored(
        "mistral4",
        rope_parameters=TEMPERED | {"partial_rotary_factor": 0.4, "llama_4_scaling_beta": 0.0},
    ),
    stored("minicpm3", v_head_dim=None, scale_depth=1.4, dim_model_base=256),
    stored("gemma3n", altup_num_inputs=4),  # llama.cpp knows four streams only
    stored("gemma3n-even", altup_num_inputs=4, altup_correct_scale=True),
    stored("kimi-linear"),
    stored(
        "kimi-linear",
        "kimi-linear-first",
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ),
    stored("gemma4", rope_parameters=GEMMA4_ROPE),
    stored("gemma4-moe", rope_parameters=GEMMA4_ROPE),
    stored("mimo2", routed_scaling_factor=1.0, attention_value_scale=0.6),
]
BY_NAME = {variant.name: variant for variant in VARIANTS}


@cache
def build(name: str) -> PreTrainedModel:
    return zoo.make(BY_NAME[name])


def converted(name: str) -> Converted:
    return convert(build(name))


def opened(file: Path) -> Model:
    return Model(hf_named(GGUFCheckpoint(file))).view("raw")


def squeezed(whole: Converted) -> Converted:
    """As older converters wrote it: matrices of one row became vectors."""
    tensors = {
        name: tensor[0] if len(tensor) == 1 else tensor for name, tensor in whole.tensors.items()
    }
    return replace(whole, tensors=tensors)


def called(whole: Converted, architecture: str) -> Converted:
    """The same file under another architecture's name."""
    prefix, keys = f"{whole.architecture}.", whole.metadata.items()
    renamed = {key.replace(prefix, f"{architecture}.", 1): value for key, value in keys}
    return Converted(architecture, renamed, whole.tensors)


def wide(name: str, **options: Any) -> PreTrainedModel:
    """A model whose rows fill whole blocks of 32 weights."""
    return zoo.make(stored(name, **options))


LLAMA = {"hidden_size": 128, "intermediate_size": 64, "num_key_value_heads": 2}
