"""MXFP4 as gpt-oss has it: stacked experts in blocks of 32 4-bit floats with a power of two each.

`X_blocks` is (experts, outputs, blocks, 16 bytes), `X_scales` the same without bytes; the plain
tensor `X` is (experts, inputs, outputs), as transformers' module has it.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.quant.code import FP4, POWERS
from lexray.checkpoint.quant.method import Method, Roles, expect, join
from lexray.checkpoint.quant.packed import PackedWeight, ScaledCodes, StoredMatrix, broken

BLOCK = 32


class MXFP4(Method):
    names = ("mxfp4",)
    title = "MXFP4"
    marks = ("_blocks",)

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        endings = {"codes": "_blocks", "scale": "_scales"}
        return join(names, "_blocks", endings, plain="")

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        codes = expect(roles["codes"], checkpoint.info(roles["codes"]), (torch.uint8,))
        scale = expect(roles["scale"], checkpoint.info(roles["scale"]), (torch.uint8,))
        if len(codes.shape) != 4 or codes.shape[-1] != BLOCK // 2 or 0 in codes.shape:
            raise broken(name, f"blocks of shape {codes.shape} are none of {BLOCK} each")
        if scale.shape != codes.shape[:-1]:
            raise broken(name, f"blocks of shape {codes.shape} have scales of shape {scale.shape}")
        experts, n_out, n_blocks, _ = codes.shape
        own = (experts, n_out, n_blocks * BLOCK)
        return ScaledCodes(
            name,
            (experts, own[2], n_out),
            f"MXFP4, groups of {BLOCK}",
            StoredMatrix(roles["codes"], own, FP4).check(codes.shape),
            StoredMatrix(roles["scale"], (experts, n_out, n_blocks), POWERS),
            (1, BLOCK),
            turned=True,
        )
