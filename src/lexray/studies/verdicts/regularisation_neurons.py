"""Whether there are neurons that are always active: the paper's claims, counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lexray.result.format import show_percent
from lexray.studies.shared.finding import Finding, finding

OFTEN = 0.85
"""A neuron is flagged if it is among the most active in more than this share of the prompts."""
FEW_PROMPTS = 10
"""With fewer, chance alone flags neurons."""
LIST = 10
"""So many top tokens of a value are looked at."""
OUTLIER = 6.0
DIMENSIONS = 10
"""So many of the residual stream's largest dimensions are noted for each prompt."""
EXIST = (
    "Each of the last layers has a neuron that is always active.",
    f"every layer of the last quarter has a neuron that is among the most active in more than "
    f"{show_percent(OFTEN, 0)} of the prompts",
)
FUNCTION = (
    "In each of these layers, one of them reads as function words.",
    "in every layer of the last quarter with flagged neurons, one of them has function words for "
    f"at least half of its first {LIST} tokens",
)
COMPARED = (
    ("They have exceptionally high norms.", "most are above 95 % of their layer's others"),
    (
        "Their token distributions have a higher entropy.",
        "in most layers with flagged neurons their mean entropy is above the others'",
    ),
    (
        "They have a few outlier weights of exceptional size.",
        f"most have a weight above {OUTLIER:g} times the root mean square of their weights, and "
        "their largest weight is on average one and a half times that of the others",
    ),
)
HIT = (
    "These weights feed the outlier dimensions of the residual stream.",
    "the share of their outlier weights that lie in dimensions that are always among the residual "
    f"stream's {DIMENSIONS} largest is over ten times chance",
)


def judge(
    layers: Sequence[Mapping[str, Any]],
    rogue: Sequence[Mapping[int, float]],
    d_model: int,
    prompts: int,
) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    last = layers[len(layers) - max(1, len(layers) // 4) :]
    if prompts < FEW_PROMPTS:
        told = f"{prompts} prompts; with fewer than {FEW_PROMPTS} chance alone flags neurons"
        return [finding(*rule, None, told) for rule in (EXIST, FUNCTION, *COMPARED, HIT)]
    having = [layer for layer in layers if layer["neurons"]]
    return [
        _exist(layers, last),
        _function(last),
        *_compare(having),
        _hit(having, rogue, d_model),
    ]


def _exist(layers: Sequence[Mapping[str, Any]], last: Sequence[Mapping[str, Any]]) -> Finding:
    count = sum(bool(layer["neurons"]) for layer in last)
    whole = sum(bool(layer["neurons"]) for layer in layers)
    total = sum(len(layer["neurons"]) for layer in layers)
    return finding(
        *EXIST,
        count == len(last),
        f"{count} of the last {len(last)} layers, {whole} of all {len(layers)}; {total} neurons",
        "layers 18–23 of 24 have at least one each (GPT-2 medium)",
    )


def _function(last: Sequence[Mapping[str, Any]]) -> Finding:
    best = [
        max(layer["neurons"], key=lambda neuron: neuron["function_words"])
        for layer in last
        if layer["neurons"]
    ]
    if not best:
        return finding(*FUNCTION, None, "no neuron of these layers is always active")
    won = [neuron for neuron in best if neuron["function_words"] >= 0.5]
    shown = max(best, key=lambda neuron: neuron["function_words"])
    said = f"{shown['address']}: {' '.join(shown['tokens'][:5])}"
    return finding(*FUNCTION, len(won) == len(best), f"{len(won)} of {len(best)} layers; {said}")


def _compare(having: Sequence[Mapping[str, Any]]) -> list[Finding]:
    neurons = [neuron for layer in having for neuron in layer["neurons"]]
    if not neurons:
        return [finding(*rule, None, "no neuron is always active") for rule in COMPARED]

    def average(of: str, name: str) -> float:
        return float(sum(layer[of][name] for layer in having)) / len(having)

    def said(name: str) -> str:
        return f"mean {average('flagged', name):.3g}, others {average('others', name):.3g}"

    high = sum((neuron["norm_above"] or 0) > 0.95 for neuron in neurons)
    spread = sum(layer["flagged"]["entropy"] > layer["others"]["entropy"] for layer in having)
    having_outliers = sum(bool(neuron["dimensions"]) for neuron in neurons)
    larger = average("flagged", "peak") > 1.5 * average("others", "peak")
    of = len(neurons)
    return [
        finding(*COMPARED[0], high > of / 2, f"{high} of {of}; {said('norm')}"),
        finding(
            *COMPARED[1],
            spread > len(having) / 2,
            f"{spread} of {len(having)} layers; {said('entropy')}",
        ),
        finding(
            *COMPARED[2],
            having_outliers > of / 2 and larger,
            f"{having_outliers} of {of}; largest weight: {said('peak')}",
        ),
    ]


def _hit(
    having: Sequence[Mapping[str, Any]], rogue: Sequence[Mapping[int, float]], d_model: int
) -> Finding:
    total = sum(len(n["dimensions"]) for layer in having for n in layer["neurons"])
    hit = sum(n["in_rogue"] for layer in having for n in layer["neurons"])
    expected = sum(
        len(n["dimensions"]) * len(rogue[layer["layer"]]) / d_model
        for layer in having
        for n in layer["neurons"]
    )
    if not total or not expected:
        what = "outlier weights" if not total else "dimensions that are always the largest"
        return finding(*HIT, None, f"there are no {what}")
    measured = f"{hit} of {total} outlier weights; by chance {expected:.2g}"
    return finding(*HIT, hit > 10 * expected, measured)
