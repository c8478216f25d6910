"""A head's or neuron's best partners in another model, found through the shared vocabulary.

Vectors are compared by the correlation of their projections, as layers are. A head is compared as
an operator on tokens: with M = E′ᵀ W E for W = W_V W_O or W_Q R W_Kᵀ, an e×e matrix, its
similarity to another model's is the cosine

    ⟨C M_A C, C M_B C⟩_F / (‖C M_A C‖_F ‖C M_B C‖_F),    C = I − 11ᵀ/e,

that is, what the matrices share after the mean of every row and column is taken away. Both are
products of rank r, M = P Qᵀ, and ⟨P_A Q_Aᵀ, P_B Q_Bᵀ⟩ = Σ (P_AᵀP_B) ∘ (Q_AᵀQ_B): with the kernels
these are r×r matrices, and the e×e ones are never built. It does not depend on the basis that a
head happens to use inside. A whole neuron (key, gate, value) or head (VO, QK) is scored by the mean
absolute similarity of its parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from lexray.address import Address, Matrix
from lexray.choice import Some, choose
from lexray.compare.align.align import KINDS, blocks
from lexray.compare.align.partnership import Partner, PartnerPart, Partners
from lexray.compare.align.tokens import shared_tokens
from lexray.compare.open import Given, open_as_papers_do, open_both
from lexray.errors import LexrayError
from lexray.find.hits import at_least_one, own_address
from lexray.finite import require_finite
from lexray.model.circuits import Circuit
from lexray.model.feedforward import Neuron
from lexray.model.head import Head
from lexray.model.model import Model
from lexray.model.vectors import Vector
from lexray.progress import track
from lexray.result.format import show_bytes
from lexray.result.pairs import Pairs
from lexray.result.readings import Reading
from lexray.space.correlation import Kernels
from lexray.space.kinds import Kind
from lexray.space.topk.arithmetic import full_precision
from lexray.vocabulary.filters import Filter, FilterLike, read_filter

LARGEST_MATCHING = 2**27
"""Entries of the matrix that a one-to-one matching of two layers needs at once (1 GB)."""
Prepared = list[list[Tensor]]
"""For each part, what is compared: the vectors, or the two factors of each head."""


def partners(
    a: Given,
    address: str | Address,
    b: Given,
    n: int = 10,
    *,
    one_to_one: bool = False,
    layers: Some = None,
    tokens: int = 10,
    filter: FilterLike = None,
) -> Partners:
    """The n parameters of `b` that are most like one of `a`, with both sides' tokens.

    `address` is a head (`L3H2`, or one of its matrices `L3H2.VO`), a neuron (`L2N17`, or one of its
    vectors `L2N17.value`) or a subhead (`L3H2.V12`). `one_to_one` gives, for each layer of `b`, the
    partner under the best matching of that whole layer with the target's whole layer. `layers`
    restricts the search to some layers of `b`; `filter` the tokens that count. What is in an
    encoder (`enc.L3H2`) is looked for in the other's, if it has one. They are compared as
    the papers do, raw unless another view was chosen, and shown in words by the models' own views.

    >>> lx.partners(a, "L2N17.value", b)
    >>> lx.partners(a, "L3H2", b, one_to_one=True)
    """
    at_least_one(n)
    seen = open_both(a, b)
    a, b = open_as_papers_do(*seen)
    at = Address.parse(address) if isinstance(address, str) else address
    target = a[at]
    if at.cross:
        raise LexrayError(
            f"{at} is of cross-attention, which reads two spaces; partners are looked for among "
            "the heads and neurons of one stack, as L3H2 or enc.L3H2"
        )
    a = a.stack_at(at)
    b = b.encoder if at.encoder and b.architecture.encoder is not None else b
    filter = read_filter(filter)
    shared = shared_tokens(a, b, filter)
    comparison = _comparison(a, b, target, at, Kernels(a.space, b.space, shared.a, shared.b))
    wanted = own_address(a, str(at))
    index = comparison.names(a, at.layer).index(wanted)
    searched = choose(layers, b.n_layers, "layer")
    left = comparison.left(at.layer)
    if not one_to_one:
        left = [[rows[index : index + 1] for rows in part] for part in left]
    hits: list[tuple[float, str, list[float]]] = []
    for layer in track(searched, len(searched), f"comparing {wanted} with {b.name}"):
        names = comparison.names(b, layer)
        if one_to_one:
            _refuse_large(len(left[0][0]), len(names))
        grid = comparison.grid(left, comparison.right(layer))
        scores = grid.abs().mean(0)
        places = _match(scores, index) if one_to_one else _best(scores[0], n)
        row = grid[:, index if one_to_one else 0]
        hits += [(float(row[:, j].abs().mean()), names[j], row[:, j].tolist()) for j in places]
    hits.sort(key=lambda hit: -hit[0])
    return Partners(
        a.space.source(wanted, filter),
        b.space.source("", filter),
        shared,
        comparison.measure,
        one_to_one,
        tuple(comparison.read(seen[0], wanted, [1.0] * len(comparison.parts), tokens, filter)),
        tuple(
            Partner(name, score, tuple(comparison.read(seen[1], name, signed, tokens, filter)))
            for score, name, signed in hits[:n]
        ),
    )


class Comparison(ABC):
    """How one sort of thing is compared: its parts, one after the other."""

    measure: str
    parts: tuple[str, ...]

    @abstractmethod
    def names(self, model: Model, layer: int) -> list[str]:
        """The addresses of all of this sort in a layer."""

    @abstractmethod
    def left(self, layer: int) -> Prepared:
        """A layer of A, carried over to B's coordinates."""

    @abstractmethod
    def right(self, layer: int) -> Prepared:
        """A layer of B."""

    @abstractmethod
    def grid(self, left: Prepared, right: Prepared) -> Float[Tensor, "parts n m"]:
        """The similarity of each on the left to each on the right, part by part."""

    @abstractmethod
    def read(
        self, model: Model, name: str, signed: list[float], k: int, filter: Filter | None
    ) -> Iterator[PartnerPart]:
        """Each part as tokens; those of the negated part where the similarity is negative."""


