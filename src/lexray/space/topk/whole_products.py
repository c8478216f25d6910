"""Products of whole numbers of eight bits, where a processor has fast ones: torch's linear layer of
bytes (oneDNN).

Rows are shifted to be positive, columns packed beforehand, sums are whole. AMX and VNNI add
products in 32 bits. AVX2 adds two in 16 bits, which saturate; rows of seven bits keep these sums
within 127·127·2 < 2¹⁵.

What comes out are bytes, too: sums in steps from nothing to what their rows have to reach, rounded
before they are written. A sieve asks no more, and this is a quarter of what would have to be
written and looked at otherwise.
"""

from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int8, Num, UInt8
from torch import Tensor
from torch.nn import functional

MOST = 127
"""The largest whole number of a column."""
_WIDEST = 2**31 // (255 * MOST)
"""The width up to which sums fit into 32 bits."""
_ROUNDED = 0.501
"""What rounding to whole steps adds or takes, float32's own rounding included."""


class WholeProducts(NamedTuple):
    """A way of multiplying bytes."""

    shift: int
    """What is added to rows."""
    cost: float
    """What a product of width 1 takes, float32's being 1."""
    look: float
    """What else an entry takes, whatever the width."""

    @property
    def most(self) -> int:
        """The largest whole number of a row."""
        return self.shift - 1

    def rows(self, x: Float[Tensor, "n h"]) -> UInt8[Tensor, "n h"]:
        return (x + self.shift).to(torch.uint8)

    def cols(self, y: Float[Tensor, "n h"]) -> Num[Tensor, "..."]:
        """Packed; the layout is oneDNN's own."""
        packed: Tensor = torch.ops.onednn.qlinear_prepack(y.to(torch.int8), None)
        return packed

    def multiply(
        self,
        x: UInt8[Tensor, "rows h"],
        y: Num[Tensor, "..."],
        reach: Float[Tensor, " rows"],
        *,
        absolute: bool = False,
    ) -> tuple[
        UInt8[Tensor, "rows cols"] | Int8[Tensor, "rows cols"],
        UInt8[Tensor, " rows"] | Int8[Tensor, " rows"],
    ]:
        """x·yᵀ of what `rows` and `cols` made, and `reach`, in common steps: sums that reach it do
        so in steps, too."""
        dtype, most = (torch.int8, 127) if absolute else (torch.uint8, 255)
        step = max(1.0, reach.max().item() / (most - 1))
        unit, zero = torch.ones(1), torch.zeros(1, dtype=torch.int32)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            _pad(x), 1.0, self.shift, y, unit, zero, None, step, 0, dtype, "none", [], ""
        )[: len(x)]
        if absolute:
            product = product.clamp_(min=-most).abs_()
        return product, (reach / step - _ROUNDED).ceil_().clamp_(0, most).to(dtype)


_AMX = WholeProducts(128, 0.045, 20.0)
_VNNI = WholeProducts(128, 0.245, 13.0)
_AVX2 = WholeProducts(64, 0.45, 13.0)


def _pad(x: UInt8[Tensor, "n h"]) -> UInt8[Tensor, "padded h"]:
    """A number of rows that was there before, most likely: of each, a kernel is made once, which
    takes as long as a tile."""
    step = max(16, 2 ** (len(x).bit_length() - 3))
    return functional.pad(x, (0, 0, 0, -len(x) % step)) if len(x) % step else x


def whole_products(device: torch.device, width: int = 1) -> WholeProducts | None:
    """The way that is fast on this device for rows of this width, if there is one."""
    if device.type != "cpu" or width >= _WIDEST:
        return None
    return _of_this_processor()


@cache
def _of_this_processor() -> WholeProducts | None:
    has = {
        _AMX: getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)(),
        _VNNI: getattr(torch.cpu, "_is_vnni_supported", lambda: False)(),
        _AVX2: torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"),
    }
    return next((way for way in has if has[way] and _can_multiply(way)), None)


def _can_multiply(way: WholeProducts) -> bool:
    """Whether torch has these products, and they are what they should be: the largest ones, which
    are the first to be cut, and long sums of shifted rows that come to little in the end."""
    x, y = _mixed(36, 2064), _mixed(45, 2064)
    x[::3], y[::3] = x[::3].sign(), y[::3].sign()
    x, y = torch.cat([x[:18], 0.02 * x[18:]]), torch.cat([y[:30], y[30:].abs()])
    x, y = (x * way.most).round(), (y * MOST).round()
    sums = x.double() @ y.double().T
    try:
        rows, cols = way.rows(x), way.cols(y)
        for absolute in (False, True):
            values = sums.abs() if absolute else sums
            for most in (254.0, 5e3, float(values.max())):
                reach = torch.linspace(0, most, len(x)).floor_()
                product, least = way.multiply(rows, cols, reach, absolute=absolute)
                wrong = product - values / max(1.0, most / (126 if absolute else 254))
                seen = (values >= 0) & (values <= most)
                if bool((wrong[seen].abs() > _ROUNDED).any()):
                    return False
                if bool(((values >= reach[:, None]) & (product < least[:, None])).any()):
                    return False
    except (AttributeError, RuntimeError, TypeError):  # a torch without them, or with others
        return False
    return True


def _mixed(n: int, width: int) -> Float[Tensor, "n width"]:
    """Numbers between −1 and 1, as if at random."""
    return torch.arange(1.0, n * width + 1).mul_(1.61803).sin_().mul_(997).frac_().view(n, width)
