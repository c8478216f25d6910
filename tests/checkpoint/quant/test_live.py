"""Modules in memory whose layers are quantised: each library's own layers, its own de-quantising.

What needs a library that is not installed is skipped.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import lexray as lx
from lexray.model.info import info
from lexray.model.model import Model
from tests.checkpoint.quant.test_models import SIZES
from tests.checkpoint.quant.writers import fp8

NAME = "model.layers.0.self_attn.q_proj"


def fresh() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES | {"intermediate_size": 128})).eval()


def check(module: nn.Module, expected: Tensor, stored: str) -> Model:
    """A part and the whole are what the library makes of the weight, and the rest is there."""
    model = Model.from_module(module)
    checkpoint, weight = model.checkpoint, f"{NAME}.weight"
    assert set(checkpoint.names()) == set(fresh().state_dict())
    assert checkpoint.info(weight).stored == stored
    assert checkpoint.read(weight).equal(expected.float())
    part = checkpoint.read(weight, slice(3, 20), slice(5, 40))
    assert part.equal(expected[3:20, 5:40].float())
    assert model.view("raw")["L0H1"].W_Q.equal(expected[16:32].T.float())
    assert "quantised" in info(model).traits["weights"]
    return model


def test_fp8_layers() -> None:
    from transformers.integrations.finegrained_fp8 import FP8Linear

    module = fresh()
    parts, expected = fp8(module.get_parameter(f"{NAME}.weight").detach())
    layer = FP8Linear(64, 64, block_size=(16, 32))
    layer.weight = nn.Parameter(parts[".weight"], requires_grad=False)
    layer.weight_scale_inv = nn.Parameter(parts[".weight_scale_inv"], requires_grad=False)
    module.set_submodule(NAME, layer)
    module.config.quantization_config = {"quant_method": "fp8", "weight_block_size": [16, 32]}
    check(module, expected, "float8_e4m3, blocks of 16×32")


def bitsandbytes(layer: Any) -> LlamaForCausalLM:
    module = fresh()
    module.set_submodule(NAME, layer)
    module.config.quantization_config = {"quant_method": "bitsandbytes"}
    return module


@pytest.mark.parametrize("double", [False, True])
def test_bitsandbytes_four_bits(double: bool) -> None:
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    weight = fresh().get_parameter(f"{NAME}.weight").detach()
    layer = bnb.nn.Linear4bit(64, 64, bias=False, compress_statistics=double, quant_type="nf4")
    layer.weight = bnb.nn.Params4bit(
        weight, requires_grad=False, compress_statistics=double, quant_type="nf4"
    )
    module = bitsandbytes(layer.to("cpu"))
    expected = bnb.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    words = f"bitsandbytes NF4, blocks of 64{', double' if double else ''}"
    model = check(module, expected, words)
    with torch.no_grad():
        logits = module(torch.tensor([[1, 2, 3]])).logits[0]
    near = {"atol": 1e-3, "rtol": 0.0}  # bitsandbytes rounds its scales to bfloat16 on some CPUs
    torch.testing.assert_close(model.trace([1, 2, 3]).logits, logits, **near)
    assert model.checkpoint.read(f"{NAME}.weight").equal(expected.float())  # also after a run


def test_bitsandbytes_eight_bits() -> None:
    bnb = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    weight = fresh().get_parameter(f"{NAME}.weight").detach()
    layer = bnb.nn.Linear8bitLt(64, 64, bias=False, has_fp16_weights=False)
    layer.weight = bnb.nn.Int8Params(weight.half(), requires_grad=False, has_fp16_weights=False)
    module = bitsandbytes(layer.to("cpu"))
    expected = bnb.functional.int8_vectorwise_dequant(layer.weight.data, layer.weight.SCB)
    check(module, expected, "bitsandbytes int8, a scale per row")


def test_torchao() -> None:
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    module = fresh()
    layer = module.get_submodule(NAME)
    torchao.quantize_(layer, torchao.Int8WeightOnlyConfig(version=2))
    check(module, layer.weight.dequantize(), "torchao Int8Tensor")


def test_hqq() -> None:
    hqq = pytest.importorskip("hqq.core.quantize", reason="hqq is not installed")
    module = fresh()
    config = hqq.BaseQuantizeConfig(nbits=4, group_size=32, axis=1)
    options = {"compute_dtype": torch.float32, "device": "cpu"}
    layer = hqq.HQQLinear(module.get_submodule(NAME), config, **options)
    module.set_submodule(NAME, layer)
    check(module, layer.dequantize(), "HQQ 4-bit")


def test_layers_that_are_arranged_for_a_kernel_are_refused() -> None:
    module = fresh()
    layer = nn.Module()
    layer.qweight = nn.Buffer(torch.ones(8, 64, dtype=torch.int32))
    module.set_submodule(NAME, layer)
    module.config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(lx.LexrayError, match=r"quantised by gptq cannot be read in memory.*files"):
        Model.from_module(module)
