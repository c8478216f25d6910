"""Numbers that are none: one check, and one message that says which tensor is damaged, and where.

A single NaN or infinity in a weight makes comparisons false, rankings arbitrary and sums NaN, all
without a word. So tensors are looked at when they are read (`Checkpoint.read`), in one pass that
costs less than reading them, and engines look at the vectors that they are given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Shaped
from torch import Tensor

from lexray.errors import LexrayError

AT_ONCE = 1 << 22
"""Numbers that are looked at together: a tensor that lies in a file comes in blocks."""


def all_finite(X: Shaped[Tensor, "..."]) -> bool:
    """Whether no entry is NaN or infinite; no copy of the tensor is made."""
    if not X.is_floating_point() or X.numel() == 0:
        return True
    X = X.mT if X.ndim == 2 and X.mT.is_contiguous() else X  # as it lies: aminmax copies otherwise
    if X.ndim and X.numel() > AT_ONCE and len(X) > 1:
        step = max(1, AT_ONCE * len(X) // X.numel())
        return all(all_finite(X[at : at + step]) for at in range(0, len(X), step))
    low, high = torch.aminmax(X.detach() if X.dtype.itemsize > 1 else X.detach().float())
    return bool(low.isfinite()) and bool(high.isfinite())


def require_finite(what: str, X: Shaped[Tensor, "..."], start: Sequence[int] = ()) -> None:
    """Raises a `LexrayError` that counts the NaN and infinite entries, if there are any.

    `start`: where X begins in the tensor that is meant, for the place of the first.
    """
    if all_finite(X):
        return
    X = X.float() if X.dtype.itemsize == 1 else X
    nans, infinities = int(X.isnan().sum()), int(X.isinf().sum())
    first = (~X.isfinite()).nonzero()[0].tolist()
    begins = [*start, *[0] * (len(first) - len(start))]
    place = ", ".join(str(i + b) for i, b in zip(first, begins, strict=True))
    raise LexrayError(
        f"{what} has {nans} NaN and {infinities} infinite entries out of {X.numel()}, the first at "
        f"[{place}]: the weights it was made from are damaged or overflowed"
    )
