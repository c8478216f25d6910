"""What a search is between: two factors whose rows are known by index and group, and its tiles."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lexray.space.topk.arithmetic import Factor

_MASK_ENTRIES = 2**22


@dataclass(frozen=True)
class Tiling:
    """How many rows and columns are multiplied at once, and the side of the first corner."""

    rows: int
    cols: int
    corner: int

    @property
    def entries(self) -> int:
        return self.rows * self.cols

    @classmethod
    def suited_to(cls, device: torch.device) -> "Tiling":
        return cls(1024, 512, 512) if device.type == "cpu" else cls(8192, 2048, 2048)


@dataclass(frozen=True)
class ScanSide:
    """One factor with what identifies its rows: their original indices and their groups."""

    factor: Factor
    ids: Int[Tensor, " rows"]
    groups: Int[Tensor, " rows"] | None

    def __len__(self) -> int:
        return len(self.ids)

    def take_all(self, wanted: Bool[Tensor, " rows"]) -> "ScanSide":
        index = wanted.nonzero()[:, 0]
        groups = None if self.groups is None else self.groups[index]
        return ScanSide(self.factor.take(index), self.ids[index], groups)


def first_zero_pairs(
    k: int,
    A: ScanSide,
    B: ScanSide,
    zero_rows: Bool[Tensor, " rows"],
    zero_cols: Bool[Tensor, " cols"],
) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """The first k admissible pairs, by flat index, that have a zero row or a zero column."""
    chunks: list[Tensor] = []
    missing = k
    for rows in torch.split(torch.arange(len(A)), max(1, _MASK_ENTRIES // len(B))):
        mask = zero_rows[rows, None] | zero_cols
        if A.groups is not None and B.groups is not None:
            mask &= A.groups[rows, None] != B.groups
        pairs = mask.nonzero()[:missing] + torch.tensor([int(rows[0]), 0])
        chunks.append(pairs)
        missing -= len(pairs)
        if missing == 0:
            break
    i, j = torch.cat(chunks).unbind(1)
    return A.ids[i], B.ids[j]
