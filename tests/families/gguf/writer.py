"""Tiny transformers models as GGUF files, written as llama.cpp's converter writes them.

Names and keys come from the `gguf` package's own tables, so that they do not agree with lexray's by
construction. Which keys an architecture gets, and what happens to its tensors, was read in
https://github.com/ggml-org/llama.cpp (`conversion/`, formerly `convert_hf_to_gguf.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import MODEL_ARCH, Keys
from torch import Tensor
from transformers import PreTrainedModel

Config = dict[str, Any]
Metadata = dict[str, Any]

ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA,
    "mistral": MODEL_ARCH.LLAMA,
    "mixtral": MODEL_ARCH.LLAMA,
    "qwen2": MODEL_ARCH.QWEN2,
    "qwen2_moe": MODEL_ARCH.QWEN2MOE,
    "qwen3": MODEL_ARCH.QWEN3,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
    "gemma": MODEL_ARCH.GEMMA,
    "gemma2": MODEL_ARCH.GEMMA2,
    "gemma3_text": MODEL_ARCH.GEMMA3,
    "phi": MODEL_ARCH.PHI2,
    "phi3": MODEL_ARCH.PHI3,
    "gpt2": MODEL_ARCH.GPT2,
    "gpt_neox": MODEL_ARCH.GPTNEOX,
    "bloom": MODEL_ARCH.BLOOM,
    "falcon": MODEL_ARCH.FALCON,
    "stablelm": MODEL_ARCH.STABLELM,
    "olmo": MODEL_ARCH.OLMO,
    "olmo2": MODEL_ARCH.OLMO2,
    "smollm3": MODEL_ARCH.SMOLLM3,
    "cohere": MODEL_ARCH.COMMAND_R,
    "cohere2": MODEL_ARCH.COHERE2,
    "granite": MODEL_ARCH.GRANITE,
    "starcoder2": MODEL_ARCH.STARCODER2,
    "ernie4_5": MODEL_ARCH.ERNIE4_5,
    "mpt": MODEL_ARCH.MPT,
    "gpt_bigcode": MODEL_ARCH.STARCODER,
}


@dataclass
class Converted:
    """What will be in the file; tests spoil it before they save it."""

    architecture: str
    metadata: Metadata
    tensors: dict[str, Tensor]

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def save(self, path: Path, kind: gguf.GGMLQuantizationType | None = None) -> Path:
        """Writes F32, or matrices as `kind` where their rows fill whole blocks."""
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            add(writer, key, value)
        for name, tensor in self.tensors.items():
            data = tensor.detach().float().contiguous().numpy()
            if kind is None or not quantisable(tensor, kind):
                writer.add_tensor(name, data)
            else:
                writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def quantisable(tensor: Tensor, kind: gguf.GGMLQuantizationType) -> bool:
    """llama.cpp leaves vectors as they are, and rows that are no whole number of blocks."""
    return tensor.ndim > 1 and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def convert(module: PreTrainedModel) -> Converted:
    """A model as llama.cpp's converter would write it."""
    config = module.config.to_dict()
    arch = ARCHITECTURES[config["model_type"]]
    name = gguf.MODEL_ARCH_NAMES[arch]
    keys = METADATA.get(config["model_type"], base)(config)
    metadata = {key.format(arch=name): value for key, value in keys.items() if value is not None}
    return Converted(name, metadata | tokens(config), dict(renamed(module, arch, config)))


def tokens(c: Config) -> Metadata:
    n = c["vocab_size"]
    return {
        Keys.Tokenizer.MODEL: "gpt2",
        Keys.Tokenizer.PRE: "default",
        Keys.Tokenizer.LIST: [f"token{i}" for i in range(n)],
        Keys.Tokenizer.TOKEN_TYPE: [1] * n,
    }


