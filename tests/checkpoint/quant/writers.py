"""Whole models quantised by writers of our own, from the published layouts.

The layouts themselves are held against each format's own library in `test_golden`; these writers
make whole checkpoints of them, for readings, runs and fuzzing, without those libraries. Each
takes a weight and gives the stored tensors (by what follows the module's name) and the weight that
they stand for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]
E2M1 = torch.tensor([s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)])
GROUP = 32


def pack(codes: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Numbers of `bits` bits on the last axis, one behind the other, in words of `dtype`."""
    ones = (codes.long()[..., None] >> torch.arange(bits)) & 1
    octets = ones.flatten(-2).view(*codes.shape[:-1], -1, 8)
    return (octets << torch.arange(8)).sum(-1).to(torch.uint8).view(dtype)


def fp8(w: Tensor) -> Stored:
    """DeepSeek's blocks, here of 16 × 32."""
    blocks = w.view(w.shape[0] // 16, 16, w.shape[1] // 32, 32)
    scale = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    back = (codes.float() * scale[:, None, :, None]).view(w.shape)
    return {".weight": codes.view(w.shape), ".weight_scale_inv": scale}, back


def affine(w: Tensor, bits: int, least: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes, scales and zero points of groups of inputs, and what they stand for."""
    groups = w.view(len(w), -1, GROUP)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).clamp(min=1e-4).half().float()
    zero = (-low / scale).round().clamp(least, 2**bits - 1)
    codes = (groups / scale[..., None] + zero[..., None]).round().clamp(0, 2**bits - 1)
    back = ((codes - zero[..., None]) * scale[..., None]).view(w.shape)
    return codes.view(w.shape), scale, zero, back


def gptq(w: Tensor) -> Stored:
    """Version 1 with act-order: columns are shuffled before they are grouped."""
    order = torch.randperm(w.shape[1], generator=torch.Generator().manual_seed(0))
    codes, scale, zero, back = affine(w[:, order], 4, least=1)
    belongs = torch.empty_like(order)
    belongs[order] = torch.arange(w.shape[1]) // GROUP
    undo = order.argsort()
    parts = {
        ".qweight": pack(codes[:, undo], 4, torch.int32).T.contiguous(),
        ".scales": scale.half().T.contiguous(),
        ".qzeros": pack(zero.T.contiguous() - 1, 4, torch.int32),
        ".g_idx": belongs.int(),
    }
    return parts, back[:, undo]


def awq(w: Tensor) -> Stored:
    codes, scale, zero, back = affine(w, 4)

    def eights(x: Tensor) -> Tensor:
        return pack(x.view(len(x), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4, torch.int32)

    parts = {
        ".qweight": eights(codes.T.contiguous()),
        ".scales": scale.half().T.contiguous(),
        ".qzeros": eights(zero.T.contiguous()),
    }
    return parts, back


def compressed(w: Tensor) -> Stored:
    codes, scale, zero, back = affine(w, 4)
    parts = {
        ".weight_packed": pack(codes, 4, torch.int32),
        ".weight_scale": scale,
        ".weight_zero_point": pack(zero.T.contiguous(), 4, torch.int32).T.contiguous(),
        ".weight_shape": torch.tensor(w.shape),
    }
    return parts, back


def mlx(w: Tensor) -> Stored:
    groups = w.view(len(w), -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = (high - low) / 63
    codes = ((groups - low[..., None]) / scale[..., None]).round()
    back = (codes * scale[..., None] + low[..., None]).view(w.shape)
    words = pack(codes.view(w.shape), 6, torch.uint32)
    return {".weight": words, ".scales": scale, ".biases": low}, back


def nvfp4(w: Tensor) -> Stored:
    """As ModelOpt stores it."""
    groups = w.view(len(w), -1, 16)
    factor = w.abs().amax() / (6 * 448)
    scale = (groups.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
    full = (scale.float() * factor)[..., None]
    codes = (groups / full)[..., None].sub(E2M1).abs().argmin(-1)
    parts = {
        ".weight": pack(codes.view(w.shape), 4, torch.uint8),
        ".weight_scale": scale,
        ".weight_scale_2": factor,
        ".input_scale": torch.tensor(1.0),
    }
    return parts, (E2M1[codes] * full).view(w.shape)


def int8(w: Tensor) -> Stored:
    """bitsandbytes' LLM.int8()."""
    largest = w.abs().amax(1)
    codes = (w / largest[:, None] * 127).round().to(torch.int8)
    parts = {
        ".weight": codes,
        ".SCB": largest,
        ".weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return parts, codes * largest[:, None] * (1 / 127)


def nf4(w: Tensor) -> Stored:
    """bitsandbytes' 4 bits in blocks of 64 over the flattened weight, without double quantisation;
    the sixteen values are any."""
    values = torch.linspace(-1, 1, 16)
    flat = w.flatten().view(-1, 64)
    largest = flat.abs().amax(1)
    codes = (flat / largest[:, None])[..., None].sub(values).abs().argmin(-1).flatten()
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(w.shape)}
    text = json.dumps(state).encode()
    parts = {
        ".weight": (codes[::2] << 4 | codes[1::2]).to(torch.uint8)[:, None],
        ".weight.absmax": largest,
        ".weight.quant_map": values,
        ".weight.quant_state.bitsandbytes__nf4": torch.frombuffer(
            bytearray(text), dtype=torch.uint8
        ),
    }
    return parts, (values[codes].view(-1, 64) * largest[:, None]).view(w.shape)


def hqq(w: Tensor) -> Stored:
    """Four bits, groups along the rows: the upper half of the weight in the upper bits."""
    codes, scale, zero, back = affine(w, 4)
    grouped = codes.view(-1, GROUP).to(torch.uint8)
    half = len(grouped) // 2
    words = {"shape": torch.tensor(w.shape), "axis": torch.tensor(1), "nbits": torch.tensor(4)}
    words |= {"group_size": torch.tensor(GROUP), "view_as_float": torch.tensor(0)}
    words |= {"packing": torch.tensor([*map(ord, "4bit_u8")], dtype=torch.uint8)}
    parts = {
        "W_q": grouped[:half] << 4 | grouped[half:],
        "scale": scale.view(-1, 1),
        "zero": zero.view(-1, 1),
    }
    return {f".{k}": v for k, v in (parts | words).items()}, back


def torchao(w: Tensor) -> Stored:
    """`Int4Tensor`: signed codes, and a row of scales and of what is added for each group."""
    codes, scale, zero, _ = affine(w, 4)
    signed, added = codes - 8, (8 - zero) * scale
    parts = {
        "._weight_qdata": pack(signed.long() & 15, 4, torch.int8),
        "._weight_scale": scale.T.contiguous(),
        "._weight_zero_point": added.T.contiguous(),
    }
    spread = [x.repeat_interleave(GROUP, 1) for x in (scale, added)]
    return parts, signed * spread[0] + spread[1]


def mxfp4(w: Tensor) -> Stored:
    """gpt-oss' stacked experts, (experts, inputs, outputs)."""
    groups = w.mT.reshape(len(w), w.shape[2], -1, 32)
    exponent = (groups.abs().amax(-1) / 6).clamp(min=1e-9).log2().ceil()
    full = exponent.exp2()[..., None]
    codes = (groups / full)[..., None].sub(E2M1).abs().argmin(-1)
    parts = {"_blocks": pack(codes, 4, torch.uint8), "_scales": (exponent + 127).to(torch.uint8)}
    return parts, (E2M1[codes] * full).flatten(2).mT


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False}
AO = json.dumps({"_type": "Int4Tensor", "_data": {"block_size": [1, GROUP]}})


@dataclass(frozen=True)
class Format:
    """How a model is stored, and what its config says of it."""

    store: Callable[[Tensor], Stored]
    config: dict[str, Any]
    key: str = "quantization_config"
    everything: bool = False
    """The embeddings too, as MLX has it."""
    experts: bool = False
    """Stacked experts, and nothing else."""


FORMATS = {
    "fp8": Format(fp8, {"quant_method": "fp8", "weight_block_size": [16, 32]}),
    "gptq": Format(
        gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}
    ),
    "awq": Format(awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "compressed": Format(
        compressed,
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT4}},
            "ignore": ["lm_head"],
        },
    ),
    "mlx": Format(mlx, {"bits": 6, "group_size": GROUP}, "quantization", True),
    "modelopt": Format(nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "int8": Format(int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "nf4": Format(nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "hqq": Format(hqq, {"quant_method": "hqq", "skip_modules": ["lm_head"]}),
    "torchao": Format(torchao, {"quant_method": "torchao"}),
}
GPT_OSS = Format(
    mxfp4,
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    experts=True,
)


def is_quantised(name: str, weight: Tensor, form: Format) -> bool:
    if form.experts:
        return name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    ends = ("embed_tokens.weight", "lm_head.weight")
    inner = name.endswith("proj.weight") or (form.everything and name.endswith(ends))
    return inner and weight.dim() == 2


def write(model: Any, name: str, quantised: Path, plain: Path) -> None:
    """A model's checkpoint in a format, and the same de-quantised."""
    form = FORMATS.get(name, GPT_OSS)
    stored: dict[str, Tensor] = {}
    back: dict[str, Tensor] = {}
    notes: dict[str, str] = {"format": "pt"}
    for tensor, weight in model.state_dict().items():
        if not is_quantised(tensor, weight, form):
            stored[tensor] = back[tensor] = weight.clone()
            continue
        parts, back[tensor] = form.store(weight.float())
        stem = tensor.removesuffix(".weight")
        stored |= {stem + ending: part.contiguous() for ending, part in parts.items()}
        if name == "torchao":
            notes[tensor] = AO
    config = model.config.to_dict()
    for folder, tensors, more in ((quantised, stored, {form.key: form.config}), (plain, back, {})):
        folder.mkdir(parents=True)
        save_file(
            {k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", notes
        )
        (folder / "config.json").write_text(json.dumps(config | more))
