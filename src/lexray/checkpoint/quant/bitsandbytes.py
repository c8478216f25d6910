"""bitsandbytes: int8 with a scale per row, and NF4 or FP4 in blocks over the flattened matrix.

int8: `X.weight` and `X.SCB`, the largest magnitude of each row. 4-bit: `X.weight` is one column of
bytes (or of another dtype, as which they were stored), `X.weight.absmax` the largest magnitude of
each block, `X.weight.quant_map` what the codes stand for. With double quantisation `absmax` is made
of codes too, with `nested_absmax` and `nested_quant_map`. `X.weight.quant_state.bitsandbytes__nf4`
is a JSON text that says the rest. Layout: https://github.com/bitsandbytes-foundation/bitsandbytes,
`functional.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lexray.checkpoint.base import Box, Checkpoint
from lexray.checkpoint.fields import Fields, whole
from lexray.checkpoint.plain import parse_json
from lexray.checkpoint.quant.code import Code
from lexray.checkpoint.quant.flat import Window, look
from lexray.checkpoint.quant.method import Method, Roles, expect, join
from lexray.checkpoint.quant.packed import (
    PackedWeight,
    ScaledCodes,
    Shape,
    StoredMatrix,
    StoredPart,
    broken,
    matrix,
)

STATE = re.compile(r"(?P<weight>.+)\.quant_state\.bitsandbytes__(?P<kind>nf4|fp4)")
LONGEST_STATE = 1 << 14
"""Bytes of the text, which has some 200."""
STORAGE = (torch.uint8, torch.bfloat16, torch.float16, torch.float32)
PER_ROW = 1 / 127


class BitsAndBytes(Method):
    names = ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit")
    title = "bitsandbytes"
    marks = (".SCB", ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4")

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        endings = {"codes": ".weight", "scale": ".SCB"}
        claims = join(names, ".SCB", endings, {"layout": ".weight_format"})
        for name in names:
            if match := STATE.fullmatch(name):
                claims[match["weight"]] = self._roles(match["weight"], name, names)
        return claims

    def _roles(self, weight: str, state: str, names: Collection[str]) -> Roles:
        roles = {"codes": weight, "state": state}
        for role in ("absmax", "quant_map", "nested_absmax", "nested_quant_map"):
            if f"{weight}.{role}" in names:
                roles[role] = f"{weight}.{role}"
        missing = {"absmax", "quant_map"} - roles.keys()
        if weight not in names or missing:
            raise broken(weight, f"{state} is there, but {missing or 'the weight'} is not")
        return roles

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        return (_four_bits if "state" in roles else _eight_bits)(name, roles, checkpoint)


def _eight_bits(name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
    codes = expect(name, checkpoint.info(roles["codes"]), (torch.int8,))
    scale = expect(roles["scale"], checkpoint.info(roles["scale"]), (torch.float32,))
    shape = matrix(name, codes.shape)
    if "layout" in roles and int(checkpoint.read_unchecked(roles["layout"]).sum()) != 0:
        raise broken(name, "its rows are interleaved for a kind of GPU (weight_format)")
    return ScaledCodes(
        name,
        shape,
        "bitsandbytes int8, a scale per row",
        StoredMatrix(roles["codes"], shape),
        StoredMatrix(roles["scale"], (shape[0], 1)).check(scale.shape),
        (1, shape[1]),
        constant=PER_ROW,
    )


@dataclass(frozen=True)
class FourBits(PackedWeight):
    """Codes of four bits in blocks over the flattened weight."""

    name: str
    shape: Shape
    stored: str
    roles: Roles
    unit: int
    """Bytes of the dtype as which codes are stored."""
    block: int
    nested: int
    """How many blocks share a scale of their scales; 0 without double quantisation."""
    offset: float

    def _window(self, box: Box) -> Window:
        width = self.shape[-1]
        aligned = width % self.block == 0 and width % (2 * self.unit) == 0
        return look(self.shape, box, aligned)

    def pieces(self, box: Box) -> dict[str, StoredPart]:
        window = self._window(box)
        pieces = {
            "codes": StoredPart(self.roles["codes"], *window.grid(2 * self.unit)),
            "absmax": StoredPart(self.roles["absmax"], *window.grid(self.block)),
            "quant_map": StoredPart(self.roles["quant_map"], (16,), ((0, 16),)),
        }
        if self.nested:
            count = -(-prod(self.shape) // self.block)
            first, last = self._nested(window)
            size = -(-count // self.nested)
            pieces["nested_absmax"] = StoredPart(
                self.roles["nested_absmax"], (size,), ((first, last + 1),)
            )
            pieces["nested_quant_map"] = StoredPart(
                self.roles["nested_quant_map"], (256,), ((0, 256),)
            )
        return pieces

    def _nested(self, window: Window) -> tuple[int, int]:
        """The first and the last scale of scales."""
        (_, width), ((top, bottom), (left, right)) = window.grid(self.block)
        return (top * width + left) // self.nested, (
            (bottom - 1) * width + right - 1
        ) // self.nested

    def values(self, read: Mapping[str, Tensor], box: Box) -> Tensor:
        window = self._window(box)
        code = Code(4, self.unit, order=tuple(i ^ 1 for i in range(2 * self.unit)))
        numbers = code.unpack(read["codes"], *window.columns).int()
        values = read["quant_map"].float()[numbers]
        absmax = self._absmax(read, window)
        return window.cut(values.mul_(absmax[:, window.blocks(self.block)]), box)

    def _absmax(self, read: Mapping[str, Tensor], window: Window) -> Tensor:
        if not self.nested:
            return read["absmax"].float()
        (_, width), ((top, bottom), (left, right)) = window.grid(self.block)
        at = torch.arange(top, bottom)[:, None] * width + torch.arange(left, right)
        scale = read["nested_absmax"].float()[at // self.nested - self._nested(window)[0]]
        return read["nested_quant_map"].float()[read["absmax"].int()] * scale + self.offset


def _four_bits(name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
    state = _state(name, roles["state"], checkpoint)
    shape = matrix(name, tuple(_sizes(name, state.listing("shape"))))
    kind, block = state.text("quant_type"), state.whole("blocksize") or 0
    if kind not in ("nf4", "fp4") or not 1 < block <= 1 << 16 or block % 2:
        raise broken(name, f"codes of the kind {kind!r} in blocks of {block} are unknown")
    codes = expect(roles["codes"], checkpoint.info(roles["codes"]), STORAGE)
    n, unit = prod(shape), codes.dtype.itemsize
    if prod(codes.shape) != -(-n // (2 * unit)):
        raise broken(name, f"{codes.shape} cannot hold the codes of {shape}")
    nested = _check_nested(name, state, roles, checkpoint, -(-n // block))
    words = f"bitsandbytes {kind.upper()}, blocks of {block}{', double' if nested else ''}"
    offset = float(state.number("nested_offset") or 0.0)
    return FourBits(name, shape, words, roles, unit, block, nested, offset)


def _check_nested(
    name: str, state: Fields, roles: Roles, checkpoint: Checkpoint, count: int
) -> int:
    """Raises unless there are as many scales as blocks; the number of blocks that share one of
    their own."""
    each = state.whole("nested_blocksize") or 0
    double = "nested_absmax" in roles or each != 0
    sizes = {"absmax": count, "quant_map": 16}
    if double:
        if not 1 < each <= 1 << 16:
            raise broken(name, f"scales in blocks of {each} are unknown")
        sizes |= {"nested_absmax": -(-count // each), "nested_quant_map": 256}
    for role, size in sizes.items():
        if role not in roles:
            raise broken(name, f"its {role} is missing")
        dtype = torch.uint8 if double and role == "absmax" else torch.float32
        info = expect(roles[role], checkpoint.info(roles[role]), (dtype,))
        if prod(info.shape) != size:
            raise broken(
                name, f"{roles[role]} has the shape {info.shape}, where {size} are expected"
            )
    return each if double else 0


def _state(name: str, tensor: str, checkpoint: Checkpoint) -> Fields:
    info = expect(tensor, checkpoint.info(tensor), (torch.uint8,))
    if len(info.shape) != 1 or not 0 < info.shape[0] <= LONGEST_STATE:
        raise broken(name, f"{tensor} is no text")
    raw = checkpoint.read_unchecked(tensor).cpu().numpy().tobytes()
    state = parse_json(raw, f"{tensor} is no text: it")
    if not isinstance(state, dict):
        raise broken(name, f"{tensor} is no JSON object")
    return Fields(state, tensor)


def _sizes(name: str, shape: list[object]) -> list[int]:
    sizes = [whole(n) or 0 for n in shape]
    if min(sizes, default=0) < 1 or prod(sizes) >= 1 << 62:
        raise broken(name, f"it claims the shape {str(shape)[:60]}")
    return sizes
