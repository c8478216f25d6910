"""Products of many rows with a matrix in float32, by the faster of torch's libraries.

MKL multiplies with half of the width that AMD's processors with AVX-512 have; oneDNN, which torch
brings along for its compiler, with all of it: twice as fast where that width is one unit, and as
fast where it is not. Both err as float32 does in whatever order terms are added.
"""

from functools import cache

import torch
from jaxtyping import Num
from torch import Tensor


def rows_by(X: Num[Tensor, "*n d"], W: Num[Tensor, "r d"]) -> Num[Tensor, "*n r"]:
    """X Wᵀ, in the wider of both dtypes."""
    wider = torch.promote_types(X.dtype, W.dtype)
    X, W = X.to(wider), W.to(wider)
    plain = X.device.type == W.device.type == "cpu" and wider == torch.float32
    if plain and X.numel() and W.numel() and _has_wider() and not _is_recorded(X, W):
        return _linear(X, W)
    return X @ W.T


def _linear(X: Num[Tensor, "*n d"], W: Num[Tensor, "r d"]) -> Num[Tensor, "*n r"]:
    X, W = X.contiguous(), W.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise(X, W, None, "none", [], "")
    return product


def _is_recorded(X: Tensor, W: Tensor) -> bool:
    return torch.is_grad_enabled() and (X.requires_grad or W.requires_grad)


@cache
def _has_wider() -> bool:
    """Whether this processor has the width, and torch the product, which is what it should be."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    X, W = (torch.arange(1.0, n * 64 + 1).sin_().view(n, 64) for n in (40, 24))
    try:
        product = _linear(X, W)
    except (AttributeError, RuntimeError, TypeError):  # a torch without it, or with another one
        return False
    exact = X.double() @ W.double().T
    return product.shape == exact.shape and torch.allclose(product.double(), exact, atol=1e-4)
