"""Writes `golden/`: small weights as the libraries of each format store and de-quantise them.

`python -m tests.checkpoint.quant.make_golden [case …]` needs compressed-tensors, bitsandbytes,
torchao, hqq, mlx, and the sources of AutoAWQ and GPTQModel on the path. The files are kept, so that
the suite compares with what the libraries wrote without having them installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

GOLDEN = Path(__file__).parent / "golden"
NAME = "model.layers.0.self_attn.q_proj"
OUT, IN = 48, 128
State = dict[str, Tensor]


@dataclass
class Case:
    """What a library stored, what its config says, and what it makes of that again."""

    state: State
    config: dict[str, Any]
    expected: Tensor
    metadata: dict[str, str] = field(default_factory=dict)
    name: str = f"{NAME}.weight"


CASES: dict[str, Callable[[], Case]] = {}


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    CASES[function.__name__] = function
    return function


def weight(rows: int = OUT, columns: int = IN) -> Tensor:
    g = torch.Generator().manual_seed(7)
    return torch.randn(rows, columns, generator=g) * torch.rand(rows, 1, generator=g).exp() / 20


def linear(w: Tensor) -> nn.Linear:
    found = nn.Linear(w.shape[1], w.shape[0], bias=False)
    found.weight = nn.Parameter(w.clone(), requires_grad=False)
    return found


# ------------------------------------------------------------------ compressed-tensors


def compressed(form: str, weights: dict[str, Any], dtype: torch.dtype = torch.float32) -> Case:
    """Through compressed-tensors' own observer, compressor and decompressor."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
    w = weight().to(dtype)
    state: State = {"weight": w}
    low, high = _extremes(w, args)
    extra = {}
    if form == "nvfp4-pack-quantized":
        extra["global_scale"] = generate_gparam(w.min(), w.max())
        state["weight_global_scale"] = extra["global_scale"]
    scale, zero = calculate_qparams(low, high, args, **extra)
    state["weight_scale"] = scale
    if not args.symmetric:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    back = compressor.decompress(dict(stored), scheme)["weight"]
    if "global_scale" in extra:  # the library rounds its scales to bfloat16 first
        codes = unpack_fp4_from_uint8(stored["weight_packed"], OUT, IN, torch.float32)
        scale = stored["weight_scale"].float()
        back = dequantize(codes, scale, args=args, dtype=torch.float32, **extra)
    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": json.loads(args.model_dump_json())}
        },
    }
    return Case({f"{NAME}.{k}": v.contiguous() for k, v in stored.items()}, config, back)


def _extremes(w: Tensor, args: Any) -> tuple[Tensor, Tensor]:
    strategy = str(getattr(args.strategy, "value", args.strategy))
    if strategy == "tensor":
        return w.min().view(1), w.max().view(1)
    if strategy == "channel":
        return w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    if strategy == "block":
        high, wide = args.block_structure
        blocks = w.view(OUT // high, high, IN // wide, wide)
        return blocks.amin((1, 3)), blocks.amax((1, 3))
    groups = w.view(OUT, -1, args.group_size)
    return groups.amin(-1), groups.amax(-1)


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


@case
def compressed_int4() -> Case:
    return compressed("pack-quantized", INT4)


@case
def compressed_int4_asymmetric() -> Case:
    return compressed("pack-quantized", INT4 | {"symmetric": False})


@case
def compressed_int3() -> Case:
    return compressed("pack-quantized", INT4 | {"num_bits": 3})


@case
def compressed_int8_packed() -> Case:
    return compressed(
        "pack-quantized", INT4 | {"num_bits": 8, "strategy": "channel", "group_size": None}
    )


@case
def compressed_int8() -> Case:
    return compressed(
        "int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": False}
    )


@case
def compressed_fp8() -> Case:
    return compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"})


@case
def compressed_fp8_tensor() -> Case:
    return compressed("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"})


