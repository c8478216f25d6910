"""compressed-tensors (llm-compressor, vLLM): fp8, int8, packed integers, NVFP4, MXFP4.

Codes are in `X.weight`, or packed in `X.weight_packed`; scales in `X.weight_scale`, with zero
points in `X.weight_zero_point`, act-order in `X.weight_g_idx` and the true shape in
`X.weight_shape`. The config's `config_groups` say for which modules how many bits are meant;
modules that it ignores are stored as they are. Layout:
https://github.com/neuralmagic/compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

import torch

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.fields import Fields
from lexray.checkpoint.patterns import matches
from lexray.checkpoint.quant.code import E2M3, FP4, POWERS, Code
from lexray.checkpoint.quant.fp8 import blocks_said
from lexray.checkpoint.quant.method import FLOATS, FP8, Method, Roles, expect, join
from lexray.checkpoint.quant.packed import (
    PackedWeight,
    ScaledCodes,
    Shape,
    StoredMatrix,
    broken,
    grid_of,
    matrix,
    one_factor,
)
from lexray.errors import LexrayError

FORMATS = {
    *("int-quantized", "float-quantized", "naive-quantized", "pack-quantized", "mixed-precision"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp6-pack-quantized", "mxfp8-quantized"),
}
STORED = ("compressed", None)
"""The statuses of a checkpoint whose weights are stored as codes."""
WEIGHTS = (*FP8, torch.int8)


class CompressedTensors(Method):
    names = ("compressed-tensors", "compressed_tensors")
    title = "compressed-tensors"
    marks = (".weight_packed", ".weight_scale")

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        s = self.settings
        if s.text("format") is not None and s.text("format") not in FORMATS:
            raise self.refuse("format", f"of which lexray reads {', '.join(sorted(FORMATS))}")
        if s.text("quantization_status") not in STORED:
            raise self.refuse("quantization_status", "so its weights are not stored as codes")
        sparsity = s.object("sparsity_config").text("format")
        if sparsity not in (None, "dense"):
            raise self.refuse("sparsity_config", f"({sparsity}), which lexray does not read")
        if s.object("transform_config").object("config_groups"):
            raise self.refuse("transform_config", "whose rotations lexray does not undo")
        self.schemes = [self._scheme(key) for key in s.object("config_groups")]
        if not self.schemes:
            raise LexrayError(f"{self.where} is quantised by {self.title}, without config_groups")
        common = {"scale": ".weight_scale"}
        allowed = {
            "zero": ".weight_zero_point",
            "groups": ".weight_g_idx",
            "shape": ".weight_shape",
            "factor": ".weight_global_scale",
        }
        packed = join(names, ".weight_packed", {"codes": ".weight_packed", **common}, allowed)
        rest = [n for n in names if n.removesuffix("_scale") not in packed]
        return packed | join(rest, ".weight_scale", {"codes": ".weight", **common}, allowed)

    def _scheme(self, key: str) -> tuple[list[str], Fields]:
        group = self.settings.object("config_groups").object(key)
        targets = [str(target) for target in group.listing("targets")]
        form = group.text("format")
        if form is not None and form not in FORMATS:
            raise LexrayError(f"{self.where}: config_groups.{key} has the unknown format {form!r}")
        return targets, group.object("weights")

    def _weights(self, name: str) -> Fields:
        """What the config says of a module's weights: by its name, by a pattern, by its class."""
        module = name.removesuffix(".weight")
        ranks = []
        for targets, weights in self.schemes:
            for target in targets:
                if target.startswith("re:"):
                    rank = 1 if matches(target[3:], module) else None
                else:
                    exact = target == module or module.endswith(f".{target}")
                    rank = 0 if exact else 2 if target[:1].isupper() else None
                if rank is not None:
                    ranks.append((rank, weights))
        if not ranks:
            raise broken(name, "no group of the config's config_groups speaks of it")
        return min(ranks, key=lambda rank: rank[0])[1]

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        said = self._weights(name)
        bits, kind = said.whole("num_bits") or 8, said.text("type") or "int"
        codes = checkpoint.info(roles["codes"])
        if codes.dtype == torch.int32 and kind == "int":
            return self._packed(name, roles, checkpoint, bits, said)
        if codes.dtype == torch.uint8 and kind == "float" and bits in (4, 6):
            return self._small_floats(name, roles, checkpoint, bits)
        if codes.dtype in WEIGHTS and (codes.dtype == torch.int8) == (kind == "int"):
            shape = matrix(name, codes.shape)
            words = "int8" if kind == "int" else str(codes.dtype)[6:].removesuffix("fn")
            return self._scaled(
                name, roles, checkpoint, StoredMatrix(roles["codes"], shape), words, said
            )
        stored = str(codes.dtype).removeprefix("torch.")
        raise broken(name, f"it is stored as {stored}, where the config says {kind} of {bits} bits")

    def _packed(
        self, name: str, roles: Roles, checkpoint: Checkpoint, bits: int, said: Fields
    ) -> PackedWeight:
        if not 1 <= bits <= 8:
            raise broken(name, f"no words hold codes of {bits} bits")
        layout = matrix(name, checkpoint.info(roles["codes"]).shape)
        shape = self._true_shape(name, roles, checkpoint, layout)
        code = next(
            (
                code
                for code in (Code(bits, 4), Code(bits, 4, loose=True))
                if code.width(shape[-1]) == layout[-1]
            ),
            None,
        )
        if code is None or shape[:-1] != layout[:-1]:
            raise broken(name, f"{layout} words cannot hold {shape} codes of {bits} bits")
        code = replace(code, offset=-(1 << bits - 1))
        stored = StoredMatrix(roles["codes"], shape, code)
        return self._scaled(name, roles, checkpoint, stored, f"{bits}-bit", said)

    def _true_shape(self, name: str, roles: Roles, checkpoint: Checkpoint, stored: Shape) -> Shape:
        if "shape" not in roles:
            raise broken(name, "it has no weight_shape beside its codes")
        info = expect(roles["shape"], checkpoint.info(roles["shape"]), (torch.int64, torch.int32))
        if info.shape != (len(stored),):
            raise broken(name, f"{roles['shape']} should have {len(stored)} sizes")
        sizes = tuple(int(n) for n in checkpoint.read_unchecked(roles["shape"]))
        if min(sizes) < 1 or prod(sizes) > 32 * prod(stored):
            raise broken(name, f"{roles['shape']} says {sizes}, which {stored} words cannot hold")
        return sizes

    def _scaled(
        self,
        name: str,
        roles: Roles,
        checkpoint: Checkpoint,
        codes: StoredMatrix,
        words: str,
        said: Fields,
    ) -> PackedWeight:
        scale = expect(roles["scale"], checkpoint.info(roles["scale"]), (*FLOATS, torch.uint8))
        shape = codes.shape
        block = [*said.listing("block_structure"), *[None] * 2][:2]
        sizes = (1, said.whole("group_size")) if said.whole("group_size") else tuple(block)
        valid = all(type(n) is int and n > 0 for n in sizes)
        scales, (high, wide) = grid_of(
            name, shape, roles["scale"], scale.shape, (sizes[0], sizes[1]) if valid else None
        )
        if scale.dtype == torch.uint8:
            scales = replace(scales, code=POWERS)
        how = blocks_said(shape, high, wide)
        return ScaledCodes(
            name,
            shape,
            f"{words}{how}{', act-order' if 'groups' in roles else ''}",
            codes,
            scales,
            (high, wide),
            zero=self._zero(roles, checkpoint, codes, scales.shape),
            groups=self._groups(name, roles, checkpoint, shape),
        )

    def _groups(self, name: str, roles: Roles, checkpoint: Checkpoint, shape: Shape) -> str | None:
        if "groups" not in roles:
            return None
        info = expect(roles["groups"], checkpoint.info(roles["groups"]), (torch.int32, torch.int64))
        if info.shape != shape[-1:]:
            raise broken(name, f"{roles['groups']} should have one entry for each of its inputs")
        return roles["groups"]

    def _zero(
        self, roles: Roles, checkpoint: Checkpoint, codes: StoredMatrix, size: Shape
    ) -> StoredMatrix | None:
        """Zero points: plain, or packed like the codes, along the rows."""
        if "zero" not in roles:
            return None
        info = checkpoint.info(roles["zero"])
        if codes.code.bits and info.dtype == torch.int32:
            return StoredMatrix(roles["zero"], size, codes.code, rows_packed=True).check(info.shape)
        expect(roles["zero"], info, (torch.int8, *FP8))
        return StoredMatrix(roles["zero"], size).check(info.shape)

    def _small_floats(
        self, name: str, roles: Roles, checkpoint: Checkpoint, bits: int
    ) -> PackedWeight:
        """MXFP4, MXFP6 (powers of two per 32) and NVFP4 (8-bit floats per 16, and one for all)."""
        stored = matrix(name, checkpoint.info(roles["codes"]).shape)
        shape = (*stored[:-1], stored[-1] * 8 // bits)
        code = FP4 if bits == 4 else Code(6, table=E2M3)
        return small_floats(
            name, roles, checkpoint, StoredMatrix(roles["codes"], shape, code), True
        )


def small_floats(
    name: str, roles: Roles, checkpoint: Checkpoint, codes: StoredMatrix, divides: bool
) -> PackedWeight:
    """Floats of 4 or 6 bits in groups; with 8-bit scales comes a `factor` that multiplies those, or
    divides them."""
    scale = checkpoint.info(roles["scale"])
    expect(roles["scale"], scale, (torch.float8_e4m3fn, torch.uint8, torch.float8_e8m0fnu))
    codes.check(checkpoint.info(roles["codes"]).shape)
    nvidia = scale.dtype == torch.float8_e4m3fn
    each = 16 if nvidia else 32
    expected = (*codes.shape[:-1], codes.shape[-1] // each)
    if scale.shape != expected or codes.shape[-1] % each:
        raise broken(
            name, f"{roles['scale']} has the shape {scale.shape}, where {expected} is expected"
        )
    factors = []
    if "factor" in roles:
        factor = expect(roles["factor"], checkpoint.info(roles["factor"]), FLOATS)
        factors = [(*one_factor(name, codes.shape, roles["factor"], factor.shape), divides)]
    scales = StoredMatrix(roles["scale"], expected)
    words = "NVFP4" if nvidia else f"MXFP{codes.code.bits}"
    return ScaledCodes(
        name,
        codes.shape,
        f"{words}, groups of {each}",
        codes,
        scales if nvidia else replace(scales, code=POWERS),
        (1, each),
        factors=tuple(factors),
    )
