"""GGUF's block formats, turned into float32.

A quantised row is a chain of blocks of equal size: a few bytes of scales and the packed integers
that they scale. The layouts are those of llama.cpp's `ggml-quants.c`; the common ones are unpacked
here in torch, all blocks of a call at once, the rare ones by the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Unpack = Callable[[Tensor], Tensor]
"""From blocks, (n, size) bytes, to values, (n, block) float32."""

PIECE = 1 << 22
"""How many values are unpacked at once."""


@dataclass(frozen=True)
class Quantisation:
    """A tensor type: `block` values are stored in `size` bytes."""

    name: str
    block: int
    size: int
    unpack: Unpack


def quantisation(number: int) -> Quantisation | None:
    """The tensor type with this number in a GGUF file; None if nobody knows it."""
    return TYPES[number] if number in TYPES else _from_package(number)


def _from_package(number: int) -> Quantisation | None:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # 50 ms, and seldom needed

    try:
        kind = GGMLQuantizationType(number)
        block, size = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        return None

    def unpack(blocks: Tensor) -> Tensor:
        import numpy
        from gguf import quants

        one_row = blocks.numpy().reshape(1, -1)  # of many rows it takes sixteen at a time
        with numpy.errstate(all="ignore"):
            values = quants.dequantize(one_row, kind)
        return torch.from_numpy(values.reshape(-1, block))

    return Quantisation(kind.name, block, size, unpack)


def unpack_into(out: Tensor, blocks: Tensor, kind: Quantisation, skipped: int) -> None:
    """Fills `out` (…, columns) from `blocks` (…, blocks per row, size), of which the first
    `skipped` columns are left out, some PIECE values at a time so that little more is allocated.
    """
    values = blocks.numel() // kind.size * kind.block
    if values <= PIECE or blocks.dim() == 2:
        fresh = blocks.clone(memory_format=torch.contiguous_format).view(-1, kind.size)
        rows = kind.unpack(fresh).view(*out.shape[:-1], -1)
        out.copy_(rows[..., skipped : skipped + out.shape[-1]])
    elif len(blocks) == 1:
        unpack_into(out[0], blocks[0], kind, skipped)
    else:
        step = max(1, PIECE * len(blocks) // values)
        for at in range(0, len(blocks), step):
            unpack_into(out[at : at + step], blocks[at : at + step], kind, skipped)


def _view_as(dtype: torch.dtype) -> Unpack:
    return lambda blocks: blocks.view(dtype).float()


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at byte `at` of each block, as (n, 1)."""
    return (
        blocks[:, at : at + 2].clone(memory_format=torch.contiguous_format).view(torch.half).float()
    )


def _fields(packed: Tensor, width: int, *shifts: int) -> Tensor:
    """Bit fields, (n, bytes) to (n, bytes·len(shifts)).

    Runs of `width` bytes are read once per shift, each time for the field that begins there and
    ends where the next one begins.
    """
    each = 8 // len(shifts)
    runs = packed.reshape(len(packed), -1, 1, width)
    moved = runs >> torch.tensor(shifts, dtype=torch.uint8).view(-1, 1)
    return moved.bitwise_and_((1 << each) - 1).reshape(len(packed), -1)


def _nibbles(packed: Tensor, width: int) -> Tensor:
    return _fields(packed, width, 0, 4)


def _pairs(packed: Tensor, width: int) -> Tensor:
    return _fields(packed, width, 0, 2, 4, 6)


def _bits(packed: Tensor, width: int) -> Tensor:
    return _fields(packed, width, *range(8))


def _scale(values: Tensor, scales: Tensor, minima: Tensor | None = None) -> Tensor:
    """values · scale − minimum, with as many equal groups per block as there are scales."""
    grouped = values.float().view(*scales.shape, -1).mul_(scales[..., None])
    if minima is not None:
        grouped.sub_(minima[..., None])
    return grouped.view(len(values), -1)


