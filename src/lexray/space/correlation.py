"""Correlations between the projections of vectors, without projecting them.

Let E and F be the embeddings of two models, or the two sides of one; their e columns are the same
tokens. The Pearson correlation of xE and yF is the cosine of xEC and yFC, where C = I − 11ᵀ/e takes
away the mean over the tokens. Three d×d kernels hold all of it: E C Eᵀ = L Lᵀ, F C Fᵀ = M Mᵀ, and
E C Fᵀ. The rows of L⁺EC are orthonormal, x L are the coordinates of xEC in them, and

    corr(xE, yF) = (x L) · (L⁺ E C Fᵀ M⁺ᵀ) · (y M)ᵀ / (‖x L‖ ‖y M‖).

Nothing is approximated. Kernels and coordinates are float64; the matrix in the middle, whose
singular values are the cosines between the two embedding spaces, never exceeds 1, and so the
products of unit vectors with it are good to float32's last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.fold import at_least_float32
from lexray.scratch import give_back, is_held, join_rows, let_go
from lexray.space.kernels import AT_ONCE, Places, exactly, gram, multiply, root
from lexray.space.kinds import Kind
from lexray.space.side import Side
from lexray.space.space import EmbeddingSpace
from lexray.space.topk.arithmetic import full_precision

CONSTANT = 1e-6
"""A projection is constant if it varies by less than this share of what the vector's length allows.
"""
TILE = (512, 1024)
"""Rows and columns of correlations that exist at once."""


@dataclass(frozen=True, eq=False)
class Coordinates:
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
        varies = self._varies(exact, sizes)
        return torch.where(varies, coordinates / sizes, 0.0).float().to(X.device)

    def sizes(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
        """‖x L‖ in the vectors' own precision, or float32; infinite where x projects to a constant:
        what is divided by it correlates with nothing."""
        L = None if self.L is None else self.L.to(X)
        turned = X - X.mean(1, keepdim=True) if L is None else X @ L
        sizes = turned.norm(dim=1, keepdim=True)
        return torch.where(self._varies(X, sizes), sizes, torch.inf)

    def _varies(self, X: Float[Tensor, "n d"], sizes: Float[Tensor, "n 1"]) -> Bool[Tensor, "n 1"]:
        varies: Tensor = sizes > CONSTANT * self.largest * X.norm(dim=1, keepdim=True)
        return varies


@dataclass(frozen=True, eq=False)
class Kernel:
    """Two charts, and what leads from one to the other."""

    left: Coordinates
    right: Coordinates
    between: Float[Tensor, "r_a r_b"] | None
    """None for the identity."""

    def held_width(self, d_model: int) -> int:
        """The width of a carried vector."""
        return d_model if self.between is None else self.between.shape[1]

    def carry(self, units: Float[Tensor, "n r_a"]) -> Float[Tensor, "n r_b"]:
        """A's units, such that their products with B's units are correlations."""
        if self.between is None:
            return units
        with full_precision():
            return units @ self.between.to(units)

    def correlations(
        self, X: Float[Tensor, "n d_a"], Y: Float[Tensor, "m d_b"]
    ) -> Float[Tensor, "n m"]:
        """All of them, at once: for a few vectors, or one pair of layers."""
        left, right = self.carry(self.left.units(X)), self.right.units(Y)
        with full_precision():
            return (left @ right.T).clamp(-1, 1)

    def correlations_with(
        self, x: Float[Tensor, "d_a"]
    ) -> Callable[[Float[Tensor, "n d_b"]], Float[Tensor, "n"]]:
        """Of one vector with as many as one likes, some at a time.

        Only x goes through the kernel in float64: carried to where they live, it is one direction.
        """
        direction = self.left.coordinates(x[None])
        direction = direction / self.left.sizes(exactly(x[None]))
        if self.between is not None:
            direction = direction @ self.between
        if self.right.L is not None:
            direction = direction @ self.right.L.T

        def correlate(Y: Float[Tensor, "n d_b"]) -> Float[Tensor, "n"]:
            Y = at_least_float32(Y)
            with full_precision():
                correlations: Tensor = Y @ direction[0].to(Y) / self.right.sizes(Y)[:, 0]
            return correlations.clamp(-1, 1)

        return correlate


FEATURES = Kernel(Coordinates(None), Coordinates(None), None)
"""Vectors as they are, not projected: the control, for models of the same width."""


class Kernels:
    """The kernel of each two kinds of vectors; kinds that are read alike share one.

    `a` and `b` may be the spaces of two models, or the same one twice; `ids_a` and `ids_b` are the
    tokens that count, pair by pair the same.
    """

    def __init__(
        self,
        a: EmbeddingSpace,
        b: EmbeddingSpace,
        ids_a: Int[Tensor, "n"] | None = None,
        ids_b: Int[Tensor, "n"] | None = None,
    ) -> None:
        if a.weights.device != b.weights.device:
            raise LexrayError(
                f"{a.weights.name} is on {a.weights.device}, {b.weights.name} on "
                f"{b.weights.device}; open both on one device"
            )
        self._a, self._b = (a, ids_a), (b, ids_b)
        self._sides: dict[Hashable, tuple[Side, Places]] = {}
        self._charts: dict[Hashable, Chart] = {}
        self._made: dict[Hashable, Kernel] = {}

    def between(self, kind_a: Kind, kind_b: Kind) -> Kernel:
        """The kernel for vectors of one kind in A and of another in B."""
        a, b = self._key(*self._a, kind_a), self._key(*self._b, kind_b)
        if (a, b) not in self._made:
            left, right = self._chart(a), self._chart(b)
            (one, some), (other, others) = self._sides[a], self._sides[b]
            cross = gram(one, other, centred=True, among=(some, others))
            self._made[a, b] = _join(left, right, cross)
        return self._made[a, b]

    def of(self, kind: Kind) -> Kernel:
        """The kernel for vectors of one kind in both."""
        return self.between(kind, kind)

    def _key(self, space: EmbeddingSpace, ids: Int[Tensor, "n"] | None, kind: Kind) -> Hashable:
        """What tells sides apart: both of a tied model are the same one, read raw."""
        side = space.whole(kind)
        plain = side.P is None and side.mean is None and side.sigma is None
        columns = side.rows.data_ptr() if plain else (id(space.weights), space.sharing(kind))
        key = columns, None if ids is None else id(ids)
        if key not in self._sides:
            self._sides[key] = side, None if ids is None else _some(side, ids)
        return key

    def _chart(self, key: Hashable) -> Chart:
        if key not in self._charts:
            self._charts[key] = chart(*self._sides[key])
        return self._charts[key]


Chart = tuple[Coordinates, Float[Tensor, "_"]]
"""Coordinates, and the eigenvalues λ of L Lᵀ: L⁺ = (L / λ)ᵀ leads back."""


def chart(side: Side, among: Places = None) -> Chart:
    """A side's chart, over all its tokens or those `among` them."""
    L, values = root(gram(side, side, centred=True, among=(among, among)))
    L = join_rows(len(L), torch.split(L, AT_ONCE))
    if not is_held(L.nbytes):
        give_back()
    return Coordinates(L, float(values.max().sqrt()) if len(values) else 1.0), values


def kernel(a: Side, b: Side) -> Kernel:
    """From two sides' columns, token by token the same."""
    return _join(chart(a), chart(b), gram(a, b, centred=True))


def _join(a: Chart, b: Chart, cross: Float[Tensor, "d_a d_b"]) -> Kernel:
    """L⁺ E C Fᵀ M⁺ᵀ between two charts."""
    (left, ours), (right, theirs) = a, b
    assert left.L is not None
    assert right.L is not None
    half = multiply(left.L.T, cross).div_(ours[:, None])
    return Kernel(left, right, multiply(half, right.L).div_(theirs))


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
            let_go(u)
    return float(torch.stack(sums).cpu().double().sum()) if sums else 0.0


def _some(side: Side, ids: Int[Tensor, "n"]) -> Places:
    """The places of some tokens; None for all of them, in order."""
    n = len(side.rows)
    return None if len(ids) == n and torch.equal(ids, torch.arange(n)) else ids
