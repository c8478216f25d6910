"""What llama.cpp's converter does to tensors of the newer architectures, before it renames them.

Each function is given a model's tensors as they are on disk. What they do was read in
https://github.com/ggml-org/llama.cpp (`conversion/`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

Config = dict[str, Any]
Tensors = Iterator[tuple[str, Tensor]]
State = dict[str, Tensor]


def on_disk(module: PreTrainedModel) -> State:
    """A model's tensors under the names that they have in its own files."""
    with TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def permuted(tensor: Tensor, n_heads: int) -> Tensor:
    """From halves (the first and second of each rotary pair far apart) to neighbours."""
    halves = tensor.reshape(n_heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def stacked(state: State, c: Config) -> Tensors:
    """Experts become one tensor each of gates, keys and values, and a bias is called a bias."""
    experts: dict[str, list[Tensor]] = {}
    for name, tensor in state.items():
        if found := re.fullmatch(r"(.*experts)\.(\d+)\.(\w+\.weight)", name):
            parts = experts.setdefault(f"{found[1]}.{found[3]}", [])
            parts.append(state[f"{found[1]}.{len(parts)}.{found[3]}"])
        elif name.endswith("e_score_correction_bias"):
            yield name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor
        elif name.endswith(".expert_bias"):
            yield f"{name}.bias", tensor
        else:
            yield name, tensor
    for name, parts in experts.items():
        yield name, torch.stack(parts)


def turned(state: State, c: Config) -> Tensors:
    for name, tensor in stacked(state, c):
        if re.search(r"\bq_proj\.", name):
            tensor = permuted(tensor, c["num_attention_heads"])
        if re.search(r"\bk_proj\.", name):
            tensor = permuted(tensor, c["num_key_value_heads"])
        yield name, tensor


def one_more(state: State, c: Config) -> Tensors:
    for name, tensor in stacked(state, c):
        yield name, tensor + 1 if name.endswith("norm.weight") else tensor


def granite(state: State, c: Config) -> Tensors:
    """Gates and keys apart; without experts the shared feed-forward is the only one."""
    sparse = bool(c.get("num_local_experts"))
    for name, tensor in mamba(dict(turned(state, c)), c):
        stem = name.removesuffix(".weight")
        layer = name.partition(".layers.")[2].partition(".")[0]
        if name.endswith("block_sparse_moe.input_linear.weight"):
            gate, up = tensor.chunk(2, dim=-2)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate
            yield f"blk.{layer}.ffn_up_exps.weight", up
        elif name.endswith("shared_mlp.input_linear.weight"):
            kind = "_shexp" if sparse else ""
            gate, up = tensor.chunk(2, dim=-2)
            yield f"blk.{layer}.ffn_gate{kind}.weight", gate
            yield f"blk.{layer}.ffn_up{kind}.weight", up
        elif not sparse and stem.endswith("shared_mlp.output_linear"):
            yield f"blk.{layer}.ffn_down.weight", tensor
        else:
            yield name, tensor


def mamba(state: State, c: Config) -> Tensors:
    """Mamba 2's decays in full, vectors as matrices; Mamba's first keeps its shapes."""
    groups = c.get("mamba_n_groups") or c.get("n_groups")
    for name, tensor in stacked(state, c):
        if name.endswith("A_log"):
            tensor = -tensor.exp()
        if groups and name.endswith((".A_log", ".D")):
            tensor = tensor.reshape(-1, 1)
        if groups and re.search(r"(mamba|mixer)\.norm\.weight", name):
            tensor = tensor.reshape(groups, -1)
        if name.endswith(".dt_bias"):
            name = name.replace(".dt_bias", ".dt.bias" if ".mixer." in name else ".dt_proj.bias")
        if "conv1d.weight" in name or "conv.conv.weight" in name:
            tensor = tensor.squeeze(1)
        yield name, tensor


def jamba(state: State, c: Config) -> Tensors:
    for name, tensor in mamba(state, c):
        yield name.replace(".feed_forward.experts.", ".mlp.experts."), tensor


def lfm2(state: State, c: Config) -> Tensors:
    for name, tensor in mamba(state, c):
        yield name.replace("model.layers", "layers") if ".experts." in name else name, tensor


def nemotron_h(state: State, c: Config) -> Tensors:
    for name, tensor in mamba(dict(turned(state, c)), c):
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
        yield name, tensor


def falcon_h1(state: State, c: Config) -> Tensors:
    """All factors go into the weights."""
    gate, down = c["mlp_multipliers"]
    inside = c["attention_in_multiplier"]
    factors = {
        "feed_forward.down_proj": down,
        "feed_forward.gate_proj": gate,
        "k_proj": c["key_multiplier"] * inside,
        "q_proj": inside,
        "v_proj": inside,
        "o_proj": c["attention_out_multiplier"],
        "mamba.out_proj": c["ssm_out_multiplier"],
        "lm_head": c["lm_head_multiplier"],
        "embed_tokens": c["embedding_multiplier"],
    }
    wide, states = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    sizes = (wide, wide, states, states, c["mamba_n_heads"])
    for name, tensor in mamba(state, c):
        found = next((key for key in factors if f"{key}." in name), None)
        if found is not None:
            tensor = tensor * factors[found]
        elif "mamba.in_proj" in name:
            parts = zip(tensor.split(sizes), c["ssm_multipliers"], strict=True)
            tensor = torch.cat([part * factor for part, factor in parts]) * c["ssm_in_multiplier"]
        yield name, tensor


def deepseek(state: State, c: Config) -> Tensors:
    """What makes keys and values of the latent: a stack of heads each, the keys' transposed."""
    for name, tensor in stacked(state, c):
        if name.endswith("kv_b_proj.weight"):
            heads = tensor.view(c["num_attention_heads"], -1, tensor.shape[-1])
            keys, values = heads.split([c["qk_nope_head_dim"], c["v_head_dim"]], dim=1)
            yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), values
        else:
            yield name, tensor


