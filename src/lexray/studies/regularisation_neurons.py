"""Are there neurons that are always active, and what do they do?

At the last position of each prompt, the feed-forward neurons of each layer with the largest
coefficients (100, or a tenth of the layer where that is fewer). A neuron that is among them in more
than 85 % of the prompts is flagged. The flagged values are compared with a sample of the layer's
others: norm, entropy of the logit lens, outlier weights (more than 6 times the root mean square of
a value's weights), and whether these lie in dimensions in which the residual stream behind the
block itself is always among its largest. Their top tokens are counted as function words from a list
of our own (English; tokens without letters and digits count).

The paper flags by signed coefficients; --absolute takes their size, and neurons that mostly have
negative ones are then read negated, as they are added. In mixtures all experts' neurons count
together, with their routing weights. Values are taken behind a norm at the sub-block's end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lexray.model import fold
from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Curve, Dots, Panel, StandingBars
from lexray.result.table import Table
from lexray.studies.shared import figures
from lexray.studies.shared.active import active_neurons
from lexray.studies.shared.finding import Outcome
from lexray.studies.shared.last_position import at_last, require_next_token
from lexray.studies.shared.measures import require_more_tokens, rows_of, sample, seed_generator
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Done, Numbers, each_prompt
from lexray.studies.shared.study import VISIT, PromptOptions, Study, option
from lexray.studies.shared.words import function_words, share
from lexray.studies.verdicts.regularisation_neurons import DIMENSIONS, LIST, OFTEN, OUTLIER, judge
from lexray.trace.read.project import project

MEASURES = {"norm": "norm", "entropy": "entropy", "peak": "largest weight", "outliers": "outliers"}


@dataclass(frozen=True)
class Neurons(PromptOptions):
    top: int = option(100, "Among so many most active neurons of a layer; at most a tenth.", min=1)
    others: int = option(100, "Compare with so many other neurons of each layer.", min=1)
    absolute: bool = option(False, "By the size of the coefficient, whatever its sign.")


def run(model: Model, options: Neurons) -> Outcome:
    require_next_token(model)
    require_more_tokens(model, LIST)
    done = each_prompt(
        "regularisation-neurons", model, options, lambda prompt: observe(model, prompt, options)
    )
    flags = [flag(done, layer) for layer in range(model.n_layers)]
    rogue = [always(done, "dimensions", layer) for layer in range(model.n_layers)]
    layers = describe(model, flags, rogue, options)
    numbers = {"prompts": len(done), "share": OFTEN, "layers": layers, "rogue_dimensions": rogue}
    return Outcome(
        numbers,
        (_flagged_table(layers), _layers_table(layers)),
        tuple(judge(layers, rogue, model.d_model, len(done))),
        lambda: draw(layers),
        (
            f"{len(done)} prompts",
            f"most active: the first {tops_of(model, options)[0]} of {_neurons(model, 0)} neurons",
        ),
    )


def _neurons(model: Model, layer: int) -> int:
    return sum(group.n for group in model.layers[layer].groups("value"))


def tops_of(model: Model, options: Neurons) -> list[int]:
    """How many neurons of each layer count as its most active."""
    return [
        max(1, min(options.top, _neurons(model, layer) // 10)) for layer in range(model.n_layers)
    ]


def observe(model: Model, prompt: Prompt, options: Neurons) -> Numbers:
    """Each layer's most active neurons, which of them are negative, and the largest dimensions."""
    trace = at_last(model, prompt, "residual", "mlp")
    neurons, negative, dimensions = [], [], []
    for layer, top in zip(trace.layers, tops_of(model, options), strict=True):
        active = active_neurons(trace[layer], top, absolute=options.absolute)
        neurons.append(active.at[-1].tolist())
        negative.append(active.at[-1][active.negative[-1]].tolist())
        sizes = trace[layer].resid_post[-1].abs()
        dimensions.append(sizes.topk(min(DIMENSIONS, len(sizes))).indices.tolist())
    return {"neurons": neurons, "negative": negative, "dimensions": dimensions}


