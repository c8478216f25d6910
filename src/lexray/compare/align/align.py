"""Which layer does what in another model: layers matched through the shared vocabulary.

The two models' parameter vectors are projected to the vocabulary and correlated, each of A with
each of B; the mean absolute correlation of two layers' vectors is their similarity S, and the
Hungarian algorithm assigns each layer one of the other model's, so that ΣS is largest ("Analyzing
Transformers in Embedding Space", §5.1 and Fig. 3). The control does the same without projecting:
two models' residual streams have nothing to do with one another.

Correlations are exact, from d×d kernels (`lexray.space.correlation`): no vector is projected, and
of the correlations only a tile exists at a time. Both files are read once: A's vectors are kept,
in temporary files if a layer's are many, while B's layers pass by. Where there is no room for that,
B's are read once for as many layers of A as there is room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lexray.compare.align.alignment import Alignment, GroupAlignment
from lexray.compare.align.similarity import Similarity, Space
from lexray.compare.align.tokens import shared_tokens
from lexray.compare.open import Given, open_as_papers_do
from lexray.errors import LexrayError
from lexray.finite import require_finite
from lexray.model.groups import layer_groups
from lexray.model.layer import Layer
from lexray.model.model import Model
from lexray.model.vectors import ELEMENTS_AT_ONCE, blocks_of
from lexray.progress import track
from lexray.scratch import empty_rows, is_held, let_go, room
from lexray.space.correlation import FEATURES, Kernel, Kernels, absolute_sum
from lexray.space.kinds import GROUPS, Kind
from lexray.vocabulary.filters import FilterLike, read_filter

KINDS: tuple[Kind, ...] = ("key", "gate", "value", "Q", "K", "V", "O")
HELD = 2**30
"""Bytes of A's vectors that are kept in memory, or on a device, while B's layers pass by."""
SPACES: tuple[Space, ...] = get_args(Space)


def align(
    a: Given,
    b: Given,
    groups: Sequence[str] | str | None = None,
    *,
    control: bool = True,
    filter: FilterLike = None,
) -> Alignment:
    """Which layer of `b` does what each layer of `a` does, for each group of parameters.

    `groups` are keys, gates, values, Q, K, V, O; by default all that both models have. Vectors are
    read raw, as in the paper, or as the models' views say; a `b` given by name is read as `a` is.
    Tokens are matched by string where ids differ; `filter` restricts them. `control=False` leaves
    the feature-space control out.

    >>> lx.align(a, b)["value"].embedding.assignment
    >>> lx.align(a.view("raw", folded=True), b, groups=["keys", "V"]).plot()
    """
    a, b = open_as_papers_do(a, b)
    kinds = choose_kinds(a, b, groups)
    tokens = shared_tokens(a, b, read_filter(filter))
    kernels = Kernels(a.space, b.space, tokens.a, tokens.b)
    no_control = _no_control(a, b) if control else "no control was asked for"
    aligned = []
    for kind in kinds:
        spaces = [kernels.of(kind), *([] if no_control else [FEATURES])]
        correlations = [
            Similarity(space, S, constant)
            for space, (S, constant) in zip(
                SPACES, similarities(a, b, kind, spaces, HELD), strict=False
            )
        ]
        aligned.append(
            GroupAlignment(
                kind, correlations[0], correlations[1] if len(correlations) > 1 else None
            )
        )
    return Alignment(a.space.source(""), b.space.source(""), tokens, tuple(aligned), no_control)


def choose_kinds(a: Model, b: Model, groups: Sequence[str] | str | None) -> list[Kind]:
    """The kinds of vectors that were asked for, or all that both models have."""
    have = [{kind for kind in KINDS if _has(model, kind)} for model in (a, b)]
    if groups is None:
        return [kind for kind in KINDS if kind in have[0] & have[1]]
    asked = [groups] if isinstance(groups, str) else list(groups)
    kinds = list(dict.fromkeys(_kind(name) for name in asked))
    if not kinds:
        raise LexrayError(f"no group was named; there are {', '.join(GROUPS)}")
    for kind in kinds:
        for model, there in zip((a, b), have, strict=True):
            if kind not in there:
                listed = ", ".join(k for k in KINDS if k in there)
                some = any(True for _ in model.groups(kind))
                where = " in some of its layers" if some else ""
                raise LexrayError(f"{model.name} has no {kind} vectors{where}; it has {listed}")
    return kinds


def _has(model: Model, kind: Kind) -> bool:
    """Whether every layer has such vectors: in hybrids some have no heads, or no neurons."""
    return all(layer_groups(model, layer, kind) for layer in range(model.n_layers))


def _kind(name: str) -> Kind:
    """The kind of a group by either of its names: "keys" or "key"."""
    for group, kind in GROUPS.items():
        if name in (group, kind):
            return kind
    raise LexrayError(f"no group {name!r} of parameters; there are {', '.join(GROUPS)}")


def _no_control(a: Model, b: Model) -> str:
    if a.d_model == b.d_model:
        return ""
    return f"no feature-space control: widths {a.d_model} and {b.d_model} differ"


def similarities(
    a: Model, b: Model, kind: Kind, kernels: Sequence[Kernel], held: int = HELD
) -> list[tuple[Float[np.ndarray, "layers_a layers_b"], tuple[int, int]]]:
    """S under each kernel, and how many vectors of A and B are constant under it."""
    shape = (len(kernels), a.n_layers, b.n_layers)
    totals, live_a, live_b = np.zeros(shape), np.zeros(shape[:2]), np.zeros(shape[::2])
    sizes_a, sizes_b = _sizes(a, kind), _sizes(b, kind)
    each = 4 * sum(kernel.held_width(a.d_model) for kernel in kernels)
    widest = 4 * max(kernel.held_width(a.d_model) for kernel in kernels)
    if a.device.type == "cpu" and not is_held(max(sizes_a) * widest):
        held = max(held, room())
    batches = list(_batches(sizes_a, each, held))
    steps = [(batch, j) for batch in batches for j in range(b.n_layers)]
    kept: dict[int, list[Tensor]] = {}
    for batch, j in track(steps, len(steps), f"aligning {kind} vectors"):
        if j == 0:
            kept = {}
            for i in track(batch, len(batch), f"reading {kind} vectors of {a.name}"):
                kept[i] = _carry(a.layers[i], kind, kernels)
                live_a[:, i] = [_live(units) for units in kept[i]]
        live_b[:, j] = 0
        n_blocks = -(-sizes_b[j] // max(1, ELEMENTS_AT_ONCE // b.d_model))
        for X in track(blocks(b.layers[j], kind), n_blocks, f"… with L{j} of {b.name}"):
            for s, kernel in enumerate(kernels):
                units = kernel.right.units(X)
                live_b[s, j] += _live(units)
                for i in batch:
                    totals[s, i, j] += absolute_sum(kept[i][s], units)
    pairs = live_a[:, :, None] * live_b[:, None, :]
    S = np.divide(totals, pairs, out=np.zeros(shape), where=pairs > 0)
    return [
        (S[s], (int(sum(sizes_a) - live_a[s].sum()), int(sum(sizes_b) - live_b[s].sum())))
        for s in range(len(kernels))
    ]


def blocks(layer: Layer, kind: Kind) -> Iterator[Float[Tensor, "n d_model"]]:
    """A layer's vectors, some at a time; raises if an entry is NaN or infinite."""
    for X in blocks_of(layer.groups(kind)):
        require_finite(f"the {kind} vectors of {layer.address} of {layer.weights.name}", X)
        yield X


