"""Every block format against the `gguf` package's own de-quantisation."""

from __future__ import annotations

import gguf
import numpy
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from lexray.checkpoint.gguf.dequantise import TYPES, quantisation

DECODABLE = [kind for kind in GGMLQuantizationType if kind in quants._type_traits]


def reference(blocks: torch.Tensor, kind: GGMLQuantizationType) -> torch.Tensor:
    with numpy.errstate(all="ignore"):
        return torch.from_numpy(quants.dequantize(blocks.numpy(), kind))


def random_blocks(kind: GGMLQuantizationType, n: int = 300) -> torch.Tensor:
    size = GGML_QUANT_SIZES[kind][1]
    return torch.randint(0, 256, (n, size), dtype=torch.uint8, generator=torch.manual_seed(kind))


@pytest.mark.parametrize("number", TYPES)
def test_own_types_agree_with_the_packages_table(number: int) -> None:
    kind, own = GGMLQuantizationType(number), TYPES[number]
    assert (own.name, (own.block, own.size)) == (kind.name, GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize("kind", DECODABLE, ids=lambda kind: kind.name)
@pytest.mark.parametrize("n", [1, 300])
def test_any_bytes_give_the_reference_values(kind: GGMLQuantizationType, n: int) -> None:
    found = quantisation(int(kind))
    assert found is not None
    blocks = random_blocks(kind, n)
    values = found.unpack(blocks)
    assert (values.dtype, values.shape) == (torch.float32, (n, found.block))
    torch.testing.assert_close(values, reference(blocks, kind), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", DECODABLE, ids=lambda kind: kind.name)
def test_quantised_values_come_back(kind: GGMLQuantizationType) -> None:
    weights = torch.randn(4, 512, generator=torch.manual_seed(0))
    try:
        packed = quants.quantize(weights.numpy(), kind)
    except NotImplementedError:
        pytest.skip(f"gguf cannot quantise to {kind.name}")
    found = quantisation(int(kind))
    assert found is not None
    values = found.unpack(torch.from_numpy(packed).reshape(-1, found.size)).view(4, 512)
    assert torch.equal(values, reference(torch.from_numpy(packed), kind))
    assert (
        torch.cosine_similarity(values.flatten(), weights.flatten(), 0) > 0.6
    )  # TQ has three levels


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.bfloat16])
def test_plain_floats(dtype: torch.dtype) -> None:
    weights = torch.randn(50, 1, generator=torch.manual_seed(0)).to(dtype)
    number = {"float16": 1, "float32": 0, "float64": 28, "bfloat16": 30}[str(dtype)[6:]]
    assert torch.equal(TYPES[number].unpack(weights.view(torch.uint8)), weights.float())


def test_types_without_decoding() -> None:
    eight = quantisation(GGMLQuantizationType.Q8_K)
    assert eight is not None
    assert eight.name == "Q8_K"
    with pytest.raises(NotImplementedError):
        eight.unpack(torch.zeros(1, eight.size, dtype=torch.uint8))
    unused = max(gguf.GGMLQuantizationType) + 1
    assert quantisation(unused) is None
    assert quantisation(4) is None  # Q4_2, which llama.cpp removed in 2023
