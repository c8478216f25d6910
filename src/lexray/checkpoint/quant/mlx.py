"""MLX (Apple's library): codes of 2 to 8 bits in words of 32, a scale and a bias for each group.

`X.weight` (uint32), `X.scales`, `X.biases`; embeddings may be stored so too. The config's
`quantization` says how many bits and how large the groups are, for single modules also otherwise.
Its modes `mxfp4`, `mxfp8` and `nvfp4` have small floats and scales without biases. transformers
writes the same as `metal`, with `X.qbiases`. Layout: https://github.com/ml-explore/mlx,
`mlx.core.quantize`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.fields import Fields
from lexray.checkpoint.quant.code import E2M1, PLAIN, POWERS, Code
from lexray.checkpoint.quant.method import FLOATS, Method, Roles, expect, join
from lexray.checkpoint.quant.packed import PackedWeight, ScaledCodes, StoredMatrix, broken, matrix

BITS = (2, 3, 4, 5, 6, 8)
MODES = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
"""How large groups are and how many bits codes have where nothing is said."""
E4M3 = tuple(torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float().tolist())


class MLX(Method):
    names = ("mlx", "metal")
    title = "MLX"
    marks = (".biases",)

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        self.default = self._read(self.settings)
        allowed = {"bias": ".biases", "qbias": ".qbiases"}
        return join(names, ".scales", {"codes": ".weight", "scale": ".scales"}, allowed)

    def _read(self, settings: Fields) -> tuple[str, int, int]:
        """Mode, size of groups and bits."""
        mode = settings.text("mode") or "affine"
        if mode not in MODES:
            raise self.refuse("mode", f"of which lexray reads {', '.join(MODES)}")
        each, bits = settings.whole("group_size"), settings.whole("bits")
        layout = each or MODES[mode][0], bits or MODES[mode][1]
        fitting = layout[1] in BITS if mode == "affine" else layout == MODES[mode]
        if not fitting or not 1 <= layout[0] <= 1 << 20:
            raise self.refuse("bits", f"in groups of {layout[0]}, which mode {mode} does not have")
        return mode, *layout

    def _of(self, name: str) -> tuple[str, int, int]:
        """The same for one module, which the config may give settings of its own."""
        module = name.removesuffix(".weight")
        own = self.settings.get(module)
        if isinstance(own, dict):
            return self._read(Fields(own, self.where, f"quantization.{module}."))
        return self.default

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        mode, each, bits = self._of(name)
        codes, scale = checkpoint.info(roles["codes"]), checkpoint.info(roles["scale"])
        expect(roles["codes"], codes, (torch.uint32,))
        small = mode != "affine"
        expect(roles["scale"], scale, (torch.uint8,) if small else FLOATS)
        *front, rows, wide = matrix(name, codes.shape)
        shape = (*front, rows, 32 * wide // bits)
        if scale.shape != (*shape[:-1], -(-shape[-1] // each)) or shape[-1] % each:
            raise broken(
                name,
                f"words of shape {codes.shape} hold {shape} codes of {bits} bits, which scales of "
                f"shape {scale.shape} do not divide into groups of {each}",
            )
        stored, scales = self._matrices(mode, bits, shape, roles, scale.shape)
        stored.check(codes.shape)
        bias = roles.get("bias") or roles.get("qbias")
        if (bias is None) != small:
            raise broken(name, f"in mode {mode} it should have {'no' if small else 'its'} biases")
        words = f"MLX {bits}-bit" if mode == "affine" else f"MLX {mode}"
        return ScaledCodes(
            name,
            shape,
            f"{words}, groups of {each}",
            stored,
            scales,
            (1, each),
            bias=None if bias is None else self._bias(bias, checkpoint, scales),
        )

    def _bias(self, bias: str, checkpoint: Checkpoint, scales: StoredMatrix) -> StoredMatrix:
        info = expect(bias, checkpoint.info(bias), FLOATS)
        return StoredMatrix(bias, scales.shape).check(info.shape)

    def _matrices(
        self, mode: str, bits: int, shape: tuple[int, ...], roles: Roles, scale: tuple[int, ...]
    ) -> tuple[StoredMatrix, StoredMatrix]:
        table = {"affine": None, "mxfp8": E4M3}.get(mode, E2M1)
        steps = {"affine": PLAIN, "nvfp4": Code(8, table=E4M3)}.get(mode, POWERS)
        return (
            StoredMatrix(roles["codes"], shape, Code(bits, 4, table=table)),
            StoredMatrix(roles["scale"], scale, steps),
        )
