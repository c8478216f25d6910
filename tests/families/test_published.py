"""Configs as they are published: each is read, and names tensors that its file has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest

from lexray.families import Linear, Norm, find_family
from lexray.model.config import text_config


@dataclass(frozen=True)
class Published:
    """The keys of a config.json that matter, some names of its file, and what to find."""

    config: dict[str, Any]
    globals: str
    """Names outside the layers, with blanks between them."""
    layer: str
    """What all names of a layer begin with, {n} being its number."""
    names: str
    """Names of each layer; `a+` is `a.weight` and `a.bias`, `a` is `a.weight`."""
    sizes: tuple[int, ...]
    """d_model, n_heads, n_kv_heads, d_head, d_mlp, d_vocab, layers."""
    traits: dict[str, Any]

    def file(self) -> set[str]:
        return {
            *(name for word in self.globals.split() for name in expand(word)),
            *(
                self.layer.format(n=n) + name
                for n in range(self.sizes[-1])
                for word in self.names.split()
                for name in expand(word)
            ),
        }


def expand(word: str) -> list[str]:
    if word.endswith("!"):
        return [word[:-1]]
    stem = word.removesuffix("+")
    return [f"{stem}.weight", *([f"{stem}.bias"] if word.endswith("+") else [])]


LLAMA_NAMES = (
    "input_layernorm post_attention_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj "
    "self_attn.o_proj mlp.up_proj mlp.gate_proj mlp.down_proj"
)
GEMMA2_NAMES = f"{LLAMA_NAMES} pre_feedforward_layernorm post_feedforward_layernorm"
LLAMA_GLOBALS = "model.embed_tokens model.norm lm_head"

PUBLISHED = {
    "gpt2": Published(
        {
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-05,
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        "wte wpe ln_f+",
        "h.{n}.",
        "ln_1+ ln_2+ attn.c_attn+ attn.c_proj+ mlp.c_fc+ mlp.c_proj+ attn.bias!",
        (768, 12, 12, 64, 3072, 50257, 12),
        {"tied": True, "n_ctx": 1024, "scale": 0.125, "window": None, "rotary": None},
    ),
    "pythia-160m": Published(
        {
            "hidden_act": "gelu",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 2048,
            "model_type": "gpt_neox",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.25,
            "tie_word_embeddings": False,
            "use_parallel_residual": True,
            "vocab_size": 50304,
        },
        "gpt_neox.embed_in gpt_neox.final_layer_norm+ embed_out",
        "gpt_neox.layers.{n}.",
        "input_layernorm+ post_attention_layernorm+ attention.query_key_value+ attention.dense+ "
        "mlp.dense_h_to_4h+ mlp.dense_4h_to_h+ attention.bias! attention.rotary_emb.inv_freq!",
        (768, 12, 12, 64, 3072, 50304, 12),
        {"tied": False, "parallel": True, "n_rotary": 8},
    ),
    "bloom-560m": Published(
        {
            "apply_residual_connection_post_layernorm": False,
            "layer_norm_epsilon": 1e-05,
            "model_type": "bloom",
            "n_embed": 1024,
            "n_inner": None,
            "n_layer": 24,
            "num_attention_heads": 16,
            "offset_alibi": 100,
            "seq_length": 2048,
            "vocab_size": 250880,
        },
        "word_embeddings word_embeddings_layernorm+ ln_f+",
        "h.{n}.",
        "input_layernorm+ post_attention_layernorm+ self_attention.query_key_value+ "
        "self_attention.dense+ mlp.dense_h_to_4h+ mlp.dense_4h_to_h+",
        (1024, 16, 16, 64, 4096, 250880, 24),
        {"tied": True, "alibi": 1.0, "rotary": None, "n_ctx": 2048},
    ),
    "falcon-7b": Published(
        {
            "alibi": False,
            "bias": False,
            "hidden_size": 4544,
            "layer_norm_epsilon": 1e-05,
            "model_type": "falcon",
            "multi_query": True,
            "new_decoder_architecture": False,
            "num_attention_heads": 71,
            "num_hidden_layers": 32,
            "parallel_attn": True,
            "vocab_size": 65024,
        },
        "transformer.word_embeddings transformer.ln_f+ lm_head",
        "transformer.h.{n}.",
        "input_layernorm+ self_attention.query_key_value self_attention.dense mlp.dense_h_to_4h "
        "mlp.dense_4h_to_h",
        (4544, 71, 1, 64, 18176, 65024, 32),
        {"tied": True, "parallel": True, "n_rotary": 32},
    ),
    "falcon-40b": Published(
        {
            "alibi": False,
            "bias": False,
            "hidden_size": 8192,
            "layer_norm_epsilon": 1e-05,
            "model_type": "falcon",
            "new_decoder_architecture": True,
            "num_attention_heads": 128,
            "num_hidden_layers": 60,
            "num_kv_heads": 8,
            "parallel_attn": True,
            "vocab_size": 65024,
        },
        "transformer.word_embeddings transformer.ln_f+ lm_head",
        "transformer.h.{n}.",
        "ln_attn+ ln_mlp+ self_attention.query_key_value self_attention.dense mlp.dense_h_to_4h "
        "mlp.dense_4h_to_h",
        (8192, 128, 8, 64, 32768, 65024, 60),
        {"parallel": True},
    ),
    "gemma-7b": Published(
        {
            "head_dim": 256,
            "hidden_act": "gelu",
            "hidden_activation": None,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "max_position_embeddings": 8192,
            "model_type": "gemma",
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
            "num_key_value_heads": 16,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 10000.0,
            "vocab_size": 256000,
        },
        "model.embed_tokens model.norm",
        "model.layers.{n}.",
        LLAMA_NAMES,
        (3072, 16, 16, 256, 24576, 256000, 28),
        {"tied": True, "activation": "gelu_pytorch_tanh", "scale": 1 / 16, "logit_cap": None},
    ),
    "gemma-2-2b": Published(
        {
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "max_position_embeddings": 8192,
            "model_type": "gemma2",
            "num_attention_heads": 8,
            "num_hidden_layers": 26,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "vocab_size": 256000,
        },
        "model.embed_tokens model.norm",
        "model.layers.{n}.",
        GEMMA2_NAMES,
        (2304, 8, 4, 256, 9216, 256000, 26),
        {"cap": 50.0, "logit_cap": 30.0, "windows": [4096, None] * 13, "scale": 1 / 16},
    ),
    "gemma-3-4b": Published(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "model_type": "gemma3_text",
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
        },
        "language_model.model.embed_tokens language_model.model.norm "
        "vision_tower.vision_model.post_layernorm+",
        "language_model.model.layers.{n}.",
        f"{GEMMA2_NAMES} self_attn.q_norm self_attn.k_norm",
        (2560, 8, 4, 256, 10240, 262208, 34),
        {
            "tied": True,
            "cap": None,
            "logit_cap": None,
            "windows": ([1024] * 5 + [None]) * 5 + [1024] * 4,
        },
    ),
    "Llama-2-7b": Published(
        {
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "pretraining_tp": 1,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            "vocab_size": 32000,
        },
        LLAMA_GLOBALS,
        "model.layers.{n}.",
        f"{LLAMA_NAMES} self_attn.rotary_emb.inv_freq!",
        (4096, 32, 32, 128, 11008, 32000, 32),
        {"tied": False, "window": None, "n_rotary": 64, "n_ctx": 4096},
    ),
    "Mistral-7B-v0.1": Published(
        {
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "model_type": "mistral",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 10000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
            "vocab_size": 32000,
        },
        LLAMA_GLOBALS,
        "model.layers.{n}.",
        LLAMA_NAMES,
        (4096, 32, 8, 128, 14336, 32000, 32),
        {"window": 4096},
    ),
    "Mistral-7B-v0.3": Published(
        {
            "hidden_act": "silu",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "max_position_embeddings": 32768,
            "model_type": "mistral",
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1000000.0,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "vocab_size": 32768,
        },
        LLAMA_GLOBALS,
        "model.layers.{n}.",
        LLAMA_NAMES,
        (4096, 32, 8, 128, 14336, 32768, 32),
        {"window": None},
    ),
    "Mistral-Small-3.1-24B": Published(
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "text_config": {
                "head_dim": 128,
                "hidden_act": "silu",
                "hidden_size": 5120,
                "intermediate_size": 32768,
                "max_position_embeddings": 131072,
                "model_type": "mistral",
                "num_attention_heads": 32,
                "num_hidden_layers": 40,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-05,
                "rope_theta": 1000000000.0,
                "sliding_window": None,
                "vocab_size": 131072,
            },
            "vision_config": {"hidden_size": 1024, "model_type": "pixtral"},
        },
        "language_model.model.embed_tokens language_model.model.norm language_model.lm_head "
        "vision_tower.ln_pre",
        "language_model.model.layers.{n}.",
        LLAMA_NAMES,
        (5120, 32, 8, 128, 32768, 131072, 40),
        {"tied": False, "window": None},
    ),
    "Qwen2.5-0.5B": Published(
        {
            "hidden_act": "silu",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "max_position_embeddings": 32768,
            "max_window_layers": 24,
            "model_type": "qwen2",
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "tie_word_embeddings": True,
            "use_mrope": False,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
        "model.embed_tokens model.norm",
        "model.layers.{n}.",
        LLAMA_NAMES.replace("_proj ", "_proj+ ", 3),
        (896, 14, 2, 64, 4864, 151936, 24),
        {"tied": True, "window": None},
    ),
    "bert-base-uncased": Published(
        {
            "gradient_checkpointing": False,
            "hidden_act": "gelu",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "bert",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 0,
            "type_vocab_size": 2,
            "vocab_size": 30522,
        },
        "bert.embeddings.word_embeddings bert.embeddings.position_embeddings "
        "bert.embeddings.token_type_embeddings bert.embeddings.LayerNorm.gamma! "
        "bert.embeddings.LayerNorm.beta! cls.predictions.transform.dense+ "
        "cls.predictions.transform.LayerNorm.gamma! cls.predictions.transform.LayerNorm.beta! "
        "cls.predictions.bias! cls.seq_relationship+ bert.pooler.dense+",
        "bert.encoder.layer.{n}.",
        "attention.self.query+ attention.self.key+ attention.self.value+ attention.output.dense+ "
        "attention.output.LayerNorm.gamma! attention.output.LayerNorm.beta! intermediate.dense+ "
        "output.dense+ output.LayerNorm.gamma! output.LayerNorm.beta!",
        (768, 12, 12, 64, 3072, 30522, 12),
        {"tied": True, "causal": False},
    ),
}


def referred(part: Any) -> Iterator[str]:
    """Every tensor that an architecture speaks of."""
    if isinstance(part, Linear):
        yield from (name for name in (part.weight, part.bias) if name)
    elif isinstance(part, Norm):
        yield from (name for name in (part.gain, part.bias) if name)
    elif isinstance(part, tuple):
        for item in part:
            yield from referred(item)
    elif is_dataclass(part):
        for field in fields(part):
            value = getattr(part, field.name)
            if field.name in ("embed", "unembed", "unembed_bias", "positions", "token_types"):
                yield from [value] if value else []
            else:
                yield from referred(value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name: str) -> None:
    published = PUBLISHED[name]
    config, file = text_config(published.config), published.file()
    a = find_family(config).architecture(config, file)
    found = (a.d_model, a.n_heads, a.n_kv_heads, a.d_head, a.d_mlp, a.d_vocab, len(a.blocks))
    assert found == published.sizes
    first = a.blocks[0]
    rotary = first.attention.rotary
    traits = {
        "tied": a.tied,
        "n_ctx": a.n_ctx,
        "logit_cap": a.logit_cap,
        "causal": a.causal,
        "parallel": first.parallel,
        "scale": first.attention.scale,
        "window": first.attention.window,
        "windows": [block.attention.window for block in a.blocks],
        "cap": first.attention.cap,
        "alibi": first.attention.alibi,
        "rotary": rotary,
        "n_rotary": rotary and len(rotary.frequencies),
        "activation": getattr(first.ff, "activation", None),
    }
    assert {key: traits[key] for key in published.traits} == published.traits
    # no tensor is spoken of that the file lacks, and (but for leftovers) none is overlooked
    used = set(referred(a))
    assert used <= file
    leftovers = ("attn.bias", "attention.bias", "inv_freq", "vision_tower.", "pooler", "cls.seq")
    unused = {name for name in file - used if not any(word in name for word in leftovers)}
    assert unused <= ({"lm_head.weight"} if a.tied else set())
