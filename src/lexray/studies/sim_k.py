"""Do parameters that work together name the same tokens?

The Jaccard index of the top-k tokens of corresponding vectors, layer by layer: feed-forward keys
(and gates) and values of the same neuron, value and output subheads, query and key subheads of the
same head and dimension. The control shuffles the partners inside the layer, so that no vector keeps
its own.

The paper takes all pairs; this takes a seeded sample of each layer's (-n 0 takes all). Heads that
share keys and values are paired with the shared ones. The paper's text compares the largest
scores, its code the largest in absolute value: --absolute does the latter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.layer import Layer
from lexray.model.model import Model
from lexray.model.vectors import VECTORS_AT_ONCE, VectorGroup
from lexray.progress import track
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Panel, StandingBars
from lexray.result.table import Table
from lexray.space.kinds import Kind
from lexray.space.side import Side
from lexray.space.space import space_of
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.measures import (
    derange,
    jaccard,
    largest_ids,
    require_more_tokens,
    rows_of,
    sample,
    seed_generator,
)
from lexray.studies.shared.study import ES, Study, StudyOptions, option

PAIRS: dict[str, tuple[Kind, Kind]] = {
    "FF key and value": ("key", "value"),
    "FF gate and value": ("gate", "value"),
    "W_V and W_O subheads": ("V", "O"),
    "W_Q and W_K subheads": ("Q", "K"),
}
SHUFFLES = 8
"""The control is the mean of so many orders, so that it adds little chance of its own."""
OURS = ("FF gate and value",)
"""Not in the paper, whose models have no gates."""


@dataclass(frozen=True)
class SimK(StudyOptions):
    k: int = option(100, "Compare so many top tokens.", min=1)
    n: int = option(256, "How many pairs of each layer and kind; 0 for all.", min=0)
    absolute: bool = option(False, "Largest in absolute value, as the paper's code has it.")


Both = tuple[Float[Tensor, "n"], Float[Tensor, "n"]]
"""The Jaccard indices of a layer's pairs, aligned and shuffled."""
Similar = dict[str, Any]


def run(model: Model, options: SimK) -> Outcome:
    require_more_tokens(model, options.k)
    by_pair: dict[str, dict[int, Both]] = {name: {} for name in PAIRS}
    for layer in track(model.layers, model.n_layers, "sim-k"):
        for name, (a, b) in PAIRS.items():
            if (both := compare(layer, a, b, options)) is not None:
                by_pair[name][layer.index] = both
    groups = {name: summary(parts) for name, parts in by_pair.items() if parts}
    return Outcome(
        {"k": options.k, "groups": groups},
        (_table(groups),),
        tuple(findings(groups)),
        lambda: draw(groups, options.k),
    )


def compare(layer: Layer, a: Kind, b: Kind, options: SimK) -> Both | None:
    """The Jaccard index of a layer's pairs, and of its shuffled ones; None where there are none."""
    groups = list(corresponding(layer, a, b))
    total = sum(x.n for x, _ in groups)
    if total < 2:
        return None
    generator = seed_generator(options.seed, layer.index, a, b)
    at = sample(options.n or total, total, generator)
    space = space_of(layer.weights, layer.index)
    left, right = (
        tops_of(space.shift(rows_of(of, at), kind), space.side(kind), options)
        for kind, of in ((a, [x for x, _ in groups]), (b, [y for _, y in groups]))
    )
    orders = (derange(len(at), generator).to(right.device) for _ in range(SHUFFLES))
    shuffled = torch.stack([jaccard(left, right[order]) for order in orders])
    return jaccard(left, right), shuffled.mean(0)


def corresponding(layer: Layer, a: Kind, b: Kind) -> Iterator[tuple[VectorGroup, VectorGroup]]:
    """Groups of a layer in which equal places belong together."""
    if a in ("key", "gate"):
        for ff in layer.feed_forwards:
            if a == "key" or ff.spec.w_gate is not None:
                yield ff.group(a), ff.group(b)
    else:
        for head in layer.heads:
            yield head.subheads(a), head.subheads(b)  # type: ignore[arg-type]


def tops_of(X: Float[Tensor, "n d_model"], side: Side, options: SimK) -> Int[Tensor, "n k"]:
    """The tokens by which each vector is known."""
    chunks = (side.top(part, options.k) for part in torch.split(X, VECTORS_AT_ONCE))
    if options.absolute:
        return torch.cat([largest_ids(best, options.k) for best in chunks])
    return torch.cat([best.top_ids for best in chunks])


def summary(layers: dict[int, Both]) -> Similar:
    """Means by layer and over all pairs, and how sure the difference is."""
    aligned, shuffled = (torch.cat(parts) for parts in zip(*layers.values(), strict=True))
    gaps = aligned - shuffled
    error = float(gaps.std()) / sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    return {
        "layers": list(layers),
        "aligned": [float(a.mean()) for a, _ in layers.values()],
        "shuffled": [float(s.mean()) for _, s in layers.values()],
        "mean_aligned": float(aligned.mean()),
        "mean_shuffled": float(shuffled.mean()),
        "standard_error": error,
        "pairs": len(gaps),
    }


def findings(groups: dict[str, Similar]) -> list[Finding]:
    """The paper's claim for each kind of pair, by a rule that names no model."""
    return [
        _finding(name, groups.get(name)) for name in PAIRS if name in groups or name not in OURS
    ]


def _finding(name: str, similar: Similar | None) -> Finding:
    whose = " (our addition: the paper's models have no gates)" if name in OURS else ""
    claim = f"{name}: corresponding vectors are more alike than shuffled ones{whose}."
    rule = (
        "over all pairs the mean Jaccard index is higher than for shuffled ones by more than 3 "
        "standard errors, and it is higher in more than half of the layers"
    )
    if similar is None:
        return finding(claim, rule, None, "this model has no such pairs")
    a, s = similar["mean_aligned"], similar["mean_shuffled"]
    won = sum(x > y for x, y in zip(similar["aligned"], similar["shuffled"], strict=True))
    n = len(similar["layers"])
    holds = a - s > 3 * similar["standard_error"] and won > n / 2
    times = f", {a / s:.1f} times" if s > 0 else ""
    error = f"the difference has a standard error of {similar['standard_error']:.4f}"
    said = f"{a:.4f} against {s:.4f}{times}; {error}; higher in {won} of {n} layers"
    return finding(claim, rule, holds, said)


def _table(groups: dict[str, Similar]) -> Table:
    rows = tuple(
        (name, layer, aligned, shuffled)
        for name, similar in groups.items()
        for layer, aligned, shuffled in zip(
            similar["layers"], similar["aligned"], similar["shuffled"], strict=True
        )
    )
    return Table(("pairs", "layer", "aligned", "shuffled"), rows, "mean Jaccard index")


def draw(groups: dict[str, Similar], k: int) -> Panels:
    """A pair of bars for each layer, as in the paper: blue aligned, orange shuffled."""
    height = Axis(f"Jaccard, top {k}", zero=True)
    panels = [
        Panel(
            title,
            (
                StandingBars(similar["layers"], similar["aligned"], "aligned", figures.OURS),
                StandingBars(similar["layers"], similar["shuffled"], "shuffled", figures.CONTROL),
            ),
            figures.LAYER,
            height,
        )
        for title, similar in groups.items()
    ]
    return figures.panels(*panels)


STUDY = Study(
    "sim-k",
    "Do parameters that work together name the same tokens?",
    ES,
    "App. B.1, Fig. 6",
    __doc__,
    SimK,
    run,
)