def always(done: Sequence[Done], name: str, layer: int) -> dict[int, float]:
    """What is in this list of more than 85 % of the prompts, and in what share of them."""
    counts = Counter(i for d in done for i in d.numbers[name][layer])
    shares = {i: n / len(done) for i, n in counts.items() if n / len(done) > OFTEN}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class Flags:
    """A layer's flagged neurons."""

    shares: dict[int, float]
    negative: frozenset[int]
    """Those that are added with a negative coefficient more often than not."""


def flag(done: Sequence[Done], layer: int) -> Flags:
    shares = always(done, "neurons", layer)
    negative = Counter(i for d in done for i in d.numbers["negative"][layer])
    mostly = (i for i, part in shares.items() if negative[i] > part * len(done) / 2)
    return Flags(shares, frozenset(mostly))


def describe(
    model: Model, flags: Sequence[Flags], rogue: Sequence[Mapping[int, float]], options: Neurons
) -> list[dict[str, Any]]:
    """Of each layer the flagged neurons, and the means of these and of others."""
    places = [_places(model, layer, flags[layer], options) for layer in range(model.n_layers)]
    X = torch.cat(
        [values(model, layer, at, flags[layer].negative) for layer, at in enumerate(places)]
    )
    projected = project(model, X, LIST)
    table = measures(X) | {"entropy": projected.entropy.cpu().double()}
    lists = first_tokens(model, X) if model.options.standardised else projected.top_ids
    words, start, layers = function_words(model), 0, []
    for layer, at in enumerate(places):
        rows = slice(start, start + len(at))
        start += len(at)
        here = {name: x[rows] for name, x in table.items()}
        mine = torch.tensor([int(i) in flags[layer].shares for i in at], dtype=torch.bool)
        others = {name: x[~mine] for name, x in here.items()}
        neurons = [
            _neuron(model, layer, flags[layer], int(at[i]), relative(X[rows][[i]])[0])
            | _read(model, lists[rows][i].tolist(), words)
            | {name: float(x[i]) for name, x in here.items()}
            | {f"{name}_above": _mean((x < here[name][i]).double()) for name, x in others.items()}
            for i in mine.nonzero()[:, 0].tolist()
        ]
        for neuron in neurons:
            neuron["in_rogue"] = sum(i in rogue[layer] for i in neuron["dimensions"])
        layers.append(
            {
                "layer": layer,
                "neurons": sorted(neurons, key=lambda n: (-n["share"], n["index"])),
                "flagged": {name: _mean(x[mine]) for name, x in here.items()},
                "others": {name: _mean(x) for name, x in others.items()},
            }
        )
    return layers


def first_tokens(model: Model, X: Float[Tensor, "n d_model"]) -> Int[Tensor, "n k"]:
    """Values as the standard view lists them."""
    space = model.space
    return space.side("value").top(space.shift(X, "value"), LIST).top_ids


def _places(model: Model, layer: int, flags: Flags, options: Neurons) -> Int[Tensor, "m"]:
    """The flagged neurons and a sample of the others, in rising order."""
    n = _neurons(model, layer)
    rest = torch.tensor([i for i in range(n) if i not in flags.shares], dtype=torch.long)
    chosen = rest[sample(options.others, len(rest), seed_generator(options.seed, "others", layer))]
    return torch.cat([chosen, torch.tensor(list(flags.shares), dtype=torch.long)]).sort().values


def values(
    model: Model, layer: int, at: Int[Tensor, "m"], negative: frozenset[int]
) -> Float[Tensor, "m d_model"]:
    """The values of these neurons as they are added."""
    raw = model.view("raw").layers[layer]
    X = rows_of(raw.groups("value"), at).to(model.device)
    X = fold.writer(X, model.architecture.blocks[layer].ff.post_norm, model.checkpoint)
    signs = torch.tensor([-1.0 if int(i) in negative else 1.0 for i in at])
    return X * signs.to(X)[:, None]


