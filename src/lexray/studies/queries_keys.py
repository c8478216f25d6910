"""Can queries and keys be read as tokens?

At the last position of each prompt, every head's query, the key that it attends to most and the
value behind that key (through W_O): the intersection scores I_k of the three pairs by layer, with
queries and keys read in three ways.

- naive: put into their place among zeros and read as if they were hidden states;
- original code: what the paper's code computes for GPT-2, q W_K and k W_Qᵀ. The first is the wrong
  side: it takes a head's dimensions for those of the residual stream;
- right side: q R(Δ) W_Kᵀ and k R(Δ)ᵀ W_Qᵀ, at the key's actual distance Δ, read as the directions
  of the residual stream that they respond to (with the attention's norm, without the final one).

Which one is right can be told: times the attention's inputs it must give the attention logits. The
correlations with these over the positions that a head sees are reported for queries and for keys.
The code's k W_Qᵀ leaves rotation out, so it is only exact where nothing turns; with a norm on keys
each key has a size of its own, which no direction of a query can tell.

Queries and keys of one head need not name the same tokens even so: a query names what it looks for,
a key what it is found by. Our own question is therefore whether a query shares tokens with the
residual stream at the position that it attends to, and a key with that of the last position,
against another position that the head sees. Naive and original readings need heads that are
together no wider than the residual stream. --skip-first leaves the first token out, where many
heads look when there is nothing to look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Panel
from lexray.result.format import show_percent
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.last_position import (
    Curves,
    Overlaps,
    average,
    curve,
    curves_table,
    mean,
    plain,
    require_lists,
)
from lexray.studies.shared.lists import ListReader, PassVectors
from lexray.studies.shared.looks import HeadLook, whole_W_K
from lexray.studies.shared.measures import n_tokens, overlap
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Done, Numbers, each_prompt
from lexray.studies.shared.study import VISIT, Study, option
from lexray.trace.trace import Trace

METHODS = {"naive": "naive", "code": "original code", "right": "right side"}
PADDED = ("naive", "code")
"""These need all heads to fit into the residual stream."""
PAIRS = {
    "query-key": ("query", "key"),
    "key-value": ("key", "value"),
    "query-value": ("query", "value"),
}
COLOURS = dict(zip(PAIRS, (figures.OURS, figures.THIRD, figures.PUBLISHED), strict=True))
SHUFFLED = "query, another head's key"
SLIGHT = 0.05
"""An overlap below this, beyond chance, counts as none."""
EXACT = 0.999


@dataclass(frozen=True)
class QueriesKeys(Overlaps):
    skip_first: bool = option(False, "Leave the first token's keys out, unless there are no more.")


def run(model: Model, options: QueriesKeys) -> Outcome:
    require_lists(model, options.k)
    done = each_prompt("queries-keys", model, options, lambda p: compare(model, p, options))
    methods = [m for m in METHODS if m in done[0].numbers["scores"]]
    scores = {m: _means(done, "scores", m) for m in methods}
    fits = {m: _means(done, "correlation", m) for m in methods}
    attended = {
        name: average([d.numbers["attended"][name] for d in done])
        for name in done[0].numbers["attended"]
    }
    chance = options.k / n_tokens(model)
    first = sum(d.numbers["first_token"] for d in done) / len(done)
    numbers = {"k": options.k, "prompts": len(done), "chance": chance, "first_token": first}
    return Outcome(
        numbers | {"scores": scores, "correlation": fits, "attended": attended},
        (
            *(curves_table(scores[m], f"mean I_{options.k}, {METHODS[m]}") for m in methods),
            curves_table(attended, "right side, with the residual stream"),
            curves_table(_flat(fits), "correlation with the attention logits"),
        ),
        tuple(findings(scores, fits, attended, chance)),
        lambda: draw(scores, fits, attended, options.k),
        (
            f"{len(done)} prompts",
            f"the key is the first token's in {show_percent(first, 0)} of heads",
        ),
    )


def _means(done: Sequence[Done], kind: str, method: str) -> Curves:
    names = done[0].numbers[kind][method]
    return {name: average([d.numbers[kind][method][name] for d in done]) for name in names}


def _flat(fits: Mapping[str, Curves]) -> Curves:
    return {f"{METHODS[m]}, {name}": c for m, own in fits.items() for name, c in own.items()}


def compare(model: Model, prompt: Prompt, options: QueriesKeys) -> Numbers:
    """Means over each layer's heads of all scores and correlations."""
    trace = model.trace(prompt.text, what=WHAT)
    heads = all_looks(trace, options)
    methods = readable(heads)
    layers = torch.tensor([head.layer for head in heads])
    parts, inverse = _parts(trace, heads)
    tops = LISTS.tops(model, parts, options.k)
    at = inverse.to(tops["streams"].device)
    seen, last, other = tops["streams"][at].view(-1, 3, options.k).unbind(1)
    alone = torch.tensor([head.other is None for head in heads])

    def by_layer(x: Float[Tensor, "n"]) -> list[float | None]:
        means = [x[layers == layer].nanmean() for layer in trace.layers]
        result: list[float | None] = plain(torch.stack(means))
        return result

    def share(of: str, with_: Int[Tensor, "n k"]) -> Float[Tensor, "n"]:
        return overlap(tops[f"right {of}"], with_)

    def against(x: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
        return x.masked_fill(alone, nan)

    scores: dict[str, dict[str, list[float | None]]] = {}
    for m in methods:
        lists = {"query": tops[f"{m} query"], "key": tops[f"{m} key"], "value": tops["value"]}
        scores[m] = {p: by_layer(overlap(lists[a], lists[b])) for p, (a, b) in PAIRS.items()}
        scores[m][SHUFFLED] = by_layer(_shuffle(lists["query"], lists["key"], layers))
    fitted = [{m: head.correlations(m) for m in methods} for head in heads]
    return {
        "scores": scores,
        "attended": {
            "query": by_layer(share("query", seen)),
            "query, another position": by_layer(against(share("query", other))),
            "key": by_layer(share("key", last)),
            "key, another position": by_layer(against(share("key", other))),
        },
        "correlation": {
            m: {
                name: by_layer(torch.tensor([f[m][i] for f in fitted], dtype=torch.float64))
                for i, name in enumerate(("query", "key"))
            }
            for m in methods
        },
        "first_token": sum(head.best == 0 for head in heads) / len(heads),
    }


def all_looks(trace: Trace, options: QueriesKeys) -> list[HeadLook]:
    """Every head at the last position."""
    heads = []
    for layer in trace.layers:
        W_K = whole_W_K(trace, layer)
        here = trace.weights.layers[layer].heads
        heads += [
            HeadLook.of(trace[layer], head, W_K, skip_first=options.skip_first, seed=options.seed)
            for head in here
        ]
    return heads


def readable(heads: Sequence[HeadLook]) -> list[str]:
    """The ways of reading that all heads allow."""
    fits = all(head.W_K is not None for head in heads)
    return [m for m in METHODS if fits or m not in PADDED]


def _parts(
    trace: Trace, heads: Sequence[HeadLook]
) -> tuple[dict[str, PassVectors], Int[Tensor, "n"]]:
    """All that is read, and which of the streams belong to a head."""
    layers = torch.tensor([head.layer for head in heads])
    places, inverse = torch.unique(
        torch.tensor([(h.layer, p) for h in heads for p in h.places]), dim=0, return_inverse=True
    )
    parts: dict[str, PassVectors] = {}
    for m in readable(heads):
        side: Literal["writing", "reading"] = "writing" if m in PADDED else "reading"
        read = [head.readings(m) for head in heads]
        for i, name in enumerate(("query", "key")):
            parts[f"{m} {name}"] = PassVectors(torch.stack([r[i] for r in read]), layers, side)
    streams = torch.stack([trace[int(at)].resid_in[int(p)] for at, p in places])
    parts["streams"] = PassVectors(streams, places[:, 0])
    parts["value"] = PassVectors(torch.stack([head.value() for head in heads]), layers)
    return parts, inverse


WHAT = ("residual", "attention")
LISTS = ListReader(
    "queries-keys", WHAT, lambda t: _parts(t, all_looks(t, QueriesKeys()))[0], whole=True
)


def _shuffle(
    queries: Int[Tensor, "n k"], keys: Int[Tensor, "n k"], layers: Int[Tensor, "n"]
) -> Float[Tensor, "n"]:
    """I_k of each query with the next head's key of the same layer."""
    scores = torch.full((len(layers),), nan, dtype=torch.float64)
    for layer in torch.unique(layers):
        at = (layers == layer).nonzero()[:, 0]
        if len(at) > 1:
            scores[at] = overlap(queries[at], keys[at.roll(-1)])
    return scores


def findings(
    scores: Mapping[str, Curves], fits: Mapping[str, Curves], attended: Curves, chance: float
) -> list[Finding]:
    """The paper's claims, by rules that name no model, and our own questions."""
    return [
        *(_nothing(method, scores.get(method), chance) for method in METHODS),
        _sides(fits),
        *(_looks(name, attended) for name in ("query", "key")),
    ]


def _nothing(method: str, curves: Curves | None, chance: float) -> Finding:
    claim = {
        "naive": "Read naively, queries, keys and values share almost no tokens.",
        "code": "Through the QK circuit as the original code multiplies, they share almost none.",
        "right": "Through the QK circuit on its right side, they still share almost none.",
    }[method]
    rule = (
        f"all three pairs have a mean over layers below {SLIGHT} and chance: k / tokens, or for "
        "query and key what a query shares with another head's key, if that is more"
    )
    if curves is None:
        told = "the heads together are wider than the residual stream: they cannot be read so"
        return finding(claim, rule, None, told)
    means = {pair: mean(curves[pair]) for pair in PAIRS}
    said = ", ".join(f"{pair} {x:.3f}" for pair, x in means.items())
    others = f"{SHUFFLED} {mean(curves[SHUFFLED]):.3f}; chance {chance:.3f}"
    published = "" if method == "right" else "almost no correlation (GPT-2 medium)"
    floors = dict.fromkeys(PAIRS, chance)
    floors["query-key"] = max(chance, mean(curves[SHUFFLED]))
    holds = all(means[pair] < SLIGHT + floors[pair] for pair in PAIRS)
    return finding(claim, rule, holds, f"{said}; {others}", published)


def _sides(fits: Mapping[str, Curves]) -> Finding:
    def said(method: str) -> str:
        curves = fits[method]
        return f"{METHODS[method]} {mean(curves['query']):.3f} and {mean(curves['key']):.3f}"

    exact = [x for x in fits["right"]["key"] if not isnan(x)]
    return finding(
        "Only the right side gives the attention logits (our question, not the paper's).",
        f"keys on the right side correlate with them by more than {EXACT} in every layer, and the "
        "original code's queries, where they can be computed, by less on average",
        min(exact) > EXACT and ("code" not in fits or mean(fits["code"]["query"]) < EXACT)
        if exact
        else None,
        "mean correlation of queries and of keys: " + ", ".join(map(said, fits)),
    )


def _looks(name: str, attended: Curves) -> Finding:
    ours, other = mean(attended[name]), mean(attended[f"{name}, another position"])
    claim = {
        "query": "A query shares tokens with the residual stream where it looks",
        "key": "A key shares tokens with the residual stream that looks at it",
    }[name]
    return finding(
        f"{claim} (right side; our question, not the paper's).",
        f"the mean over layers is above {SLIGHT}, and twice that of another position",
        None if isnan(ours) or isnan(other) else ours > max(SLIGHT, 2 * other),
        f"{ours:.3f}, another position {other:.3f}",
    )


def draw(
    scores: Mapping[str, Curves], fits: Mapping[str, Curves], attended: Curves, k: int
) -> Panels:
    """A panel for each reading, the residual stream, and the correlations."""
    height = Axis(f"mean I_{k}", zero=True)
    panels = []
    for method, curves in scores.items():
        lines = [
            curve(
                y, name, COLOURS.get(name, figures.MUTED), dash="solid" if name in PAIRS else "dot"
            )
            for name, y in curves.items()
        ]
        panels.append(Panel(METHODS[method], tuple(lines), figures.LAYER, height))
    lines = [
        curve(
            y,
            name,
            figures.OURS if name.startswith("query") else figures.THIRD,
            dash="dot" if "another" in name else "solid",
        )
        for name, y in attended.items()
    ]
    panels.append(Panel("right side, residual stream", tuple(lines), figures.LAYER))
    colours = (figures.MUTED, figures.CONTROL, figures.OURS)[-len(fits) :]
    lines = [
        curve(curves[name], f"{METHODS[method]}: {name}", colour, dash=dash)
        for (method, curves), colour in zip(fits.items(), colours, strict=True)
        for name, dash in (("query", "solid"), ("key", "dash"))
    ]
    return figures.panels(*panels, Panel("attention logits", tuple(lines), figures.LAYER))


STUDY = Study(
    "queries-keys",
    "Can queries and keys be read as tokens?",
    VISIT,
    "Fig. 19 and 20",
    __doc__,
    QueriesKeys,
    run,
    "both",
)
