"""The balanced basis, in which Cauchy–Schwarz loses as little as it can.

For any invertible TA and TB = TA⁻ᵀ, a·b = (a TA)·(b TB) ≤ ‖a TA‖·‖b TB‖. The choice that makes the
Gram matrices of A·TA and B·TB equal is what makes the bound useful: with the raw norms a head of
a real model needs 10 to 1000 times the work.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.scratch import let_go, take_rows
from lexray.space.topk.arithmetic import norm_floor, rounding

_SAMPLE_ROWS = 8192
_CHUNK_ROWS = 2048
_RIDGE = 1e-3
_LARGEST_SLACK = 0.1


class Basis(NamedTuple):
    """TA and TB, rounded to float32, and what that and products with them can lose.

    A computed ‖x T‖ errs by at most γ‖x‖‖T‖_F ≤ γ‖T‖_F‖T⁻¹‖·‖x T‖: `slack`, relative to itself.
    I − TA·TBᵀ, not quite 0, adds ‖I − TA·TBᵀ‖·‖a‖‖b‖ to the bound: `residue`, relative to it.
    """

    TA: Float[Tensor, "r r"]
    TB: Float[Tensor, "r r"]
    slack: float
    residue: float


class InBasis(NamedTuple):
    """A factor's rows in a basis, made when they are asked for."""

    X: Float[Tensor, "rows r"]
    T: Float[Tensor, "r r"]

    @property
    def norms(self) -> Float[Tensor, " rows"]:
        """‖x T‖ of every row, widened for underflow only."""
        return projected_norms(self.X, self.T)

    def take(self, index: Int[Tensor, " some"], width: int) -> Float[Tensor, "some h"]:
        """The first `width` coordinates of some rows, and the size of the rest if there is one."""
        X, r = take_rows(self.X, index), self.X.shape[1]
        if width == r:
            return X @ self.T
        some = torch.empty(len(X), width + 1, device=X.device)
        torch.mm(X, self.T[:, :width].contiguous(), out=some[:, :width])
        some[:, width] = projected_norms(X, self.T[:, width:].contiguous())
        return some


class Balanced(NamedTuple):
    """Both factors in a balanced basis."""

    basis: Basis
    P: InBasis
    Q: InBasis

    @classmethod
    def of(cls, A: Float[Tensor, "rows r"], B: Float[Tensor, "cols r"]) -> "Balanced":
        basis = balanced_basis(A, B)
        return cls(basis, InBasis(A, basis.TA), InBasis(B, basis.TB))


def balanced_basis(A: Float[Tensor, "rows r"], B: Float[Tensor, "cols r"]) -> Basis:
    """TA = L⁻ᵀU√S and TB = LU/√S, where Ga = LLᵀ and LᵀGbL = U S² Uᵀ: both Grams become S, the
    directions that carry most first.

    Any basis gives a valid bound, so a sample of the rows in float32, and a ridge that keeps
    rank-deficient factors invertible, are good enough. Where the basis would be too ill
    conditioned for float32, it is the identity.
    """
    Ga, Gb = _gram(A), _gram(B)
    if Ga is not None and Gb is not None:
        L = torch.linalg.cholesky(Ga)
        squares, U = (found.flip(-1) for found in torch.linalg.eigh(L.T @ Gb @ L))
        root = squares.clamp(min=_RIDGE**2 / 2).pow(0.25)
        TA = torch.linalg.solve_triangular(L.T, U * root, upper=True)
        basis = _round(TA, (L @ U) / root, A.device)
        if basis.slack <= _LARGEST_SLACK:
            return basis
    identity = torch.eye(A.shape[1], dtype=torch.float64)
    return _round(identity, identity, A.device)


def sample(X: Float[Tensor, "rows r"]) -> Float[Tensor, "sample r"]:
    """About 8192 rows, evenly spaced."""
    return take_rows(X, sampled(X))


def sampled(X: Float[Tensor, "rows r"]) -> Int[Tensor, " sample"]:
    """Which these are."""
    return torch.arange(0, len(X), max(1, len(X) // _SAMPLE_ROWS), device=X.device)


def _gram(X: Float[Tensor, "rows r"]) -> Float[Tensor, "r r"] | None:
    """The Gram matrix of a sample of rows, with mean eigenvalue 1 and a ridge; None if it is 0."""
    some = sample(X)
    G = (some.T @ some).cpu().double()
    scale = float(G.trace()) / G.shape[0]
    if scale < 2.0**-80:
        return None
    return G / scale + _RIDGE * torch.eye(G.shape[0], dtype=G.dtype)


def _round(TA: Float[Tensor, "r r"], TB: Float[Tensor, "r r"], device: torch.device) -> Basis:
    size = (TB.norm() / TA.norm()).sqrt()
    TA, TB = TA * size, TB / size
    width = TA.shape[0]
    condition = 1.01 * float(TA.norm() * TB.norm())
    error = torch.eye(width, dtype=TA.dtype) - TA @ TB.T
    residue = float(error.norm()) + rounding(width, 2.0**-53) * condition
    slack = rounding(width) * condition
    return Basis(TA.float().to(device), TB.float().to(device), slack, residue * condition**2)


def projected_norms(
    X: Float[Tensor, "rows r"], T: Float[Tensor, "r some"], mean: Float[Tensor, " r"] | None = None
) -> Float[Tensor, " rows"]:
    """‖(x − mean) T‖ of every row, widened for underflow only; in chunks that stay in cache."""
    norms = torch.empty(X.shape[0], dtype=X.dtype, device=X.device)
    buffer = torch.empty(min(_CHUNK_ROWS, X.shape[0]), T.shape[1], device=X.device)
    origin = None if mean is None else mean @ T
    for start in range(0, X.shape[0], _CHUNK_ROWS):
        chunk = X[start : start + _CHUNK_ROWS]
        projected = torch.mm(chunk, T, out=buffer[: len(chunk)])
        if origin is not None:
            projected -= origin
        torch.linalg.vector_norm(projected, dim=1, out=norms[start : start + _CHUNK_ROWS])
        let_go(chunk)
    return norms.add_(norm_floor(X.shape[1]))
