"""Arithmetic with proven error bounds, shared by the engines.

Tiles are multiplied in float32, answers are given in float64. What connects the two are margins
that are derived, never guessed. With u = 2⁻²⁴ the float32 dot product of two rows of width r, in
any order of summation, with or without fused multiply-add, differs from the true one by at most

    r·u / (1 − r·u) · ‖a‖‖b‖    (Higham, "Accuracy and Stability", §3.1, and Cauchy–Schwarz)

plus what underflow loses. `rounding` adds 16 units for rounding float64 factors to float32 and
for rounding norms, bounds and thresholds; `underflow` covers products and inputs below 2⁻¹²⁶, which
some kernels flush to zero, for factors scaled to entries of at most 2²⁰.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.finite import require_finite
from lexray.scratch import each_part, map_parts, take_rows

_SCALED_EXPONENT = 20
_FLOAT64_EXPONENT = 333
_SLICE_ENTRIES = 2**20


def has_float64(device: torch.device) -> bool:
    """Whether a device has float64; where not, what has to be exact is done on the CPU."""
    return device.type != "mps"


def rounding(width: int, unit: float = 2.0**-24) -> float:
    """Bound on the relative rounding error of a dot product, relative to ‖a‖‖b‖."""
    return 1.01 * (width + 16) * unit


def underflow(width: int) -> float:
    """Bound on what underflow takes from a float32 dot product of scaled factors."""
    return width * 2.0**-100


def norm_floor(width: int) -> float:
    """Bound on what underflow takes from a float32 norm: squares below 2⁻¹²⁶ vanish."""
    return math.sqrt(width) * 2.0**-62


def row_norms(X: Float[Tensor, "rows r"]) -> Float[Tensor, " rows"]:
    """‖x‖ of every row of a scaled factor, from above."""
    width = X.shape[1]
    norms: Tensor = torch.cat([torch.linalg.vector_norm(part, dim=1) for part in each_part(X)])
    return norms * (1 + rounding(width)) + norm_floor(width)


def largest_first(values: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Their order, ties by index. The bits of float32, read as whole numbers, order as the numbers
    do once those of negative ones are turned; torch sorts whole numbers ten times as fast."""
    if values.dtype != torch.float32:
        return values.argsort(descending=True, stable=True)
    bits = values.contiguous().view(torch.int32)
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (~ascending).argsort(stable=True)


@dataclass(frozen=True)
class Factor:
    """One factor of a product: as given (for values) and as multiplied (for tiles).

    `scaled` = `exact`·2^`shift` in float32, the exponent chosen so that no product overflows.
    """

    exact: Float[Tensor, "rows r"]
    scaled: Float[Tensor, "rows r"]
    shift: int

    @property
    def width(self) -> int:
        return self.exact.shape[1]

    def take(self, index: Int[Tensor, " some"]) -> "Factor":
        exact = take_rows(self.exact, index)
        scaled = exact if self.scaled is self.exact else take_rows(self.scaled, index)
        return Factor(exact, scaled, self.shift)

    def nonzero_rows(self) -> Bool[Tensor, " rows"]:
        parts = each_part(self.exact)
        return torch.cat([(part.amax(1) != 0) | (part.amin(1) != 0) for part in parts])


def factor(name: str, X: Float[Tensor, "rows r"]) -> Factor:
    """Checks a factor and scales it by a power of two where its range asks for that."""
    exact = X if X.dtype == torch.float64 else X.float()
    largest = _largest_magnitude(name, exact)
    exponent = math.frexp(largest)[1]
    if abs(exponent) > _FLOAT64_EXPONENT:
        raise LexrayError(
            f"factor {name} has entries up to {largest:.3g}, and products of such numbers leave "
            "float64's range; scale it to between 1e-100 and 1e100"
        )
    shift = -exponent if abs(exponent) > _SCALED_EXPONENT else 0
    if not shift and exact.dtype == torch.float32:
        return Factor(exact, exact, shift)
    half = shift // 2

    def scale(part: Tensor) -> Tensor:
        return (part * 2.0**half * 2.0 ** (shift - half)).float()

    return Factor(exact, map_parts(scale, exact), shift)


def _largest_magnitude(name: str, X: Float[Tensor, "rows r"]) -> float:
    if X.numel() == 0:
        return 0.0
    largest = 0.0
    for part in each_part(X):
        here = max(part.amax().item(), -part.amin().item())
        if not math.isfinite(here):
            require_finite(f"factor {name}", X)
        largest = max(largest, here)
    return largest


def exact_values(
    A: Float[Tensor, "rows r"],
    B: Float[Tensor, "cols r"],
    rows: Int[Tensor, " pairs"],
    cols: Int[Tensor, " pairs"],
) -> Float[Tensor, " pairs"]:
    """The values a_i·b_j in float64: products summed in one fixed order, the same on any device.

    Never BLAS, whose order of summation depends on the shape, so that equal rows may differ in
    their last bits. Computed on the CPU (MPS has no float64), in slices of bounded size.
    """
    step = max(1, _SLICE_ENTRIES // max(1, A.shape[1]))
    slices = [
        _sum_in_halves(take_rows(A, i).cpu().double() * take_rows(B, j).cpu().double())
        for i, j in zip(torch.split(rows, step), torch.split(cols, step), strict=True)
    ]
    return torch.cat(slices) if slices else torch.empty(0, dtype=torch.float64)


def _sum_in_halves(X: Float[Tensor, "pairs r"]) -> Float[Tensor, " pairs"]:
    """Row sums by folding the right half onto the left; + 0.0 turns −0 into 0."""
    while (width := X.shape[1]) > 1:
        half = (width + 1) // 2
        folded = X[:, :half].clone()
        folded[:, : width - half] += X[:, half:]
        X = folded
    return X[:, 0] + 0.0


@contextmanager
def full_precision() -> Iterator[None]:
    """Switches TF32 and bfloat16 shortcuts of float32 products off, and restores the settings when
    the last of those who asked for it, in whichever thread, has left."""
    with _LOCK:
        if not _INSIDE:
            _INSIDE.append(ExitStack())
            _INSIDE[0].enter_context(_ieee())
        _INSIDE.append(ExitStack())
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.pop()
            if len(_INSIDE) == 1:
                _INSIDE.pop().close()


_LOCK = Lock()
_INSIDE: list[ExitStack] = []
"""What restores the settings, and one more for each who asked."""


@contextmanager
def _ieee() -> Iterator[None]:
    modules: list[Any] = [torch.backends.cuda, torch.backends.mkldnn]
    backends = [module.matmul for module in modules if hasattr(module, "matmul")]
    if not all(hasattr(backend, "fp32_precision") for backend in backends):
        yield from _full_precision_before_torch_2_9()
        return
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


def _full_precision_before_torch_2_9() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        yield
    finally:
        torch.set_float32_matmul_precision(before)