def _q4_0(b: Tensor) -> Tensor:
    return _scale(_nibbles(b[:, 2:], 16).to(torch.int8).sub_(8), _half(b, 0))


def _q4_1(b: Tensor) -> Tensor:
    return _scale(_nibbles(b[:, 4:], 16), _half(b, 0), -_half(b, 2))


def _q5_0(b: Tensor) -> Tensor:
    values = _nibbles(b[:, 6:], 16) | _bits(b[:, 2:6], 1) << 4
    return _scale(values.to(torch.int8).sub_(16), _half(b, 0))


def _q5_1(b: Tensor) -> Tensor:
    values = _nibbles(b[:, 8:], 16) | _bits(b[:, 4:8], 1) << 4
    return _scale(values, _half(b, 0), -_half(b, 2))


def _q8_0(b: Tensor) -> Tensor:
    return _scale(b[:, 2:].view(torch.int8), _half(b, 0))


def _q2_k(b: Tensor) -> Tensor:
    scales, values = b[:, :16], _pairs(b[:, 16:80], 32)
    return _scale(values, _half(b, 80) * (scales & 15), _half(b, 82) * (scales >> 4))


def _q3_k(b: Tensor) -> Tensor:
    high = _bits(b[:, :32], 32) << 2
    values = (_pairs(b[:, 32:96], 32) | high).to(torch.int8).sub_(4)
    scales = _nibbles(b[:, 96:104], 8) | _pairs(b[:, 104:108], 4) << 4
    return _scale(values, _half(b, 108) * scales.to(torch.int8).sub_(32))


def _six_bit_scales(b: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum of each of the eight groups of a Q4_K or Q5_K block.

    Those of groups 0-3 are the low six bits of bytes 4-7 and 8-11; those of groups 4-7 have their
    low four bits in bytes 12-15 and their upper two at the top of bytes 4-11.
    """
    scale, least, both = b[:, 4:8], b[:, 8:12], b[:, 12:16]
    scales = torch.cat([scale & 63, both & 15 | scale >> 2 & 48], 1)
    minima = torch.cat([least & 63, both >> 4 | least >> 2 & 48], 1)
    return _half(b, 0) * scales, _half(b, 2) * minima


def _q4_k(b: Tensor) -> Tensor:
    return _scale(_nibbles(b[:, 16:], 32), *_six_bit_scales(b))


def _q5_k(b: Tensor) -> Tensor:
    values = _nibbles(b[:, 48:], 32) | _bits(b[:, 16:48], 32) << 4
    return _scale(values, *_six_bit_scales(b))


def _q6_k(b: Tensor) -> Tensor:
    values = _nibbles(b[:, :128], 64) | _pairs(b[:, 128:192], 32) << 4
    return _scale(values.to(torch.int8).sub_(32), _half(b, 208) * b[:, 192:208].view(torch.int8))


TYPES = {
    0: Quantisation("F32", 1, 4, _view_as(torch.float32)),
    1: Quantisation("F16", 1, 2, _view_as(torch.float16)),
    2: Quantisation("Q4_0", 32, 18, _q4_0),
    3: Quantisation("Q4_1", 32, 20, _q4_1),
    6: Quantisation("Q5_0", 32, 22, _q5_0),
    7: Quantisation("Q5_1", 32, 24, _q5_1),
    8: Quantisation("Q8_0", 32, 34, _q8_0),
    10: Quantisation("Q2_K", 256, 84, _q2_k),
    11: Quantisation("Q3_K", 256, 110, _q3_k),
    12: Quantisation("Q4_K", 256, 144, _q4_k),
    13: Quantisation("Q5_K", 256, 176, _q5_k),
    14: Quantisation("Q6_K", 256, 210, _q6_k),
    28: Quantisation("F64", 1, 8, _view_as(torch.float64)),
    30: Quantisation("BF16", 1, 2, _view_as(torch.bfloat16)),
}
"""Keyed by the type's number in the file; everything else is looked up in `gguf`."""
