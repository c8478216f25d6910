"""Weights that changed and are in no list of words: mixers, latents, what chooses experts."""

from __future__ import annotations

import re
from math import prod, sqrt

from torch import Tensor

from lexray.compare.diff.measure import described
from lexray.compare.diff.pair import NUMBERS_AT_ONCE, Two
from lexray.compare.diff.stacks import Round, layer_stacks, model_stacks
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.progress import track
from lexray.result.format import show_percent

MOST = 8
"""So many kinds of them are named."""


def note_unread(two: Two) -> None:
    """Says which of them changed, and by how much of themselves; layers together."""
    models = (two.base, two.tuned)
    both = set.intersection(*({*model.checkpoint.names()} for model in models))
    unread = both & described(two.base.architecture) & described(two.tuned.architecture)
    names = sorted(n for n in unread - _listed(two.base) - _listed(two.tuned) if two.touches(n))
    sizes: dict[str, list[float]] = {}
    for name in track(names, len(names), "comparing what is in no list") if names else ():
        moved, size = _measure(two, name)
        stem = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
        so_far = sizes.setdefault(stem, [0.0, 0.0])
        so_far[0], so_far[1] = so_far[0] + moved, so_far[1] + size
    shares = {stem: sqrt(moved / size) for stem, (moved, size) in sizes.items() if moved and size}
    if not shares:
        return
    order = sorted(shares, key=lambda stem: -shares[stem])
    said = [f"{stem} by {show_percent(shares[stem])}" for stem in order[:MOST]]
    more = [f"{len(order) - MOST} more"] if len(order) > MOST else []
    two.note(f"changed as well, and in no list of words: {', '.join([*said, *more])}")


def _listed(model: Model) -> set[str]:
    """The tensors whose vectors are listed."""
    stacks = [s for layer in range(model.n_layers) for s in layer_stacks(model, layer)]
    a = model.architecture
    return {n for s in (*stacks, *model_stacks(model)) for n in s.tensors} | {a.embed, a.unembed}


def _measure(two: Two, name: str) -> tuple[float, float]:
    """The squares of how far a tensor moved and of its size, some rows at a time; 0 where there is
    nothing to compare."""
    shapes = [model.checkpoint.info(name).shape for model in (two.base, two.tuned)]
    if shapes[0] != shapes[1] or not prod(shapes[0]):
        return 0.0, 0.0
    n = shapes[0][0] if shapes[0] else 1
    step = max(1, NUMBERS_AT_ONCE * n // prod(shapes[0]))
    parts = [(slice(at, min(n, at + step)),) for at in range(0, n, step)] if shapes[0] else [()]
    rounds, moved, size = two.rounding_of(name, name), 0.0, 0.0
    for part in parts:
        before, after = (
            _read(model, name, part, rounded)
            for model, rounded in zip((two.base, two.tuned), rounds, strict=True)
        )
        moved += float((after - before).square().sum())
        size += float(before.square().sum())
    return moved, size


def _read(model: Model, name: str, part: tuple[slice, ...], rounded: Round) -> Tensor:
    return at_least_float32(rounded(model.checkpoint.read(name, *part)))