class Vectors(Comparison):
    """Single vectors of a kind, or whole neurons."""

    measure = "correlation"

    def __init__(self, a: Model, b: Model, kernels: Kernels, kinds: tuple[Kind, ...]) -> None:
        self._a, self._b, self._kinds = a, b, kinds
        self._kernels = [kernels.of(kind) for kind in kinds]
        self.parts = tuple(kinds)
        self._whole = len(kinds) > 1

    def names(self, model: Model, layer: int) -> list[str]:
        names = [
            group.address_of(i)
            for group in model.layers[layer].groups(self._kinds[0])
            for i in range(group.n)
        ]
        return [name.rpartition(".")[0] for name in names] if self._whole else names

    def left(self, layer: int) -> Prepared:
        return [
            [torch.cat([k.carry(k.left.units(X)) for X in blocks(self._a.layers[layer], kind)])]
            for kind, k in zip(self._kinds, self._kernels, strict=True)
        ]

    def right(self, layer: int) -> Prepared:
        return [
            [torch.cat([k.right.units(X) for X in blocks(self._b.layers[layer], kind)])]
            for kind, k in zip(self._kinds, self._kernels, strict=True)
        ]

    def grid(self, left: Prepared, right: Prepared) -> Float[Tensor, "parts n m"]:
        with full_precision():
            products = [x @ y.T for (x,), (y,) in zip(left, right, strict=True)]
        return torch.stack(products).clamp(-1, 1).cpu()

    def read(
        self, model: Model, name: str, signed: list[float], k: int, filter: Filter | None
    ) -> Iterator[PartnerPart]:
        for kind, value in zip(self._kinds, signed, strict=True):
            reading: Reading = model[f"{name}.{kind}" if self._whole else name].top(
                k, filter=filter
            )
            yield PartnerPart(kind, value, reading)


