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

from tests.families.gguf import latest, newer, tensors
from tests.families.gguf.keys import METADATA, Config, Metadata, base, d_head, falcon_kv
from tests.families.gguf.tensors import permuted

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
    "seed_oss": MODEL_ARCH.SEED_OSS,
    "ministral3": MODEL_ARCH.MISTRAL3,
    "minimax_m2": MODEL_ARCH.MINIMAXM2,
    "phimoe": MODEL_ARCH.PHIMOE,
    "granitemoe": MODEL_ARCH.GRANITE_MOE,
    "granitemoeshared": MODEL_ARCH.GRANITE_MOE,
    "granitemoehybrid": MODEL_ARCH.GRANITE_HYBRID,
    "bamba": MODEL_ARCH.GRANITE_HYBRID,
    "glm": MODEL_ARCH.CHATGLM,
    "glm4": MODEL_ARCH.GLM4,
    "glm4_moe": MODEL_ARCH.GLM4_MOE,
    "solar_open": MODEL_ARCH.GLM4_MOE,
    "dots1": MODEL_ARCH.DOTS1,
    "arcee": MODEL_ARCH.ARCEE,
    "nemotron": MODEL_ARCH.NEMOTRON,
    "jais2": MODEL_ARCH.JAIS2,
    "apertus": MODEL_ARCH.APERTUS,
    "exaone4": MODEL_ARCH.EXAONE4,
    "ernie4_5_moe": MODEL_ARCH.ERNIE4_5_MOE,
    "hunyuan_v1_dense": MODEL_ARCH.HUNYUAN_DENSE,
    "hunyuan_v1_moe": MODEL_ARCH.HUNYUAN_MOE,
    "olmo3": MODEL_ARCH.OLMO2,
    "olmoe": MODEL_ARCH.OLMOE,
    "deepseek_v2": MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": MODEL_ARCH.DEEPSEEK2,
    "glm4_moe_lite": MODEL_ARCH.DEEPSEEK2,
    "youtu": MODEL_ARCH.DEEPSEEK2,
    "gpt_oss": MODEL_ARCH.GPT_OSS,
    "llama4_text": MODEL_ARCH.LLAMA4,
    "qwen3_next": MODEL_ARCH.QWEN3NEXT,
    "qwen3_5_text": MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": MODEL_ARCH.QWEN35MOE,
    "jamba": MODEL_ARCH.JAMBA,
    "falcon_h1": MODEL_ARCH.FALCON_H1,
    "lfm2": MODEL_ARCH.LFM2,
    "lfm2_moe": MODEL_ARCH.LFM2MOE,
    "nemotron_h": MODEL_ARCH.NEMOTRON_H_MOE,
    "exaone_moe": MODEL_ARCH.EXAONE_MOE,
    "afmoe": MODEL_ARCH.AFMOE,
    "dbrx": MODEL_ARCH.DBRX,
    "glm_moe_dsa": MODEL_ARCH.GLM_DSA,
    "mistral4": MODEL_ARCH.MISTRAL4,
    "minicpm3": MODEL_ARCH.MINICPM3,
    "mimo_v2_flash": MODEL_ARCH.MIMO2,
    "kimi_linear": MODEL_ARCH.KIMI_LINEAR,
    "modernbert": MODEL_ARCH.MODERN_BERT,
    "nomic_bert": MODEL_ARCH.NOMIC_BERT,
    "gemma4_text": MODEL_ARCH.GEMMA4,
    "gemma3n_text": MODEL_ARCH.GEMMA3N,
    "bert": MODEL_ARCH.BERT,
    "roberta": MODEL_ARCH.BERT,
    "distilbert": MODEL_ARCH.BERT,
    "eurobert": MODEL_ARCH.EUROBERT,
    "t5": MODEL_ARCH.T5,
    "mt5": MODEL_ARCH.T5,
    "umt5": MODEL_ARCH.T5,
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
    if config.get("use_bidirectional_attention"):
        arch = MODEL_ARCH.GEMMA_EMBEDDING
    name = gguf.MODEL_ARCH_NAMES[arch]
    keys = (METADATA | newer.METADATA | latest.METADATA).get(config["model_type"], base)(config)
    if config["model_type"] == "apertus":
        keys |= newer.curves(module.state_dict())
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
    n_layers = newer.n_layers(c)
    table = gguf.get_tensor_name_map(arch, n_layers)
    new = tensors.TENSORS.get(c["model_type"])
    changed = new or TENSORS.get(c["model_type"], unchanged)
    state = module.state_dict() if new is None else tensors.on_disk(module)
    if c.get("tie_word_embeddings") and not c.get(
        "is_encoder_decoder"
    ):  # T5's configs always say so
        state = {k: v for k, v in state.items() if k not in ("lm_head.weight", "embed_out.weight")}
    for ours, tensor in changed(state, c):
        own = ours if ours.startswith(("blk.", "rope_")) else None
        theirs = own or table.get_name(ours, try_suffixes=(".weight", ".bias"))
        assert theirs is not None, f"{arch.name} has no name for {ours}"
        yield theirs, tensor
    yield from rope_factors(c)


Tensors = Iterator[tuple[str, Tensor]]
State = dict[str, Tensor]


def unchanged(state: State, c: Config) -> Tensors:
    yield from state.items()


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