def renamed(module: PreTrainedModel, arch: MODEL_ARCH, c: Config) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under its GGUF name, changed as its architecture asks for."""
    n_layers = next(c[k] for k in ("num_hidden_layers", "n_layer", "n_layers") if c.get(k))
    table = gguf.get_tensor_name_map(arch, n_layers)
    changed = TENSORS.get(c["model_type"], unchanged)
    state = module.state_dict()
    if c["tie_word_embeddings"]:
        state = {k: v for k, v in state.items() if k not in ("lm_head.weight", "embed_out.weight")}
    for ours, tensor in changed(state, c):
        theirs = table.get_name(ours, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, f"{arch.name} has no name for {ours}"
        yield theirs, tensor
    yield from rope_factors(c)


Tensors = Iterator[tuple[str, Tensor]]
State = dict[str, Tensor]


def unchanged(state: State, c: Config) -> Tensors:
    yield from state.items()


def permuted(tensor: Tensor, n_heads: int) -> Tensor:
    """From halves (the first and second of each rotary pair far apart) to neighbours."""
    halves = tensor.reshape(n_heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def llama(state: State, c: Config) -> Tensors:
    for name, tensor in experts(state, c):
        if ".q_proj." in name:
            tensor = permuted(tensor, c["num_attention_heads"])
        if ".k_proj." in name:
            tensor = permuted(tensor, c["num_key_value_heads"])
        yield name, tensor


def experts(state: State, c: Config) -> Tensors:
    """transformers 5 already stacks the experts, but gate and up in one tensor."""
    for name, tensor in state.items():
        stem = name.rpartition(".")[0]
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            yield f"{stem}.gate_proj.weight", gate
            yield f"{stem}.up_proj.weight", up
        elif name.endswith("experts.down_proj"):
            yield f"{stem}.down_proj.weight", tensor
        else:
            yield name, tensor


def gemma(state: State, c: Config) -> Tensors:
    for name, tensor in state.items():
        yield name, tensor + 1 if name.endswith("norm.weight") else tensor


def gpt2(state: State, c: Config) -> Tensors:
    conv = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
    for name, tensor in state.items():
        yield name, tensor.T if name.endswith(conv) else tensor


def grouped(state: State, c: Config) -> Tensors:
    """Fused queries, keys and values: from group by group to all, all, all."""
    n = c.get("num_attention_heads") or c["n_head"]
    n_kv = falcon_kv(c) if c["model_type"] == "falcon" else n
    for name, tensor in state.items():
        if c["model_type"] == "bloom":
            name = name.removeprefix("transformer.")
        if "query_key_value" in name:
            size = c["hidden_size"] // n
            groups = tensor.reshape(n_kv, n // n_kv + 2, size, *tensor.shape[1:])
            parts = groups[:, :-2], groups[:, -2], groups[:, -1]
            tensor = torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])
        yield name, tensor


def falcon_kv(c: Config) -> int:
    return int(c["num_kv_heads"]) if c["new_decoder_architecture"] else 1


def stablelm(state: State, c: Config) -> Tensors:
    """The norms of a layer's query (and key) heads become one tensor."""
    norms: dict[str, list[Tensor]] = {}
    for name, tensor in state.items():
        if found := re.fullmatch(r"(.*_layernorm)\.norms\.(\d+)\.weight", name):
            assert len(norms.setdefault(found[1], [])) == int(found[2])
            norms[found[1]].append(tensor)
        else:
            yield name, tensor
    for stem, parts in norms.items():
        yield f"{stem}.weight", torch.stack(parts)


TENSORS: dict[str, Callable[[State, Config], Tensors]] = {
    "llama": llama,
    "mistral": llama,
    "mixtral": llama,
    "olmo": llama,
    "smollm3": llama,
    "granite": llama,
    "qwen2_moe": experts,
    "qwen3_moe": experts,
    "gemma": gemma,
    "gemma2": gemma,
    "gemma3_text": gemma,
    "gpt2": gpt2,
    "gpt_neox": grouped,
    "bloom": grouped,
    "falcon": grouped,
    "stablelm": stablelm,
}


def rope_factors(c: Config) -> Tensors:
    """Llama 3's stretched frequencies and Phi-3's two lists of factors are tensors, not keys."""
    rope = c.get("rope_parameters") or {}
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", torch.tensor([llama3_factor(f, rope) for f in bare(c, rope)])
    if "long_factor" in rope:
        yield "rope_factors_long.weight", torch.tensor(rope["long_factor"])
        yield "rope_factors_short.weight", torch.tensor(rope["short_factor"])


def bare(c: Config, rope: Config) -> list[float]:
    size = d_head(c)
    return [rope["rope_theta"] ** (-i / size) for i in range(0, size, 2)]


def llama3_factor(frequency: float, rope: Config) -> float:
    wavelength, original = 2 * math.pi / frequency, rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    if wavelength < original / high:
        return 1.0
    if wavelength > original / low:
        return float(factor)
    smooth = (original / wavelength - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)


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
