"""Products of whole numbers of eight bits: which of torch's are fast on a processor, and whole.

With VNNI four products of bytes are added at a time in 32 bits (`torch._int_mm`). Without it, AVX2
adds two in 16 bits, which saturate; rows of seven bits keep these sums within 127·127·2 < 2¹⁵. They
are multiplied by oneDNN's linear layer, rows shifted by 64 to be positive, columns packed
beforehand; its sums are float32, which are whole below 2²⁴.
"""

from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Num
from torch import Tensor
from torch.nn import functional

MOST = 127
"""The largest whole number of a column."""
_SHIFT = 64
_WIDEST = 2**24 // (_SHIFT * MOST)


class WholeProducts(NamedTuple):
    """A way of multiplying bytes."""

    dtype: torch.dtype
    """Of rows: signed, or shifted."""
    most: int
    """The largest whole number of a row."""
    cost: float
    """What a product of width 1 takes, float32's being 1."""

    def rows(self, x: Float[Tensor, "n h"]) -> Num[Tensor, "n padded"]:
        x = _pad(x)
        return (x + _SHIFT if self.dtype == torch.uint8 else x).to(self.dtype)

    def cols(self, y: Float[Tensor, "n h"]) -> Num[Tensor, "..."]:
        """Packed ones, whose layout is oneDNN's own, have their sizes the other way round."""
        matrix = _pad(y).to(torch.int8)
        if self.dtype == torch.uint8:
            matrix = torch.ops.onednn.qlinear_prepack(matrix, None)
        return matrix


_SIGNED = WholeProducts(torch.int8, MOST, 0.215)
_SHIFTED = WholeProducts(torch.uint8, _SHIFT - 1, 0.45)


def _pad(x: Float[Tensor, "n h"]) -> Float[Tensor, "n padded"]:
    """A width that is a multiple of 4: of a single column, torch 2.13 makes zeros."""
    return functional.pad(x, (0, -x.shape[1] % 4)) if x.shape[1] % 4 else x


def multiply_whole(
    x: Num[Tensor, "rows h"], y: Num[Tensor, "..."], out: Float[Tensor, "rows cols"]
) -> Num[Tensor, "rows cols"]:
    """x·yᵀ of what `rows` and `cols` made, in the memory of `out` if that can be said."""
    product: Tensor
    if x.dtype == torch.int8:
        product = torch._int_mm(x, y.T, out=out.view(torch.int32))
    else:
        unit, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
        product = torch.ops.onednn.qlinear_pointwise(
            x, 1.0, _SHIFT, y, unit, zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
    return product


def whole_products(device: torch.device, width: int = 1) -> WholeProducts | None:
    """The way that is fast on this device for rows of this width, if there is one."""
    if device.type != "cpu" or width >= _WIDEST:
        return None
    return _of_this_processor()


@cache
def _of_this_processor() -> WholeProducts | None:
    fast = []
    if getattr(torch.cpu, "_is_vnni_supported", lambda: False)():
        fast.append(_SIGNED)
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        fast.append(_SHIFTED)
    return next(filter(_can_multiply, fast), None)


def _can_multiply(way: WholeProducts) -> bool:
    """Whether torch has these products, and the largest sums, the first to be wrong, are whole."""
    if way.dtype == torch.int8:
        has = hasattr(torch, "_int_mm")
    else:
        has = torch._C._has_mkldnn and hasattr(torch.ops.onednn, "qlinear_pointwise")
    if not has:
        return False
    x = torch.full((32, 96), float(way.most))
    x[::2, ::3] = -way.most
    y = (torch.arange(48.0)[:, None] % 2 * 2 - 1).mul(MOST).expand(48, 96).contiguous()
    product = multiply_whole(way.rows(x), way.cols(y), torch.empty(32, 48))
    return torch.equal(product.long(), x.long() @ y.long().T)