def mistral4(state: State, c: Config) -> Tensors:
    """Experts are stacks already."""
    for name, tensor in deepseek(state, c):
        yield (
            f"{name}.weight" if name.endswith(("gate_up_proj", "experts.down_proj")) else name,
            tensor,
        )


def dbrx(state: State, c: Config) -> Tensors:
    """Experts that lie end to end become stacks, and values are turned."""
    sizes = c["ffn_config"]
    for name, tensor in state.items():
        if ".experts.mlp." in name:
            tensor = tensor.view(sizes["moe_num_experts"], sizes["ffn_hidden_size"], c["d_model"])
            tensor = tensor.transpose(1, 2) if name.endswith(".w2") else tensor
            name = f"{name}.weight"
        yield name, tensor


def mimo(state: State, c: Config) -> Tensors:
    for name, tensor in stacked(state, c):
        yield f"{name}.weight" if name.endswith("attention_sink_bias") else name, tensor


def gemma4(state: State, c: Config) -> Tensors:
    """Factors of the router stand beside tensors; which pairs turn is a tensor."""
    for name, tensor in state.items():
        layer = name.partition(".layers.")[2].partition(".")[0]
        if name.endswith("router.scale"):
            name = f"blk.{layer}.ffn_gate_inp.scale"
        elif name.endswith("router.per_expert_scale"):
            name = f"blk.{layer}.ffn_down_exps.scale"
        elif ".experts." in name or name.endswith("layer_scalar"):
            name = f"{name}.weight"
        yield name, tensor
    size = c["per_layer_config"][str(c["num_hidden_layers"] - 1)]["head_dim"]
    share = c["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    turned = int(size * share / 2)
    yield "rope_freqs.weight", torch.tensor([1.0] * turned + [1e30] * (size // 2 - turned))


def gemma3n(state: State, c: Config) -> Tensors:
    """What maps between streams becomes two stacks."""
    stacks: dict[str, list[Tensor]] = {}
    for name, tensor in state.items():
        if found := re.fullmatch(r"(.*altup_\w*projections)\.(\d+)\.weight", name):
            parts = stacks.setdefault(f"{found[1]}.weight", [])
            parts.append(state[f"{found[1]}.{len(parts)}.weight"])
        else:
            yield f"{name}.weight" if name.endswith("_scale") else name, tensor
    for name, parts in stacks.items():
        yield name, torch.stack(parts)


def kimi_linear(state: State, c: Config) -> Tensors:
    """Kernels as ggml wants them, decays in full; the dense layer under the name its files have."""
    for name, tensor in deepseek(state, c):
        if name.endswith("_conv1d.weight"):
            tensor = tensor.reshape(1, len(tensor), 1, tensor.shape[-1])
        if name.endswith(".A_log"):
            tensor = -tensor.exp()
        if name.endswith(".dt_bias"):
            name = name.replace(".dt_bias", ".dt_proj.bias")
        if re.search(r"block_sparse_moe\.(gate|up|down)_proj", name):
            name = name.replace("block_sparse_moe", "mlp")
        yield name, tensor


def gpt_oss(state: State, c: Config) -> Tensors:
    for name, tensor in state.items():
        ending = ".bias" if name.endswith("_bias") else ".weight"
        stem = name.removesuffix("_bias")
        if ending == ".weight" and ".experts." in name:
            tensor = tensor.transpose(1, 2)
        if stem.endswith("gate_up_proj"):
            yield stem.replace("gate_up_proj", "gate_proj") + ending, tensor[:, ::2]
            yield stem.replace("gate_up_proj", "up_proj") + ending, tensor[:, 1::2]
        elif ".experts." in name or name.endswith(".sinks"):
            yield stem + ending, tensor
        else:
            yield name, tensor


def llama4(state: State, c: Config) -> Tensors:
    for name, tensor in state.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.transpose(1, 2).chunk(2, dim=1)
            yield name.replace("gate_up_proj", "gate_proj.weight"), gate
            yield name.replace("gate_up_proj", "up_proj.weight"), up
        elif name.endswith("experts.down_proj"):
            yield f"{name}.weight", tensor.transpose(1, 2)
        else:
            yield name, tensor


def delta_net(state: State, c: Config) -> Tensors:
    """Norms hold 1 + w, but for the one inside linear attention."""
    for name, tensor in mamba(state, {}):
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            tensor = tensor + 1
        yield name, tensor


def qwen3_next(state: State, c: Config) -> Tensors:
    n, size = c["linear_num_key_heads"], c["linear_key_head_dim"]
    wide = c["linear_num_value_heads"] // n * c["linear_value_head_dim"]
    for name, tensor in delta_net(state, c):
        if "in_proj_qkvz" in name:
            parts = tensor.view(n, -1, tensor.shape[-1]).split([size, size, wide, wide], dim=1)
            q, k, v, z = (part.reshape(-1, tensor.shape[-1]) for part in parts)
            layer = name.split(".")[2]
            yield f"blk.{layer}.attn_qkv.weight", torch.cat([q, k, v])
            yield f"blk.{layer}.attn_gate.weight", z
        else:
            yield name, tensor


def tile(tensor: Tensor, c: Config, size: int, axis: int = 0) -> Tensor:
    """Value heads: from key head by key head to first of each, second of each …"""
    n = c["linear_num_key_heads"]
    moved = tensor.movedim(axis, 0)
    heads = moved.reshape(n, -1, size, *moved.shape[1:]).transpose(0, 1)
    return heads.reshape(moved.shape).movedim(0, axis)


def qwen35(state: State, c: Config) -> Tensors:
    size = c["linear_value_head_dim"]
    both = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
    for name, tensor in delta_net(state, c):
        if ".in_proj_qkv." in name or ".conv1d." in name:
            tensor = torch.cat([tensor[:both], tile(tensor[both:], c, size)])
        elif ".in_proj_z." in name:
            tensor = tile(tensor, c, size)
        elif re.search(r"\.(in_proj_[ab]\.|A_log|dt_proj)", name):
            tensor = tile(tensor, c, 1)
        elif "linear_attn.out_proj" in name:
            tensor = tile(tensor, c, size, axis=1)
        yield name, tensor


def apertus(state: State, c: Config) -> Tensors:
    """What the activation has learned becomes metadata."""
    yield from ((name, tensor) for name, tensor in state.items() if ".act_fn." not in name)


def bert(state: State, c: Config) -> Tensors:
    """The encoder alone; RoBERTa's first positions, up to the padding's, stand for nothing."""
    for name, tensor in state.items():
        if name.startswith("pooler."):
            continue
        if c["model_type"] == "roberta" and "position_embeddings" in name:
            tensor = tensor[c["pad_token_id"] + 1 :]
        yield name, tensor


def t5(state: State, c: Config) -> Tensors:
    """The embedding once, whatever it is called."""
    again = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    yield from ((name, tensor) for name, tensor in state.items() if name not in again)


TENSORS: dict[str, Callable[[State, Config], Tensors]] = {
    "seed_oss": stacked,
    "ministral3": turned,
    "minimax_m2": stacked,
    "phimoe": stacked,
    "granitemoe": granite,
    "granitemoeshared": granite,
    "granitemoehybrid": granite,
    "bamba": granite,
    "glm": stacked,
    "glm4": stacked,
    "glm4_moe": stacked,
    "solar_open": stacked,
    "dots1": stacked,
    "arcee": turned,
    "nemotron": one_more,
    "jais2": stacked,
    "apertus": apertus,
    "exaone4": stacked,
    "ernie4_5_moe": stacked,
    "hunyuan_v1_dense": stacked,
    "hunyuan_v1_moe": stacked,
    "olmo3": stacked,
    "olmoe": stacked,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "glm4_moe_lite": deepseek,
    "youtu": deepseek,
    "gpt_oss": gpt_oss,
    "llama4_text": llama4,
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen35,
    "qwen3_5_moe_text": qwen35,
    "jamba": jamba,
    "falcon_h1": falcon_h1,
    "lfm2": lfm2,
    "lfm2_moe": lfm2,
    "nemotron_h": nemotron_h,
    "exaone_moe": stacked,
    "afmoe": stacked,
    "bert": bert,
    "roberta": bert,
    "distilbert": bert,
    "eurobert": stacked,
    "dbrx": dbrx,
    "glm_moe_dsa": deepseek,
    "mistral4": mistral4,
    "minicpm3": stacked,
    "mimo_v2_flash": mimo,
    "kimi_linear": kimi_linear,
    "modernbert": bert,
    "nomic_bert": bert,
    "gemma4_text": gemma4,
    "gemma3n_text": gemma3n,
    "t5": t5,
    "mt5": t5,
    "umt5": t5,
}
