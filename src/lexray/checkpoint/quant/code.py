"""How small numbers are packed into bytes and words, and what they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

E2M1 = tuple(s * v for s in (1.0, -1.0) for v in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0))
"""The 4-bit floats of MXFP4 and NVFP4: sign, two bits of exponent, one of mantissa."""
E2M3 = tuple(
    s * v
    for s in (1.0, -1.0)
    for v in (*(m / 8 for m in range(8)), *((1 + m / 8) * 2**e for e in range(3) for m in range(8)))
)
"""The 6-bit floats of MXFP6."""


@dataclass(frozen=True)
class Code:
    """Numbers of `bits` bits each, one behind the other from the lowest bit on, in units of `unit`
    bytes. What is stored plainly has 0 bits."""

    bits: int = 0
    unit: int = 1
    offset: int = 0
    """What is added to each number."""
    wraps: bool = False
    """What then has more bits begins anew at 0."""
    table: tuple[float, ...] | None = None
    """What each number stands for, where not for itself."""
    order: tuple[int, ...] | None = None
    """Where the numbers of a unit lie in it, if not one behind the other."""
    loose: bool = False
    """No number is split between two units: some bits of each unit may be empty."""
    exponent: bool = False
    """Bytes that are the exponent of a power of two (E8M0)."""

    @property
    def group(self) -> tuple[int, int]:
        """So many numbers fill so many units exactly."""
        if not self.bits:
            return 1, 1
        if self.loose:
            return 8 * self.unit // self.bits, 1
        shared = gcd(self.bits, 8 * self.unit)
        return 8 * self.unit // shared, self.bits // shared

    def width(self, n: int) -> int:
        """How many units hold n numbers."""
        numbers, units = self.group
        return -(-n // numbers) if self.loose else -(-n * units // numbers)

    def span(self, start: int, stop: int, size: int) -> tuple[int, int]:
        """Which units hold the numbers from `start` to `stop`, of `size` units in all."""
        numbers, units = self.group
        return min(start // numbers * units, size), min(-(-stop // numbers) * units, size)

    def unpack(self, raw: Tensor, start: int, stop: int) -> Tensor:
        """The numbers from `start` to `stop` as float32, given the units of `span` on the last
        axis."""
        if not self.bits:
            return _plain(raw, self.exponent)
        if not raw.numel():
            return torch.empty(*raw.shape[:-1], stop - start)
        numbers, _ = self.group
        skipped = start % numbers
        codes = self._numbers(raw)[..., skipped : skipped + stop - start]
        if self.table is not None:
            table = torch.tensor(self.table, dtype=torch.float32)
            return table[codes.int()]
        if self.wraps:
            return ((codes.int() + self.offset) & ((1 << self.bits) - 1)).float()
        return codes.float().add_(self.offset)

    def _numbers(self, raw: Tensor) -> Tensor:
        if self.loose or self.order is not None:
            numbers = _fields(_words(raw, self.unit), self.bits, 8 * self.unit // self.bits)
            if self.order is not None:
                numbers = numbers[..., torch.tensor(self.order)]
            return numbers.flatten(-2)
        octets = _octets(raw)
        if self.bits == 8:
            return octets
        if self.bits in (1, 2, 4):
            shifts = torch.arange(0, 8, self.bits, dtype=torch.uint8)
            return (octets[..., None] >> shifts).bitwise_and_((1 << self.bits) - 1).flatten(-2)
        padding = -octets.shape[-1] % self.bits
        octets = torch.nn.functional.pad(octets, (0, padding))
        return _fields(_words(octets, self.bits), self.bits, 8).flatten(-2)


PLAIN = Code()
POWERS = Code(exponent=True)
FP4 = Code(4, table=E2M1)


def _plain(raw: Tensor, exponent: bool) -> Tensor:
    if raw.dtype == torch.uint8 and exponent:
        exponents = raw.int() - 127
        powers = torch.exp2(exponents.double()).float()
        return powers.masked_fill_(raw == 255, torch.nan)
    return raw.float()


def _octets(raw: Tensor) -> Tensor:
    """The bytes of each row; `contiguous` alone leaves odd strides where an axis has size 1."""
    return raw.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _words(raw: Tensor, size: int) -> Tensor:
    """Units of `size` bytes as whole numbers."""
    octets = _octets(raw)
    octets = octets.view(*octets.shape[:-1], -1, size).long()
    return (octets << torch.arange(0, 8 * size, 8)).sum(-1)


def _fields(words: Tensor, bits: int, count: int) -> Tensor:
    """The bit fields of each word, on a new last axis."""
    return (words[..., None] >> torch.arange(0, bits * count, bits)) & ((1 << bits) - 1)
