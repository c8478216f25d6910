"""How many neurons write what they read?

The share of feed-forward neurons whose key and value have at least 15 % of their 100 top tokens in
common: about 5 % of GPT-2 medium's. Every neuron is looked at.

"Overlap" can be read in two ways: the share of the k tokens that are common, which is used here,
and the Jaccard index, which is reported beside it. Gated feed-forwards have two vectors that read;
--read gate compares the gate instead of the key.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from lexray.address import Address
from lexray.find.related import Related, related
from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Level, Panel, StandingBars
from lexray.result.format import show_percent
from lexray.result.table import Table
from lexray.space.kinds import Kind
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.measures import n_tokens, require_more_tokens
from lexray.studies.shared.study import ES, Study, StudyOptions, option

PUBLISHED = 0.05
"""GPT-2 medium, k = 100, overlap 0.15."""
LISTED = 200


@dataclass(frozen=True)
class RelatedPairs(StudyOptions):
    k: int = option(100, "Compare so many top tokens.", min=1)
    overlap: float = option(0.15, "The share of them that must be common.", min=0)
    read: Literal["key", "gate"] = option("key", "Compare the value with the key, or the gate.")


def run(model: Model, options: RelatedPairs) -> Outcome:
    require_more_tokens(model, options.k)
    neurons = related(model, options.k, options.overlap, read=options.read)
    layers = by_layer(model, neurons)
    jaccard = sum(n.jaccard >= options.overlap for n in neurons.neurons) / max(1, neurons.n_neurons)
    shares = {
        "share": neurons.share,
        "share_by_jaccard": jaccard,
        "expected_shared": options.k**2 / n_tokens(model),
    }
    return Outcome(
        {
            "n_neurons": neurons.n_neurons,
            **shares,
            "published_share": PUBLISHED,
            "layers": layers,
            "neurons": neurons.to_dict()["neurons"],
        },
        (_layers_table(layers), _neurons_table(neurons)),
        (judge(shares, options),),
        lambda: draw(layers, options),
    )


def by_layer(model: Model, neurons: Related) -> list[dict[str, Any]]:
    """How many there are in each layer, and of how many."""
    counts = Counter(Address.parse(neuron.address).layer for neuron in neurons.neurons)
    kind: Kind = "gate" if neurons.read == "gate" else "key"
    sizes = [sum(group.n for group in layer.groups(kind)) for layer in model.layers]
    return [
        {"layer": i, "related": counts[i], "neurons": n, "share": counts[i] / n if n else 0.0}
        for i, n in enumerate(sizes)
    ]


def judge(shares: dict[str, float], options: RelatedPairs) -> Finding:
    """The paper's claim, by a rule that names no model."""
    share = shares["share"]
    return finding(
        f"About 5 % of all neurons have a {options.read} and a value that share at least 15 % of "
        "their top 100 tokens.",
        "with k = 100 and overlap 0.15, the share is between 2.5 % and 10 %",
        PUBLISHED / 2 <= share <= 2 * PUBLISHED
        if (options.k, options.overlap) == (100, 0.15)
        else None,
        f"{show_percent(share, 1)} (by Jaccard index "
        f"{show_percent(shares['share_by_jaccard'], 1)}); two random lists "
        f"share {shares['expected_shared']:.2f} tokens",
        "about 5 % (GPT-2 medium)",
    )


def _layers_table(layers: list[dict[str, Any]]) -> Table:
    columns = ("layer", "related", "neurons", "share")
    rows = tuple(tuple(layer[name] for name in columns) for layer in layers)
    return Table(columns, rows, "related neurons by layer", bars=frozenset({"share"}))


def _neurons_table(neurons: Related) -> Table:
    (table,) = neurons.tables()
    return Table(
        table.columns, table.rows[:LISTED], f"the first {min(LISTED, len(neurons))} of them"
    )


def draw(layers: list[dict[str, Any]], options: RelatedPairs) -> Panels:
    """The share by layer, with the paper's figure for the whole model."""
    columns = StandingBars(
        [layer["layer"] for layer in layers],
        [layer["share"] for layer in layers],
        "this model",
        figures.OURS,
        said=[
            f"layer {layer['layer']}: {layer['related']} of {layer['neurons']}" for layer in layers
        ],
    )
    level = Level(PUBLISHED, "GPT-2 medium, all layers: about 5 %", figures.PUBLISHED)
    title = f"sharing ≥ {100 * options.overlap:g} % of the top {options.k}"
    height = Axis(title, zero=True, percent=True)
    return figures.panels(Panel("", (columns, level), figures.LAYER, height))


STUDY = Study(
    "related-pairs",
    "How many neurons write what they read?",
    ES,
    "§4.1, App. C.3",
    __doc__,
    RelatedPairs,
    run,
)
