"""8-bit floats with a scale for each block, row or tensor: DeepSeek V3, Qwen3-FP8, fbgemm, MXFP8.

`X.weight` holds the codes, `X.weight_scale_inv` (fbgemm and older files: `X.weight_scale`) what
they are multiplied by; of stacked experts `X` and `X_scale_inv`. What is not quantised has no
scales.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.quant.code import FP4, PLAIN, POWERS
from lexray.checkpoint.quant.method import FLOATS, FP8, Method, Roles, expect
from lexray.checkpoint.quant.packed import (
    PackedWeight,
    ScaledCodes,
    StoredMatrix,
    broken,
    grid_of,
    matrix,
)

ENDINGS = ("_scale_inv", "_scale")


class Float8(Method):
    """`quant_method` fp8, mxfp8 and fbgemm_fp8."""

    names = ("fp8", "mxfp8", "fbgemm_fp8")
    title = "fp8"
    marks = (".weight_scale_inv", ".weight_scale")

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        return claim_scaled(names)

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        said = self.settings.listing("weight_block_size")
        block = (said[0], said[1]) if len(said) == 2 and {*map(type, said)} == {int} else None
        return pack_scaled(name, roles, checkpoint, block)


def claim_scaled(names: Collection[str]) -> dict[str, Roles]:
    """Weights beside which a tensor of the same name with `_scale_inv` or `_scale` lies."""
    claims: dict[str, Roles] = {}
    for ending in ENDINGS:
        for name in names:
            codes = name.removesuffix(ending)
            if name.endswith(ending) and codes in names:
                claims.setdefault(codes, {"codes": codes, "scale": name})
            elif name.endswith(f".weight{ending}"):
                raise broken(codes, f"{name} is there, but {codes} is not")
    return claims


def pack_scaled(
    name: str, roles: Roles, checkpoint: Checkpoint, block: tuple[int, int] | None = None
) -> PackedWeight:
    """8-bit floats (or pairs of 4-bit ones, in bytes) times the scales beside them."""
    codes, scale = checkpoint.info(roles["codes"]), checkpoint.info(roles["scale"])
    expect(roles["codes"], codes, (*FP8, torch.int8))
    expect(roles["scale"], scale, (*FLOATS, torch.float8_e8m0fnu, torch.uint8))
    shape = matrix(name, codes.shape)
    halves = codes.dtype == torch.int8
    shape = (*shape[:-1], 2 * shape[-1]) if halves else shape
    stored = StoredMatrix(roles["codes"], shape, FP4 if halves else PLAIN).check(codes.shape)
    words = "FP4" if halves else str(codes.dtype).removeprefix("torch.").removesuffix("fn")
    scales, (high, wide) = grid_of(name, shape, roles["scale"], scale.shape, block)
    if scale.dtype == torch.uint8:
        scales = replace(scales, code=POWERS)
    return ScaledCodes(
        name, shape, f"{words}{blocks_said(shape, high, wide)}", stored, scales, (high, wide)
    )


def blocks_said(shape: tuple[int, ...], high: int, wide: int) -> str:
    """How large the blocks are that share a scale, in words."""
    if (high, wide) == shape[-2:]:
        return ", one scale"
    if wide == shape[-1]:
        return ", a scale per row" if high == 1 else f", a scale per {high} rows"
    return f", groups of {wide}" if high == 1 else f", blocks of {high}×{wide}"
