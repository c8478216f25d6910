"""NVIDIA's Model Optimizer: NVFP4 and fp8, as its checkpoints for vLLM and TensorRT-LLM have them.

NVFP4: `X.weight` (two codes per byte), `X.weight_scale` (an 8-bit float per 16) and
`X.weight_scale_2` (one number that multiplies those). fp8: `X.weight` and `X.weight_scale`. The
config is `quantization_config`, in older checkpoints `hf_quant_config.json`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.quant.code import FP4
from lexray.checkpoint.quant.compressed import small_floats
from lexray.checkpoint.quant.fp8 import pack_scaled
from lexray.checkpoint.quant.method import Method, Roles, join
from lexray.checkpoint.quant.packed import PackedWeight, StoredMatrix, matrix
from lexray.errors import LexrayError

ALGORITHMS = (
    *("NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8", "W4A16_NVFP4"),
    "MIXED_PRECISION",
)
SMOOTHED = ".pre_quant_scale"
"""What inputs are multiplied by before the weight."""


class ModelOpt(Method):
    names = ("modelopt", "modelopt_fp4", "modelopt_fp8", "modelopt_mixed", "modelopt_mxfp8")
    title = "ModelOpt"
    marks = (".weight_scale",)

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        algorithm = self.settings.text("quant_algo")
        if algorithm is not None and algorithm.upper() not in ALGORITHMS:
            raise self.refuse("quant_algo", f"of which lexray reads {', '.join(ALGORITHMS)}")
        if smoothed := next((name for name in names if name.endswith(SMOOTHED)), None):
            raise LexrayError(
                f"{self.where} is quantised by {self.title} with inputs that are scaled first "
                f"({smoothed}), which lexray does not read; take its original weights"
            )
        endings = {"codes": ".weight", "scale": ".weight_scale"}
        return join(names, ".weight_scale", endings, {"factor": ".weight_scale_2"})

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        codes = checkpoint.info(roles["codes"])
        if codes.dtype != torch.uint8:
            return pack_scaled(name, roles, checkpoint)
        packed = matrix(name, codes.shape)
        stored = StoredMatrix(roles["codes"], (*packed[:-1], 2 * packed[-1]), FP4)
        return small_floats(name, roles, checkpoint, stored, divides=False)