@case
def compressed_fp8_block() -> Case:
    said = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 32]}
    return compressed("float-quantized", said)


@case
def compressed_nvfp4() -> Case:
    said = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    said |= {"scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"}
    return compressed("nvfp4-pack-quantized", said, torch.bfloat16)


MX = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}


@case
def compressed_mxfp4() -> Case:
    return compressed("mxfp4-pack-quantized", MX | {"num_bits": 4}, torch.bfloat16)


@case
def compressed_mxfp6() -> Case:
    return compressed("mxfp6-pack-quantized", MX | {"num_bits": 6}, torch.bfloat16)


@case
def compressed_mxfp8() -> Case:
    return compressed("mxfp8-quantized", MX | {"num_bits": 8}, torch.bfloat16)


# ------------------------------------------------------------------ transformers' own


@case
def fp8_blocks() -> Case:
    """Quantised and de-quantised by transformers' own operations for DeepSeek's fp8."""
    from types import SimpleNamespace

    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = FineGrainedFP8Config(weight_block_size=[16, 32])
    quantizer = SimpleNamespace(quantization_config=config)
    stored = Fp8Quantize(quantizer)._quantize_one(f"{NAME}.weight", weight())
    stored = {k: v.contiguous() for k, v in stored.items()}
    back = Fp8Dequantize(quantizer)._dequantize_one(
        stored[f"{NAME}.weight"], stored[f"{NAME}.weight_scale_inv"], torch.float32
    )
    return Case(stored, config.to_dict(), back)


