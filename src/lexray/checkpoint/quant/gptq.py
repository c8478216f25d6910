"""GPTQ: whole numbers of 2, 3, 4 or 8 bits, a scale and a zero point for each group of inputs.

Written by AutoGPTQ, GPTQModel and optimum. `X.qweight` holds the codes, inputs first and packed
along the inputs; `X.scales` and `X.qzeros` have a row per group, `X.g_idx` says which input belongs
to which group: in turn, or with act-order (`desc_act`) anyhow. The first version of the format
stores zero points less one (0 as the largest number); GPTQModel's second stores them as they
are. Layout: https://github.com/ModelCloud/GPTQModel, `nn_modules/qlinear`.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from lexray.checkpoint.base import Checkpoint
from lexray.checkpoint.quant.code import Code
from lexray.checkpoint.quant.method import FLOATS, Method, Roles, expect, join
from lexray.checkpoint.quant.packed import PackedWeight, ScaledCodes, StoredMatrix, broken, matrix

BITS = (2, 3, 4, 8)
VERSIONS = {"gptq": 1, "gptq_v2": 0}
"""What is added to a stored zero point."""


class GPTQ(Method):
    names = ("gptq",)
    title = "GPTQ"
    marks = (".qweight",)

    def claim(self, names: Collection[str]) -> dict[str, Roles]:
        s = self.settings
        version = s.text("checkpoint_format") or s.text("format") or "gptq"
        if version not in VERSIONS:
            raise self.refuse("checkpoint_format" if "checkpoint_format" in s else "format")
        if s.flag("is_marlin_format"):
            raise self.refuse("is_marlin_format")
        if s.text("pack_dtype") not in (None, "int32"):
            raise self.refuse("pack_dtype")
        bits = s.whole("bits")
        if bits is not None and bits not in BITS:
            raise self.refuse("bits", f"of which lexray reads {', '.join(map(str, BITS))}")
        self.added = VERSIONS[version]
        self.scattered = bool(s.flag("desc_act"))
        self.mixed = bool(s.object("dynamic"))
        endings = {"codes": ".qweight", "scale": ".scales", "zero": ".qzeros"}
        return join(names, ".qweight", endings, {"groups": ".g_idx"})

    def pack(self, name: str, roles: Roles, checkpoint: Checkpoint) -> PackedWeight:
        info = {role: checkpoint.info(tensor) for role, tensor in roles.items()}
        for role in ("codes", "zero"):
            expect(roles[role], info[role], (torch.int32,))
        expect(roles["scale"], info["scale"], FLOATS)
        high, n_out = matrix(name, info["codes"].shape)[-2:]
        n_groups = matrix(name, info["scale"].shape)[0]
        n_in, bits = self._sizes(
            name, high, n_groups, info["groups"].shape if "groups" in info else ()
        )
        each = self._each(name, n_in, n_groups)
        codes = Code(bits, 4)
        return ScaledCodes(
            name,
            (n_out, n_in),
            f"GPTQ {bits}-bit, groups of {each}{', act-order' if self.scattered else ''}",
            StoredMatrix(roles["codes"], (n_out, n_in), codes, flipped=True).check(
                info["codes"].shape
            ),
            StoredMatrix(roles["scale"], (n_out, n_groups), flipped=True).check(
                info["scale"].shape
            ),
            (1, each),
            zero=StoredMatrix(
                roles["zero"],
                (n_out, n_groups),
                Code(bits, 4, offset=self.added, wraps=True),
                rows_packed=True,
                flipped=True,
            ).check(info["zero"].shape),
            groups=roles.get("groups"),
            scattered=self.scattered,
        )

    def _sizes(
        self, name: str, high: int, n_groups: int, order: tuple[int, ...]
    ) -> tuple[int, int]:
        """Inputs and bits. `dynamic` configs give some modules other bits: the shapes say which."""
        said = self.settings.whole("bits")
        if len(order) == 1 and order[0] > 0:
            bits, rest = divmod(32 * high, order[0])
            if rest or bits not in BITS or (said not in (None, bits) and not self.mixed):
                raise broken(
                    name,
                    f"{order[0]} inputs in {high} words make {32 * high / order[0]:g} bits each, "
                    f"where the config says {said}",
                )
            return order[0], bits
        if said is None:
            raise broken(name, "neither its config nor its g_idx says how many bits its codes have")
        return 32 * high // said, said

    def _each(self, name: str, n_in: int, n_groups: int) -> int:
        """How many inputs share a scale; the last group may be smaller."""
        if n_groups == 1:
            return n_in
        said = self.positive("group_size")
        if said is not None and -(-n_in // said) == n_groups:
            return said
        if n_in % n_groups == 0 and (said is None or self.mixed):
            return n_in // n_groups
        raise broken(name, f"{n_in} inputs in {n_groups} groups are none of {said} each")