def measures(X: Float[Tensor, "n d_model"]) -> dict[str, Float[Tensor, "n"]]:
    """Norms, and weights in units of a value's root mean square."""
    sizes = relative(X)
    return {
        "norm": X.norm(dim=1).cpu().double(),
        "peak": sizes.amax(1).cpu().double(),
        "outliers": (sizes > OUTLIER).sum(1).cpu().double(),
    }


def relative(X: Float[Tensor, "n d_model"]) -> Float[Tensor, "n d_model"]:
    return X.abs() / X.square().mean(1, keepdim=True).sqrt().clamp_min(torch.finfo(X.dtype).tiny)


def _neuron(
    model: Model, layer: int, flags: Flags, index: int, sizes: Float[Tensor, "d_model"]
) -> dict[str, Any]:
    """Which neuron it is, and the dimensions of its outlier weights, largest first."""
    order = sizes.argsort(descending=True).tolist()
    return {
        "index": index,
        "address": _address(model, layer, index),
        "share": flags.shares[index],
        "negative": index in flags.negative,
        "dimensions": [i for i in order if sizes[i] > OUTLIER],
        "largest_dimension": order[0],
    }


def _read(model: Model, ids: list[int], words: Bool[Tensor, "rows"]) -> dict[str, Any]:
    shown = [model.space.token(i).shown for i in ids]
    return {"tokens": shown, "function_words": share(ids, words)}


def _address(model: Model, layer: int, index: int) -> str:
    for group in model.layers[layer].groups("value"):
        if index < group.n:
            return group.address_of(index)
        index -= group.n
    raise AssertionError


def _mean(x: Float[Tensor, "n"]) -> float | None:
    return float(x.mean()) if len(x) else None


def _flagged_table(layers: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("neuron", "prompts", "norm", "entropy", "largest weight", "dimensions", "tokens")
    rows = tuple(
        (
            neuron["address"] + (" negated" if neuron["negative"] else ""),
            neuron["share"],
            neuron["norm"],
            neuron["entropy"],
            neuron["peak"],
            " ".join(map(str, neuron["dimensions"][:DIMENSIONS])),
            " ".join(neuron["tokens"]),
        )
        for layer in layers
        for neuron in layer["neurons"]
    )
    return Table(columns, rows, "neurons that are always active")


def _layers_table(layers: Sequence[Mapping[str, Any]]) -> Table:
    names = [(of, name) for name in MEASURES for of in ("flagged", "others")]
    rows = tuple(
        (layer["layer"], len(layer["neurons"]), *(layer[of][name] for of, name in names))
        for layer in layers
    )
    columns = ("layer", "flagged", *(f"{MEASURES[name]}, {of}" for of, name in names))
    return Table(columns, rows, "means by layer")


def draw(layers: Sequence[Mapping[str, Any]]) -> Panels:
    """How many are flagged, and how they differ from the others of their layers."""
    x = [layer["layer"] for layer in layers]
    counts = StandingBars(
        x, [len(layer["neurons"]) for layer in layers], "flagged", figures.MUTED, False
    )
    panels = [Panel("always active neurons", (counts,), figures.LAYER, Axis(zero=True))]
    neurons = [(layer["layer"], neuron) for layer in layers for neuron in layer["neurons"]]
    for name in ("norm", "entropy", "peak"):
        points = Dots(
            [layer for layer, _ in neurons],
            [neuron[name] for _, neuron in neurons],
            "always active",
            [figures.CONTROL],
            [f"{n['address']}: {' '.join(n['tokens'][:5])}" for _, n in neurons],
            listed=True,
        )
        means = [layer["others"][name] for layer in layers]
        others = Curve(x, means, "others, mean", figures.OURS, dots=False)
        panels.append(Panel(MEASURES[name], (points, others), figures.LAYER))
    return figures.panels(*panels)


STUDY = Study(
    "regularisation-neurons",
    "Are there neurons that are always active?",
    VISIT,
    "Fig. 8 and 9",
    __doc__,
    Neurons,
    run,
    "both",
)
