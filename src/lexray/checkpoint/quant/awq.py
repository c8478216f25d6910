"""AWQ: 4-bit whole numbers with a scale and a zero point for each group of inputs.

Written by AutoAWQ (and GPTQModel). `gemm` files store inputs first and pack eight outputs into a
word, in the order 0 2 4 6 1 3 5 7; `gemv` files store outputs first and pack eight inputs, in turn,
with scales and zero points padded to whole words. Layout: https://github.com/casper-hansen/AutoAWQ,
`awq/modules/linear`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.quant.code import Code
from lexray.checkpoint.quant.method import FLOATS, Method, Roles, expect, join
from lexray.checkpoint.quant.packed import PackedWeight, ScaledCodes, StoredMatrix, broken, matrix

ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word the n-th of eight outputs lies."""
VERSIONS = ("gemm", "gemv")


class AWQ(Method):
    names = ("awq",)
    title = "AWQ"
    marks = (".qweight",)

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        s = self.settings
        field = next((f for f in ("version", "format", "checkpoint_format") if s.get(f)), "version")
        self.version = (s.text(field) or "gemm").lower()
        if self.version not in VERSIONS:
            raise self.refuse(field, f"of which lexray reads {' and '.join(VERSIONS)}")
        for bits in ("bits", "w_bit"):
            if s.whole(bits) not in (None, 4):
                raise self.refuse(bits, "of which lexray reads 4")
        endings = {"codes": ".qweight", "scale": ".scales", "zero": ".qzeros"}
        return join(names, ".qweight", endings)

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        info = {role: checkpoint.info(tensor) for role, tensor in roles.items()}
        for role in ("codes", "zero"):
            expect(roles[role], info[role], (torch.int32,))
        expect(roles["scale"], info["scale"], FLOATS)
        rows, columns = matrix(name, info["codes"].shape)[-2:]
        matrix(name, info["scale"].shape)
        if self.version == "gemv":
            return self._gemv(name, roles, (rows, 8 * columns), info["scale"].shape[-1])
        n_out, n_in, n_groups = 8 * columns, rows, info["scale"].shape[0]
        each = self._each(name, n_in, n_groups)
        code = Code(4, 4, order=ORDER)
        return ScaledCodes(
            name,
            (n_out, n_in),
            f"AWQ 4-bit, groups of {each}",
            StoredMatrix(roles["codes"], (n_out, n_in), code, True, True).check(
                info["codes"].shape
            ),
            StoredMatrix(roles["scale"], (n_out, n_groups), flipped=True).check(
                info["scale"].shape
            ),
            (1, each),
            zero=StoredMatrix(roles["zero"], (n_out, n_groups), code, True, True).check(
                info["zero"].shape
            ),
        )

    def _gemv(self, name: str, roles: Roles, shape: tuple[int, int], width: int) -> PackedWeight:
        """Scales and zero points have columns to spare."""
        n_out, n_in = shape
        each = self._said() or n_in
        if each < 1 or -(-n_in // each) > width or width % 8:
            raise broken(name, f"{n_in} inputs in groups of {each} need more than {width} scales")
        code = Code(4, 4)
        return ScaledCodes(
            name,
            shape,
            f"AWQ 4-bit (gemv), groups of {each}",
            StoredMatrix(roles["codes"], shape, code),
            StoredMatrix(roles["scale"], (n_out, width)),
            (1, each),
            zero=StoredMatrix(roles["zero"], (n_out, width), code),
        )

    def _said(self) -> int | None:
        return self.positive("group_size") or self.positive("q_group_size")

    def _each(self, name: str, n_in: int, n_groups: int) -> int:
        each = self._said() or n_in
        if -(-n_in // each) != n_groups:
            raise broken(name, f"{n_in} inputs in {n_groups} groups are none of {each} each")
        return each
