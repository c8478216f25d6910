"""Correlations between the projections of two models' vectors, without projecting them.

Let E and F be the two models' embeddings, their e columns the shared tokens. The Pearson
correlation of xE and yF is the cosine of xEC and yFC, where C = I − 11ᵀ/e takes away the mean over
the tokens. Three d×d kernels hold all of it: E C Eᵀ = L Lᵀ, F C Fᵀ = M Mᵀ, and E C Fᵀ. The rows of
L⁺EC are orthonormal, x L are the coordinates of xEC in them, and

    corr(xE, yF) = (x L) · (L⁺ E C Fᵀ M⁺ᵀ) · (y M)ᵀ / (‖x L‖ ‖y M‖).

Nothing is approximated. Kernels and coordinates are float64; the matrix in the middle, whose
singular values are the cosines between the two embedding spaces, never exceeds 1, and so the
products of unit vectors with it are good to float32's last digits.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.compare.align.tokens import SharedTokens
from lexray.errors import LexrayError
from lexray.space.kinds import Kind
from lexray.space.side import RANK_TOLERANCE, Side
from lexray.space.topk.arithmetic import full_precision

if TYPE_CHECKING:
    from lexray.model.model import Model

CONSTANT = 1e-6
"""A projection is constant if it varies by less than this share of what the vector's length allows.
"""
TILE = (512, 1024)
"""Rows and columns of correlations that exist at once."""


@dataclass(frozen=True, eq=False)
class Chart:
    """Coordinates of one model's vectors in which correlations are cosines."""

    L: Float[Tensor, "d r"] | None
    """None for feature space: the vector itself, less the mean of its entries."""
    largest: float = 1.0
    """‖L‖: how much a vector's projection can vary at most, relative to its length."""

    def coordinates(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n r"]:
        """x L in float64."""
        exact = exactly(X)
        return exact - exact.mean(1, keepdim=True) if self.L is None else exact @ self.L

    def units(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n r"]:
        """x L / ‖x L‖ in float32, on the vectors' device; 0 where the projection is constant."""
        exact = exactly(X)
        coordinates = self.coordinates(exact)
        sizes = coordinates.norm(dim=1, keepdim=True)
        lengths = exact.norm(dim=1, keepdim=True)
        varies = sizes > CONSTANT * self.largest * lengths
        return torch.where(varies, coordinates / sizes, 0.0).float().to(X.device)


@dataclass(frozen=True, eq=False)
class Kernel:
    """Two charts, and what leads from one to the other."""

    left: Chart
    right: Chart
    between: Float[Tensor, "r_a r_b"] | None
    """None for the identity."""

    def held_width(self, d_model: int) -> int:
        """The width of a carried vector."""
        return d_model if self.between is None else self.between.shape[1]

    def carried(self, units: Float[Tensor, "n r_a"]) -> Float[Tensor, "n r_b"]:
        """A's units, such that their products with B's units are correlations."""
        if self.between is None:
            return units
        with full_precision():
            return units @ self.between.to(units)

    def correlations(
        self, X: Float[Tensor, "n d_a"], Y: Float[Tensor, "m d_b"]
    ) -> Float[Tensor, "n m"]:
        """All of them, at once: for a few vectors, or one pair of layers."""
        left, right = self.carried(self.left.units(X)), self.right.units(Y)
        with full_precision():
            return (left @ right.T).clamp(-1, 1)


FEATURES = Kernel(Chart(None), Chart(None), None)
"""Vectors as they are, not projected: the control, for models of the same width."""


class Kernels:
    """The kernel of each kind of vector; kinds that are read alike share one."""

    def __init__(self, a: Model, b: Model, tokens: SharedTokens) -> None:
        if a.device != b.device:
            raise LexrayError(
                f"{a.name} is on {a.device}, {b.name} on {b.device}; open both on one device"
            )
        self._models, self._tokens = (a, b), tokens
        self._made: dict[Hashable, Kernel] = {}

    def of(self, kind: Kind) -> Kernel:
        """The kernel for vectors of one kind in both models."""
        a, b = (model.space.whole(kind) for model in self._models)
        key = (_identity(a), _identity(b))
        if key not in self._made:
            self._made[key] = kernel(_only(a, self._tokens.a), _only(b, self._tokens.b))
        return self._made[key]


def kernel(a: Side, b: Side) -> Kernel:
    """From the columns of two models, token by token the same."""
    own_a, own_b, cross = moments(a, b)
    (left, inverse), (right, other) = _rooted(own_a), _rooted(own_b)
    return Kernel(left, right, inverse @ cross @ other.T)


def moments(
    a: Side, b: Side
) -> tuple[Float[Tensor, "d_a d_a"], Float[Tensor, "d_b d_b"], Float[Tensor, "d_a d_b"]]:
    """E C Eᵀ, F C Fᵀ and E C Fᵀ in float64, in one pass over both embeddings."""
    widths = [side.rows.shape[1] for side in (a, b)]
    place = exactly(a.rows[:0]).device
    xx, yy, xy = (
        torch.zeros(widths[i], widths[j], dtype=torch.float64, device=place)
        for i, j in ((0, 0), (1, 1), (0, 1))
    )
    x_sum, y_sum = (torch.zeros(w, dtype=torch.float64, device=place) for w in widths)
    for rows, others in zip(a.blocks(), b.blocks(), strict=True):
        x, y = exactly(rows), exactly(others)
        xx.addmm_(x.T, x)
        yy.addmm_(y.T, y)
        xy.addmm_(x.T, y)
        x_sum += x.sum(0)
        y_sum += y.sum(0)
    n = len(a.rows)
    xx -= torch.outer(x_sum, x_sum) / n
    yy -= torch.outer(y_sum, y_sum) / n
    xy -= torch.outer(x_sum, y_sum) / n
    return _through(a.P, xx, a.P), _through(b.P, yy, b.P), _through(a.P, xy, b.P)


def _through(
    left: Float[Tensor, "d_a w_a"] | None,
    M: Float[Tensor, "w_a w_b"],
    right: Float[Tensor, "d_b w_b"] | None,
) -> Float[Tensor, "d_a d_b"]:
    """left · M · rightᵀ."""
    M = M if left is None else left.to(M) @ M
    return M if right is None else M @ right.to(M).T


def _rooted(own: Float[Tensor, "d d"]) -> tuple[Chart, Float[Tensor, "r d"]]:
    """L with L Lᵀ = E C Eᵀ and as many columns as that has rank, and L⁺."""
    values, vectors = torch.linalg.eigh(own)
    kept = values > RANK_TOLERANCE * values.max().clamp(min=1e-300)
    roots, vectors = values[kept].sqrt(), vectors[:, kept]
    largest = float(roots.max()) if len(roots) else 1.0
    return Chart(vectors * roots, largest), (vectors / roots).T


def absolute_sum(U: Float[Tensor, "n r"], V: Float[Tensor, "m r"]) -> float:
    """Σ |u·v| over all pairs, a tile at a time."""
    rows, cols = TILE
    buffer = U.new_empty(min(rows, len(U)) * min(cols, len(V)))
    sums = []
    with full_precision():
        for u in torch.split(U, rows):
            for v in torch.split(V, cols):
                tile = buffer[: len(u) * len(v)].view(len(u), len(v))
                torch.mm(u, v.T, out=tile)
                sums.append(tile.abs_().sum())
    return float(torch.stack(sums).cpu().double().sum()) if sums else 0.0


def exactly(X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """float64, on the CPU where the device has none."""
    return (X.cpu() if X.device.type == "mps" else X).double()


def _only(side: Side, ids: Int[Tensor, "n"]) -> Side:
    """A side's columns for some tokens; itself for all of them, in order."""
    n = len(side.rows)
    return side if len(ids) == n and torch.equal(ids, torch.arange(n)) else side.only(ids)


def _identity(side: Side) -> Hashable:
    """The same for sides with the same columns, as both sides of a tied model are, read raw."""
    plain = side.P is None and side.mean is None and side.sigma is None
    return ("plain", side.rows.data_ptr(), len(side.rows)) if plain else id(side)