def _carry(layer: Layer, kind: Kind, kernels: Sequence[Kernel]) -> list[Tensor]:
    """All vectors of a layer of A under each kernel, ready for products with B's."""
    kept, start = [torch.zeros(0, 0) for _ in kernels], 0
    n = sum(group.n for group in layer.groups(kind))
    for X in blocks(layer, kind):
        for s, kernel in enumerate(kernels):
            units = kernel.carry(kernel.left.units(X))
            kept[s] = kept[s] if start else empty_rows((n, units.shape[1]), units)
            kept[s][start : start + len(units)] = units
            let_go(kept[s][start : start + len(units)])
        start += len(X)
    return kept


def _live(units: Float[Tensor, "n r"]) -> int:
    """How many are not 0, hence not constant."""
    return int(units.any(1).sum()) if len(units) else 0


def _sizes(model: Model, kind: Kind) -> list[int]:
    """How many vectors of a kind each layer has."""
    return [sum(group.n for group in layer.groups(kind)) for layer in model.layers]


def _batches(sizes: Sequence[int], each: int, held: int) -> Iterator[tuple[int, ...]]:
    """Layers of so many vectors of so many bytes that fit into memory together; one at least."""
    batch: list[int] = []
    size = 0
    for i, n in enumerate(sizes):
        if batch and size + n * each > held:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(i)
        size += n * each
    if batch:
        yield tuple(batch)