@case
def gpt_oss_mxfp4() -> Case:
    """Random bytes, de-quantised by transformers' own function for gpt-oss."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    g = torch.Generator().manual_seed(1)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    blocks = torch.randint(0, 256, (3, 10, 2, 16), generator=g).to(torch.uint8)
    scales = torch.randint(110, 130, (3, 10, 2), generator=g).to(torch.uint8)
    back = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    state = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return Case(state, {"quant_method": "mxfp4"}, back, name=name)


@case
def metal() -> Case:
    """MLX's layout by transformers' own quantiser."""
    from transformers.integrations.metal_quantization import (
        _affine_dequantize_tensor,
        _affine_quantize_tensor,
    )

    codes, scales, biases = _affine_quantize_tensor(weight(), 64, 4)
    back = _affine_dequantize_tensor(codes, scales, biases, 64, 4)
    state = {"weight": codes, "scales": scales, "qbiases": biases}
    config = {"quant_method": "metal", "bits": 4, "group_size": 64}
    return Case({f"{NAME}.{k}": v.contiguous() for k, v in state.items()}, config, back)


# ------------------------------------------------------------------ bitsandbytes


def four_bits(
    kind: str, double: bool, storage: torch.dtype = torch.uint8, columns: int = IN
) -> Case:
    from bitsandbytes import functional

    w = weight(columns=columns)
    codes, state = functional.quantize_4bit(
        w, blocksize=64, compress_statistics=double, quant_type=kind, quant_storage=storage
    )
    back = functional.dequantize_4bit(codes, state)
    stored = {f"{NAME}.weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    stored[f"{NAME}.weight"] = codes
    config = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": double,
    }
    return Case({k: v.contiguous() for k, v in stored.items()}, config, back)


@case
def bitsandbytes_nf4() -> Case:
    return four_bits("nf4", True)


@case
def bitsandbytes_nf4_across_rows() -> Case:
    """Blocks of 64 over rows of 100."""
    return four_bits("nf4", True, columns=100)


@case
def bitsandbytes_fp4() -> Case:
    return four_bits("fp4", False)


@case
def bitsandbytes_nf4_in_bfloat16() -> Case:
    return four_bits("nf4", False, torch.bfloat16)


@case
def bitsandbytes_int8() -> Case:
    from bitsandbytes import functional

    codes, scale, _ = functional.int8_vectorwise_quant(weight().half())
    state = {"weight": codes, "SCB": scale, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    back = functional.int8_vectorwise_dequant(codes, scale)
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return Case({f"{NAME}.{k}": v for k, v in state.items()}, config, back)


# ------------------------------------------------------------------ torchao


def torchao(tensor: Any) -> Case:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    stored, metadata = flatten_tensor_state_dict({f"{NAME}.weight": tensor})
    back = (
        tensor.dequantize(torch.float32)
        if "output_dtype" in (tensor.dequantize.__code__.co_varnames)
        else tensor.dequantize()
    )
    config = {"quant_method": "torchao", "quant_type": {"default": {}}}
    return Case({k: v.contiguous() for k, v in stored.items()}, config, back.float(), metadata)


@case
def torchao_int8() -> Case:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    module = nn.Sequential(linear(weight()))
    quantize_(module, Int8WeightOnlyConfig(version=2))
    return torchao(module[0].weight)


@case
def torchao_intx() -> Case:
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_

    module = nn.Sequential(linear(weight()))
    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32), version=2)
    quantize_(module, config)
    return torchao(module[0].weight)


@case
def torchao_float8() -> Case:
    from torchao.quantization import Float8Tensor

    return torchao(Float8Tensor.from_hp(weight()))


@case
def torchao_mxfp8() -> Case:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    return torchao(MXTensor.to_mx(weight(), torch.float8_e4m3fn, 32))


@case
def torchao_mxfp4() -> Case:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    return torchao(MXTensor.to_mx(weight(), torch.float4_e2m1fn_x2, 32))


@case
def torchao_nvfp4() -> Case:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    return torchao(NVFP4Tensor.to_nvfp4(weight(), per_tensor_scale=torch.tensor(0.0013)))


# ------------------------------------------------------------------ HQQ


def hqq(bits: float, axis: int, group: int | None = 64, columns: int = IN) -> Case:
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    config = BaseQuantizeConfig(nbits=bits, group_size=group, axis=axis)
    layer = HQQLinear(
        linear(weight(columns=columns)), config, compute_dtype=torch.float32, device="cpu"
    )
    layer.encoded_state_dict = True
    state = {f"{NAME}.{k}": v.contiguous() for k, v in layer.state_dict().items() if v is not None}
    said = {"quant_method": "hqq", "quant_config": config, "skip_modules": ["lm_head"]}
    return Case(state, json.loads(json.dumps(said, default=str)), layer.dequantize())


@case
def hqq_4bit() -> Case:
    return hqq(4, 1)


@case
def hqq_4bit_interleaved() -> Case:
    return hqq(4, 0)


@case
def hqq_3bit() -> Case:
    return hqq(3, 1)


@case
def hqq_2bit_across_rows() -> Case:
    return hqq(2, 1, 16, columns=120)


@case
def hqq_8bit() -> Case:
    return hqq(8, 0)


@case
def hqq_1bit() -> Case:
    return hqq(1, 1, 32)


# ------------------------------------------------------------------ MLX


def mlx(bits: int, group: int, mode: str = "affine") -> Case:
    import mlx.core as mx
    import numpy as np

    found = mx.quantize(mx.array(weight().numpy()), group, bits, mode=mode)
    back = mx.dequantize(*found, group_size=group, bits=bits, mode=mode)
    parts = dict(zip(("weight", "scales", "biases"), found, strict=False))
    state = {f"{NAME}.{k}": torch.from_numpy(np.array(v).copy()) for k, v in parts.items()}
    said = {"group_size": group, "bits": bits, "mode": mode}
    return Case(state, said, torch.from_numpy(np.array(back.astype(mx.float32)).copy()))


for _bits in (2, 3, 4, 5, 6, 8):
    CASES[f"mlx_{_bits}bit"] = lambda bits=_bits: mlx(bits, 32 if bits == 3 else 64)
CASES["mlx_mxfp4"] = lambda: mlx(4, 32, "mxfp4")
CASES["mlx_mxfp8"] = lambda: mlx(8, 32, "mxfp8")
CASES["mlx_nvfp4"] = lambda: mlx(4, 16, "nvfp4")


# ------------------------------------------------------------------ AutoAWQ


def awq(version: str) -> Case:
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.modules.linear.gemv import WQLinear_GEMV
    from awq.utils.packing_utils import dequantize_gemm

    w, group = weight(rows=64), 32
    groups = w.view(64, -1, group)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales).round().clamp(0, 15)
    kind = WQLinear_GEMM if version == "gemm" else WQLinear_GEMV
    flip = (lambda x: x.t().contiguous()) if version == "gemm" else (lambda x: x)
    layer = kind.from_linear(linear(w), 4, group, scales=flip(scales), zeros=flip(zeros))
    spread = scales.float().repeat_interleave(group, 1), zeros.repeat_interleave(group, 1)
    codes = (
        (w + (zeros * scales).repeat_interleave(group, 1)) / scales.repeat_interleave(group, 1)
    ).round()
    back = (codes - spread[1]) * spread[0]
    if version == "gemm":
        own = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, group)
        back = own.t().contiguous()
    state = {k: v.contiguous() for k, v in layer.state_dict().items()}
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "version": version,
        "zero_point": True,
    }
    return Case({f"{NAME}.{k}": v for k, v in state.items()}, config, back)


@case
def awq_gemm() -> Case:
    return awq("gemm")


@case
def awq_gemv() -> Case:
    return awq("gemv")


# ------------------------------------------------------------------ GPTQModel


def gptq(bits: int, *, ordered: bool = True, version: int = 2, group: int = 32) -> Case:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    w, g = weight(rows=64), torch.Generator().manual_seed(3)
    belongs = torch.arange(IN) // group
    if not ordered:
        belongs = belongs[torch.randperm(IN, generator=g)]
    members = [w[:, belongs == i] for i in range(IN // group)]
    low = torch.stack([x.amin(1).clamp(max=0) for x in members], 1)
    high = torch.stack([x.amax(1).clamp(min=0) for x in members], 1)
    scales = ((high - low) / (2**bits - 1)).half().float()
    zeros = (-low / scales).round().clamp(1 if version == 1 else 0, 2**bits - 1)
    options = {"sym": False, "desc_act": not ordered, "in_features": IN, "out_features": 64}
    layer = TorchLinear(bits, group, **options)
    layer.pack_original(linear(w), scales, zeros, belongs.to(torch.int32))
    layer.optimize = lambda *_, **__: None
    layer.post_init()
    layer.dequant_dtype = torch.int32
    layer.scales = layer.scales.float()
    back = layer.dequantize_weight().T.contiguous().float()
    layer.scales = layer.scales.half()
    if version == 1:
        convert_gptq_v2_to_v1_format_module(layer, _Settings(bits))
    parts = ("qweight", "qzeros", "scales", "g_idx")
    state = {f"{NAME}.{k}": getattr(layer, k).detach().contiguous() for k in parts}
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": not ordered,
        "sym": False,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }
    return Case(state, config, back)


@dataclass
class _Settings:
    bits: int
    pack_dtype: torch.dtype = torch.int32


for _bits in (2, 3, 4, 8):
    CASES[f"gptq_{_bits}bit"] = lambda bits=_bits: gptq(bits, version=1)
CASES["gptq_4bit_v2"] = lambda: gptq(4)
CASES["gptq_4bit_act_order"] = lambda: gptq(4, ordered=False, version=1)


def write(name: str, made: Case) -> None:
    notes = made.metadata | {
        "config": json.dumps(made.config),
        "name": made.name,
    }
    state = {k: v.detach().cpu() for k, v in made.state.items()}
    save_file(
        state | {"expected": made.expected.detach().float().contiguous()},
        GOLDEN / f"{name}.safetensors",
        notes,
    )


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        try:
            write(name, CASES[name]())
            print(name, "written")
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}")


if __name__ == "__main__":
    main()
