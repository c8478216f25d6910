"""The matrix that carries hidden states of one model into another: K, d_A × d_B.

Made from the embeddings alone; the map that is fitted on the models' own states is in `fit`.
A state h of A reads as hE_A. It becomes the state of B that reads the same, hK E_B ≈ hE_A. With the
kernels A = E_A E_Aᵀ, B = E_B E_Bᵀ and M = E_A E_Bᵀ (float64, never a copy of an embedding):

- `pinv`        K = M B⁺ = E_A E_B⁺, the paper's: least squares in the scores
- `whitened`    K = A^½ Q B^-½: the same with M, seen from whitened embeddings, made an isometry
- `orthogonal`  K = c Q: Q the isometry nearest to M (Procrustes), c the ratio of their sizes
- `regression`  K = A⁺ M: least squares from A's embedding of a token to B's embedding of it
- `transpose`   K = M d_B / tr B: E_Bᵀ in the place of E_B⁺, which isotropic embeddings allow

For a model and itself all but the last are the identity.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.errors import LexrayError
from lexray.model.model import Model
from lexray.space.kernels import RANK_TOLERANCE, gram
from lexray.space.side import Side

KernelName = Literal["pinv", "whitened", "orthogonal", "regression", "transpose"]
KERNELS: tuple[KernelName, ...] = get_args(KernelName)


class Map(NamedTuple):
    """How a state h of A becomes one of B: hK + offset."""

    kernel: Float[Tensor, "d_a d_b"]
    offset: Float[Tensor, "d_b"]


def kernel(
    a: Model,
    b: Model,
    name: KernelName = "pinv",
    *,
    ridge: float = 0.0,
    centred: bool = False,
    folded: bool = False,
    embedding: Literal["output", "input"] = "output",
) -> Float[Tensor, "d_a d_b"]:
    """K in float64.

    `ridge` is added to what is inverted, as a share of its mean eigenvalue. `centred` subtracts
    the mean embedding, `folded` puts the final norms' gains into the embeddings.
    """
    refuse_other_vocabulary(a, b)
    if ridge < 0:
        raise LexrayError(f"ridge is a share that is added, so at least 0, not {ridge}")
    left, right = _common(a, b, *(_side(model, folded, embedding) for model in (a, b)))
    M, A, B = (
        gram(x, y, centred=centred) for x, y in ((left, right), (left, left), (right, right))
    )
    match name:
        case "pinv":
            return M @ _inverse(B, ridge)
        case "regression":
            return _inverse(A, ridge) @ M
        case "orthogonal":
            return nearest_isometry(M) * (_size(A) / _size(B))
        case "whitened":
            root = _power(B, -0.5, ridge)
            seen = _power(A, -0.5, ridge) @ M @ root
            return _power(A, 0.5) @ nearest_isometry(seen) @ root
        case "transpose":
            return M / _size(B) ** 2
    raise LexrayError(f"no kernel {name!r}; there are {', '.join(KERNELS)}")


def _common(a: Model, b: Model, left: Side, right: Side) -> tuple[Side, Side]:
    """The columns of the tokens that both embeddings have."""
    n = min(len(left.rows), len(right.rows))
    ids = (a.vocabulary.mask(n) & b.vocabulary.mask(n)).nonzero()[:, 0]
    return left.only(ids), right.only(ids)


def _side(model: Model, folded: bool, embedding: Literal["output", "input"]) -> Side:
    space = model.with_view(model.options.papers).view(folded=folded, reading=embedding).space
    if embedding == "input":
        return space.reading
    if model.architecture.unembed not in model.checkpoint.names():
        raise LexrayError(
            f"{model.name} has no output embedding (a classifier need not have one); "
            'embedding="input" relates the models by their input embeddings'
        )
    return space.writing


def _size(own: Float[Tensor, "d d"]) -> float:
    """The root of the mean eigenvalue."""
    return sqrt(float(own.trace()) / len(own))


def _inverse(own: Float[Tensor, "d d"], ridge: float) -> Float[Tensor, "d d"]:
    return _power(own, -1.0, ridge)


def _power(own: Float[Tensor, "d d"], power: float, ridge: float = 0.0) -> Float[Tensor, "d d"]:
    """A power of a symmetric matrix on the directions that it has."""
    values, vectors = torch.linalg.eigh(own)
    kept = values > RANK_TOLERANCE * values.max()
    values, vectors = values[kept] + ridge * _size(own) ** 2, vectors[:, kept]
    raised: Tensor = (vectors * values**power) @ vectors.T
    return raised


def nearest_isometry(
    M: Float[Tensor, "n m"], least: float = RANK_TOLERANCE**0.5
) -> Float[Tensor, "n m"]:
    """The nearest matrix whose singular values are 1, or 0 where M's are under a share `least`."""
    U, sizes, V = torch.linalg.svd(M, full_matrices=False)
    kept = sizes > least * sizes.max()
    nearest: Tensor = U[:, kept] @ V[kept]
    return nearest


def refuse_other_vocabulary(a: Model, b: Model) -> None:
    """Raises unless the ids that both models have mean the same; one may have more behind them."""
    x, y = a.vocabulary, b.vocabulary
    if x is y or x.fingerprint == y.fingerprint:
        return
    n = min(x.n_ids, y.n_ids)
    different = [i for i in range(n) if x.all_bytes[i] != y.all_bytes[i]]
    if n and not different:
        return
    examples = ", ".join(f"{i} is {x.shown(i)!r} and {y.shown(i)!r}" for i in different[:3])
    raise LexrayError(
        f"{a.name} and {b.name} have different vocabularies, of {x.n_ids:,} and {y.n_ids:,} "
        f"tokens; {len(different):,} of the first {n:,} ids mean something else: {examples}. "
        "Only models with the same tokenizer can be stitched"
    )
