"""torchao's tensors as transformers writes them into safetensors.

A weight `X.weight` is stored as `X._weight_qdata`, `X._weight_scale` and so on; the header of the
file has a JSON text for each weight that names its class and settings. Read are `Float8Tensor`,
`Int8Tensor`, `IntxUnpackedToInt8Tensor`, `Int4Tensor`, `MXTensor` and `NVFP4Tensor`; other classes
are laid out for one device. Layout: https://github.com/pytorch/ao, `torchao/prototype/safetensors`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import torch

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.fields import Fields, brief, whole
from lexray.checkpoint.plain import parse_json
from lexray.checkpoint.quant.code import FP4, Code
from lexray.checkpoint.quant.compressed import small_floats
from lexray.checkpoint.quant.fp8 import blocks_said, pack_scaled
from lexray.checkpoint.quant.method import FLOATS, FP8, Method, Roles, expect
from lexray.checkpoint.quant.packed import (
    PackedWeight,
    ScaledCodes,
    Shape,
    StoredMatrix,
    broken,
    grid_of,
    matrix,
)
from lexray.errors import LexrayError

CODES = re.compile(r"(?P<module>.+)\._(?P<weight>\w+?)_qdata")
PARTS = {
    "scale": "scale",
    "zero": "zero_point",
    "factor": "per_tensor_scale",
    "smoothed": "act_pre_scale",
    "act_scale": "act_quant_scale",
    "act_zero": "act_quant_zero_point",
    "act_factor": "act_per_tensor_scale",
}
SIGNED = (*range(8), *range(-8, 0))
"""What four bits stand for in two's complement."""


class TorchAO(Method):
    names = ("torchao",)
    title = "torchao"
    marks = ("._weight_qdata",)

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        self._texts: dict[str, str] = {}
        claims: dict[str, Roles] = {}
        for name in names:
            if match := CODES.fullmatch(name):
                stem = name.removesuffix("qdata")
                roles = {role: stem + part for role, part in PARTS.items() if stem + part in names}
                claims[f"{match['module']}.{match['weight']}"] = {"codes": name, **roles}
        return claims

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        kind, said = self._describe(name, roles, checkpoint)
        if "scale" not in roles:
            raise broken(name, "its scales are missing")
        if "smoothed" in roles:
            raise broken(name, f"its inputs are scaled first ({roles['smoothed']})")
        if said.flag("is_swizzled_scales"):
            raise broken(name, "its scales are laid out for a kind of GPU (is_swizzled_scales)")
        if kind == "Float8Tensor":
            return pack_scaled(name, roles, checkpoint, _block(said))
        if kind in ("Int8Tensor", "IntxUnpackedToInt8Tensor"):
            return _whole_bytes(name, roles, checkpoint, _block(said))
        if kind == "Int4Tensor":
            return _four_bits(name, roles, checkpoint, _block(said))
        if kind in ("MXTensor", "NVFP4Tensor"):
            return _small(name, roles, checkpoint)
        raise LexrayError(
            f"{name} is stored as a {brief(kind)} of torchao, which lexray does not read; load the "
            "model with transformers and save it de-quantised, or take its original weights"
        )

    def _describe(self, name: str, roles: Roles, checkpoint: Checkpoint) -> tuple[str, Fields]:
        """The class of a weight and its settings, from the header of its file."""
        if name not in self._texts:
            self._texts |= checkpoint.metadata_of(roles["codes"])
        text = self._texts.get(name)
        if text is None:
            raise broken(name, "the header of its file does not say which class of torchao it is")
        description = parse_json(text.encode(errors="replace"), f"what the header says of {name}")
        if not isinstance(description, dict):
            raise broken(name, "what the header says of it is no JSON object")
        fields = Fields(description, f"the header's words on {name}")
        return fields.text("_type") or "", fields.object("_data")


def _block(said: Fields) -> tuple[int, int] | None:
    """Rows and columns that share a scale."""
    given = said.get("block_size")
    sizes = [whole(n) or 0 for n in given] if isinstance(given, list) else []
    return (sizes[-2], sizes[-1]) if len(sizes) >= 2 and min(sizes) > 0 else None


def _whole_bytes(
    name: str, roles: Roles, checkpoint: Checkpoint, block: tuple[int, int] | None
) -> PackedWeight:
    codes = expect(roles["codes"], checkpoint.info(roles["codes"]), (torch.int8,))
    scale = expect(roles["scale"], checkpoint.info(roles["scale"]), FLOATS)
    shape = matrix(name, codes.shape)
    sizes = scale.shape if scale.shape not in ((), (1,)) else (1, 1)
    scales, (high, wide) = grid_of(name, shape, roles["scale"], sizes, block)
    zero = None
    if "zero" in roles:
        info = expect(
            roles["zero"], checkpoint.info(roles["zero"]), (torch.int8, torch.int32, *FLOATS)
        )
        zero = replace(scales, name=roles["zero"]).check(info.shape)
    return ScaledCodes(
        name,
        shape,
        f"torchao int8{blocks_said(shape, high, wide)}",
        StoredMatrix(roles["codes"], shape),
        scales,
        (high, wide),
        zero=zero,
    )


def _four_bits(
    name: str, roles: Roles, checkpoint: Checkpoint, block: tuple[int, int] | None
) -> PackedWeight:
    """Signed codes, two per byte; scales and what is added have a row per group."""
    codes = expect(roles["codes"], checkpoint.info(roles["codes"]), (torch.int8, torch.uint8))
    scale = expect(roles["scale"], checkpoint.info(roles["scale"]), FLOATS)
    *front, rows, half = matrix(name, codes.shape)
    shape: Shape = (*front, rows, 2 * half)
    if block is None or "zero" not in roles:
        raise broken(name, "the header does not say how large its groups are, or zeros are missing")
    groups = (*front, rows, -(-shape[-1] // block[1]))
    bias = expect(roles["zero"], checkpoint.info(roles["zero"]), FLOATS)
    return ScaledCodes(
        name,
        shape,
        f"torchao 4-bit, groups of {block[1]}",
        StoredMatrix(roles["codes"], shape, Code(4, table=tuple(map(float, SIGNED)))),
        StoredMatrix(roles["scale"], groups, flipped=True).check(scale.shape),
        (1, block[1]),
        bias=StoredMatrix(roles["zero"], groups, flipped=True).check(bias.shape),
    )


def _small(name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
    """MXFP8, MXFP4 and NVFP4."""
    codes = checkpoint.info(roles["codes"])
    if codes.dtype in FP8:
        return pack_scaled(name, roles, checkpoint)
    expect(roles["codes"], codes, (torch.uint8,))
    shape = matrix(name, codes.shape)
    stored = StoredMatrix(roles["codes"], (*shape[:-1], 2 * shape[-1]), FP4)
    return small_floats(name, roles, checkpoint, stored, divides=False)
