"""HQQ: codes of 1 to 8 bits, with a scale and a zero point for each group of rows or columns.

`X.W_q` holds the codes, `X.scale` and `X.zero` those of the groups; the rest of what describes them
(`nbits`, `group_size`, `axis`, `shape`, `packing`) is stored in small tensors of their own. Entry e
of the flattened weight is in byte e mod n, where n is the number of bytes: the first part of the
weight has the uppermost bits. Groups follow one another (`axis` 1) or are interleaved (`axis` 0).
Layout: https://github.com/mobiusml/hqq, `hqq/core`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from lexray.checkpoint.base import Box, Checkpoint
from lexray.checkpoint.quant.flat import Window, look
from lexray.checkpoint.quant.method import FLOATS, Method, Roles, expect, join
from lexray.checkpoint.quant.packed import PackedWeight, Shape, StoredPart, broken, matrix

PACKINGS = {"8bit_u8": 8, "4bit_u8": 4, "3bit_32": 3, "2bit_u8": 2, "1bit_u8": 1}
WORDS = (
    *("nbits", "group_size", "axis", "shape", "packing", "unpack_view_dtype", "view_as_float"),
    *("quant_scale", "quant_zero", "compute_dtype", "offload_meta", "encoded_state_dict"),
    *("stores_quant_config", "channel_wise", "optimize", "round_zero"),
)
LONGEST = 64
"""Entries of the tensors that describe a weight."""


class HQQ(Method):
    names = ("hqq",)
    title = "HQQ"
    marks = (".W_q",)

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        needed = {"codes": ".W_q", "shape": ".shape", "packing": ".packing", "axis": ".axis"}
        allowed = {word: f".{word}" for word in (*WORDS, "scale", "zero") if word not in needed}
        return join(names, ".W_q", needed, allowed)

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        said = {word: _small(name, roles[word], checkpoint) for word in WORDS if word in roles}
        if any(said.get(word, [0])[0] for word in ("quant_scale", "quant_zero", "view_as_float")):
            raise broken(name, "its scales are quantised themselves, or its codes seen as floats")
        if "scale" not in roles or "zero" not in roles:
            raise broken(name, "its scale and zero are missing")
        shape = matrix(name, tuple(map(int, said["shape"])))
        packing = "".join(chr(int(c)) for c in said["packing"] if 0 < c < 128)
        axis, n = int(said["axis"][0]), prod(shape)
        if len(shape) != 2 or min(shape) < 1 or packing not in PACKINGS or axis not in (0, 1):
            raise broken(name, f"the packing {packing!r} of {shape} along axis {axis} is unknown")
        each = int(said.get("group_size", [0])[0]) or shape[axis]
        if each < 1 or n % each:
            raise broken(name, f"{shape} cannot be divided into groups of {each}")
        weight = HQQWeight(
            name,
            shape,
            f"HQQ {PACKINGS[packing]}-bit, groups of {each}",
            roles,
            packing,
            each,
            axis,
        )
        weight.check(checkpoint)
        return weight


def _small(name: str, tensor: str, checkpoint: Checkpoint) -> list[float]:
    """The numbers of a tensor that only describes."""
    info = checkpoint.info(tensor)
    if not 0 < prod(info.shape) <= LONGEST:
        raise broken(name, f"{tensor} of shape {info.shape} describes nothing")
    values = checkpoint.read_unchecked(tensor).double().flatten()
    if not bool(values.isfinite().all()):
        raise broken(name, f"{tensor} is no number")
    return [float(x) for x in values]


@dataclass(frozen=True)
class HQQWeight(PackedWeight):
    """A weight whose parts share bytes."""

    name: str
    shape: Shape
    stored: str
    roles: Roles
    packing: str
    each: int
    axis: int

    @property
    def bits(self) -> int:
        return PACKINGS[self.packing]

    @property
    def parts(self) -> int:
        """How many entries share a byte (3 bits: a word)."""
        return 10 if self.bits == 3 else 8 // self.bits

    @property
    def units(self) -> int:
        """How many bytes or words there are."""
        rows, columns = self._grouped
        return -(-rows // self.parts) * columns

    @property
    def _grouped(self) -> tuple[int, int]:
        """The matrix that was packed, along its first axis."""
        n = prod(self.shape)
        return (n // self.each, self.each) if self.axis == 1 else (self.each, n // self.each)

    def check(self, checkpoint: Checkpoint) -> None:
        dtype = torch.int32 if self.bits == 3 else torch.uint8
        codes = expect(self.roles["codes"], checkpoint.info(self.roles["codes"]), (dtype,))
        if prod(codes.shape) != self.units:
            raise self.wrong(f"{codes.shape} cannot hold the codes of {self.shape}")
        for role in ("scale", "zero"):
            info = expect(self.roles[role], checkpoint.info(self.roles[role]), FLOATS)
            if prod(info.shape) != prod(self.shape) // self.each:
                raise self.wrong(f"{self.roles[role]} has the shape {info.shape}")

    def _window(self, box: Box) -> Window:
        n, width = prod(self.shape), self.shape[-1]
        period = self.each if self.axis == 1 else n // self.each
        fitting = width % period == 0 if self.axis == 1 else period % width == 0
        return look(self.shape, box, fitting and self.units % width == 0)

    def _slots(self, window: Window) -> list[tuple[int, Box, Shape]]:
        """Which entries of a byte are meant, and in which bytes."""
        aligned = window.aligned
        width = self.shape[-1] if aligned else 1
        high = self.units // width
        start, stop = window.rows if aligned else window.columns
        slots: list[tuple[int, Box, Shape]] = []
        for slot in range(self.parts):
            first, last = max(start, slot * high), min(stop, (slot + 1) * high)
            if first < last:
                span = (first - slot * high, last - slot * high)
                box: Box = (span, window.columns) if aligned else ((0, 1), span)
                slots.append((slot, box, (high, width) if aligned else (1, high)))
        return slots

    def _groups(self, window: Window) -> tuple[Shape, Box]:
        """The scales to read; of interleaved groups all rows."""
        n, width = prod(self.shape), self.shape[-1]
        if self.axis == 1:
            return window.grid(self.each)
        period = n // self.each
        if window.aligned:
            return (period // width, width), ((0, period // width), window.columns)
        return (1, period), ((0, 1), (0, period))

    def pieces(self, box: Box) -> dict[str, StoredPart]:
        window = self._window(box)
        pieces = {
            f"codes {slot}": StoredPart(self.roles["codes"], shape, part)
            for slot, part, shape in self._slots(window)
        }
        for role in ("scale", "zero"):
            pieces[role] = StoredPart(self.roles[role], *self._groups(window))
        return pieces

    def values(self, read: Mapping[str, Tensor], box: Box) -> Tensor:
        window = self._window(box)
        mask, codes = (1 << self.bits) - 1, []
        for slot, _, _ in self._slots(window):
            shift = self.bits * (self.parts - 1 - slot)
            codes.append((read[f"codes {slot}"].int() >> shift) & mask)
        values = torch.cat(codes, 0 if window.aligned else 1).float()
        scale, zero = (self._spread(read[role].float(), window) for role in ("scale", "zero"))
        return window.cut(values.sub_(zero).mul_(scale), box)

    def _spread(self, groups: Tensor, window: Window) -> Tensor:
        if self.axis == 1:
            return groups[:, window.blocks(self.each)]
        if window.aligned:
            return groups[torch.arange(*window.rows) % len(groups)]
        return groups[:, torch.arange(*window.columns) % groups.shape[-1]]
