"""What many architectures have alike in GGUF files: experts, state spaces, windows."""

from __future__ import annotations

import torch
from torch import Tensor

from lexray.errors import LexrayError
from lexray.families.gguf.config import Config, Keys, expect, find_tensor
from lexray.families.gguf.names import LAYER, GGUFSource, Names

MLP = f"{LAYER}mlp."
GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")
SIGMOID = 2
"""llama.cpp's number of the function that says how good experts are."""


def name_experts(
    m: Keys, mlp: str = MLP, router: str = "gate", names: tuple[str, str, str] = GATE_UP_DOWN
) -> Names:
    """A router, and three stacks; some converters put gates and keys into one."""
    gate, up, down = (f"{mlp}experts.{{i}}.{name}" for name in names)
    whole: Names = {
        mlp + router: "blk.{n}.ffn_gate_inp",
        down: GGUFSource("blk.{n}.ffn_down_exps", stacked=True),
    }
    if find_tensor(m, "ffn_gate_up_exps") is None:
        return {
            **whole,
            gate: GGUFSource("blk.{n}.ffn_gate_exps", stacked=True),
            up: GGUFSource("blk.{n}.ffn_up_exps", stacked=True),
        }
    d_mlp = expert_width(m) or 0
    both = "blk.{n}.ffn_gate_up_exps"
    return {
        **whole,
        gate: GGUFSource(both, stacked=True, part=lambda c: (0, d_mlp)),
        up: GGUFSource(both, stacked=True, part=lambda c: (d_mlp, 2 * d_mlp)),
    }


def name_shared(stem: str) -> Names:
    """A feed-forward that runs beside the experts."""
    return {
        f"{stem}.gate_proj": "blk.{n}.ffn_gate_shexp",
        f"{stem}.up_proj": "blk.{n}.ffn_up_shexp",
        f"{stem}.down_proj": "blk.{n}.ffn_down_shexp",
    }


def name_correction(name: str) -> Names:
    """What is added to the experts' scores for the choice alone."""
    return {name: GGUFSource("blk.{n}.exp_probs_b.bias", exact=True)}


def width(m: Keys, stem: str) -> int | None:
    """The number of neurons in the first tensor of this name."""
    name = find_tensor(m, stem)
    if name is None:
        return None
    shape = m.file.info(name).shape
    if len(shape) < 2:
        raise LexrayError(f"{m.file.name}: {name} should be a matrix; its shape is {shape}")
    return shape[-2]


def expert_width(m: Keys) -> int | None:
    """The number of neurons of one expert."""
    both = width(m, "ffn_gate_up_exps")
    return width(m, "ffn_up_exps") if both is None else both // 2


DEEPSEEK: Names = {
    **name_shared(f"{MLP}shared_experts"),
    **name_correction(f"{MLP}gate.e_score_correction_bias"),
}


def deepseek_experts(m: Keys, c: Config) -> Config:
    """The words of DeepSeek's config, which many mixtures use."""
    if "num_experts" not in c:
        return {}
    each, shared = expert_width(m), width(m, "ffn_up_shexp")
    return {
        "n_routed_experts": c["num_experts"],
        "moe_intermediate_size": each,
        "n_shared_experts": (shared or 0) // max(each or 1, 1),
        "first_k_dense_replace": layers_with(m, c, "ffn_gate_inp")[0],
        "routed_scaling_factor": m.get("expert_weights_scale") or 1.0,
        "norm_topk_prob": bool(m.get("expert_weights_norm")),
        "n_group": m.length("expert_group_count") or 1,
        "topk_group": m.length("expert_group_used_count") or 1,
    }


def layers_with(m: Keys, c: Config, stem: str) -> list[int]:
    """The layers that have a tensor of this name."""
    names = m.file.names()
    return [n for n in range(c["num_hidden_layers"]) if f"blk.{n}.{stem}.weight" in names]


def layer_kinds(m: Keys, c: Config, other: str) -> list[str]:
    """Which layers attend, by their tensors; the rest are of the `other` kind."""
    attend = set(layers_with(m, c, "attn_output"))
    return ["full_attention" if n in attend else other for n in range(c["num_hidden_layers"])]


def period(m: Keys, layers: list[int], count: int, what: str) -> tuple[int, int]:
    """How often, and where first, layers of a kind come; (count, count) where none does."""
    if not layers:
        return count, count
    each = layers[1] - layers[0] if len(layers) > 1 else count
    if layers != [*range(layers[0], count, each)]:
        raise LexrayError(
            f"{m.file.name}: its layers with {what} ({', '.join(map(str, layers[:8]))} …) do not "
            "come at regular distances; try the model's safetensors"
        )
    return each, layers[0]


def windows(m: Keys, c: Config) -> Config:
    """Which layers look through a window, where an array says so."""
    pattern, length = (
        m.each("attention.sliding_window_pattern"),
        m.length("attention.sliding_window"),
    )
    if length is None or pattern is None:
        return {"sliding_window": length}
    if len(pattern) < c["num_hidden_layers"]:
        raise LexrayError(
            f"{m.file.name}: {m.file.architecture}.attention.sliding_window_pattern speaks of "
            f"{len(pattern)} layers, and there are {c['num_hidden_layers']}"
        )
    kinds = ["sliding_attention" if slides else "full_attention" for slides in pattern]
    return {"sliding_window": length, "layer_types": kinds[: c["num_hidden_layers"]]}


def told_windows(m: Keys, c: Config) -> Config:
    """The same, of an architecture whose layers with a window are built otherwise."""
    m.size("attention.sliding_window")
    if m.each("attention.sliding_window_pattern") is None:
        raise m.lacks("attention.sliding_window_pattern")
    return windows(m, c)


def undo_decay(decay: Tensor) -> Tensor:
    """llama.cpp keeps −exp(A_log)."""
    return torch.log(-decay)


def name_convolution(stem: str, source: str = "ssm_conv1d") -> Names:
    """A kernel, which the file holds without its axis of length one."""
    return {
        f"{stem}.weight": GGUFSource(f"blk.{{n}}.{source}.weight", exact=True, unit=1),
        f"{stem}.bias": GGUFSource(f"blk.{{n}}.{source}.bias", exact=True),
    }


VECTOR = (-1,)


def name_mamba2(stem: str) -> Names:
    return {
        f"{stem}in_proj": "blk.{n}.ssm_in",
        f"{stem}out_proj": "blk.{n}.ssm_out",
        **name_convolution(f"{stem}conv1d"),
        f"{stem}A_log": GGUFSource("blk.{n}.ssm_a", exact=True, shaped=VECTOR, undo=undo_decay),
        f"{stem}D": GGUFSource("blk.{n}.ssm_d", exact=True, shaped=VECTOR),
        f"{stem}dt_bias": GGUFSource("blk.{n}.ssm_dt.bias", exact=True),
        f"{stem}norm": GGUFSource("blk.{n}.ssm_norm", shaped=VECTOR),
    }


def mamba2_config(m: Keys, c: Config) -> Config:
    """The sizes of Mamba 2's layers, in the words of most who borrow them."""
    inner, heads = m.size("ssm.inner_size"), m.size("ssm.time_step_rank")
    groups, state = m.size("ssm.group_count", 1), m.size("ssm.state_size")
    fused = find_tensor(m, "ssm_in") or "blk.0.ssm_in.weight"
    expect(m, fused, (2 * inner + 2 * groups * state + heads, c["hidden_size"]))
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": groups,
        "mamba_d_state": state,
        "mamba_d_conv": m.size("ssm.conv_kernel"),
        "mamba_expand": max(inner // c["hidden_size"], 1),
    }