class HeadCandidates(Comparison):
    """Heads by their matrices."""

    measure = "cosine"

    def __init__(self, a: Model, b: Model, kernels: Kernels, matrices: tuple[Matrix, ...]) -> None:
        self._a, self._b, self._kernels = a, b, kernels
        self._matrices = matrices
        self.parts = tuple(matrices)

    def names(self, model: Model, layer: int) -> list[str]:
        heads = [str(head.address) for head in model.layers[layer].heads]
        whole = len(self._matrices) > 1
        return heads if whole else [f"{head}.{self._matrices[0]}" for head in heads]

    def left(self, layer: int) -> Prepared:
        return [self._factors(self._a, layer, matrix, True) for matrix in self._matrices]

    def right(self, layer: int) -> Prepared:
        return [self._factors(self._b, layer, matrix, False) for matrix in self._matrices]

    def _factors(self, model: Model, layer: int, matrix: Matrix, carry: bool) -> list[Tensor]:
        """P and Q of every head in coordinates, such that ‖P Qᵀ‖ = 1; 0 where it was 0."""
        circuits = [Circuit(head, matrix) for head in model.layers[layer].heads]
        kernels = [self._kernels.of(kind) for kind in circuits[0].kinds]
        stacks: tuple[list[Tensor], list[Tensor]] = ([], [])
        for circuit in circuits:
            left, right = circuit.matrices
            charted = []
            for kernel, W in zip(kernels, (left.T, right), strict=True):
                require_finite(f"{circuit.address} of {model.name}", W)
                charted.append((kernel.left if carry else kernel.right).coordinates(W))
            P, Q = charted
            size = ((P @ P.T) * (Q @ Q.T)).sum().clamp(min=0).sqrt()
            P = P / size if size > 0 else torch.zeros_like(P)
            for kernel, factor, stack in zip(kernels, (P, Q), stacks, strict=True):
                over = kernel.between if carry else None
                stack.append(factor if over is None else factor @ over)
        return [torch.stack(stack) for stack in stacks]

    def grid(self, left: Prepared, right: Prepared) -> Float[Tensor, "parts n m"]:
        return torch.stack([_traces(*x, *y) for x, y in zip(left, right, strict=True)]).cpu()

    def read(
        self, model: Model, name: str, signed: list[float], k: int, filter: Filter | None
    ) -> Iterator[PartnerPart]:
        head = model.head(replace(Address.parse(name), matrix=None))
        for matrix, value in zip(self._matrices, signed, strict=True):
            sign = "largest" if value >= 0 else "smallest"
            pairs: Pairs = Circuit(head, matrix).top(k, sign=sign, filter=filter)  # type: ignore[arg-type]
            yield PartnerPart(matrix, value, pairs)


def _traces(
    P: Float[Tensor, "n r w"],
    Q: Float[Tensor, "n r v"],
    R: Float[Tensor, "m s w"],
    S: Float[Tensor, "m s v"],
) -> Float[Tensor, "n m"]:
    """⟨P Qᵀ, R Sᵀ⟩ of each head on the left with each on the right."""
    rows = [((p @ R.mT) * (q @ S.mT)).sum((1, 2)) for p, q in zip(P, Q, strict=True)]
    return torch.stack(rows).clamp(-1, 1)


def _comparison(a: Model, b: Model, target: Any, at: Address, kernels: Kernels) -> Comparison:
    if isinstance(target, Head):
        return HeadCandidates(a, b, kernels, ("VO", "QK"))
    if isinstance(target, Circuit):
        return HeadCandidates(a, b, kernels, (target.matrix,))
    if isinstance(target, Vector) and target.kind in KINDS:
        if not any(True for _ in b.groups(target.kind)):
            raise LexrayError(f"{b.name} has no {target.kind} vectors to compare {at} with")
        return Vectors(a, b, kernels, (target.kind,))
    if isinstance(target, Neuron):
        gated = target.ff.spec.w_gate is not None and any(True for _ in b.groups("gate"))
        return Vectors(a, b, kernels, ("key", "gate", "value") if gated else ("key", "value"))
    raise LexrayError(
        f"{at} is no head, neuron or subhead; try L3H2, L3H2.VO, L2N17, L2N17.value or L3H2.V12"
    )


def _best(scores: Float[Tensor, "m"], n: int) -> list[int]:
    best: list[int] = scores.argsort(descending=True, stable=True)[:n].tolist()
    return best


def _match(scores: Float[Tensor, "n m"], index: int) -> list[int]:
    """The partner of `index` under the matching with the largest sum, if it has one."""
    rows, cols = linear_sum_assignment(scores.double().numpy(), maximize=True)
    return [int(col) for row, col in zip(rows, cols, strict=True) if row == index]


def _refuse_large(n: int, m: int) -> None:
    if n * m > LARGEST_MATCHING:
        raise LexrayError(
            f"a one-to-one matching of {n:,} with {m:,} vectors needs {show_bytes(8 * n * m)}; "
            "the nearest partners, without one_to_one, need none of it"
        )
