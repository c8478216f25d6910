"""Do heads say what the memory values say that they attend to most?

At the last position of each prompt, every head's memory values through W_O, ranked by the attention
they get: the intersection score I_k of the best three, and of the one with the least attention,
with the head's output; by layer, and for each head. Their scores with the attention's output, the
block's and the final one are in the numbers. Values that a window hides do not count.

Many models look at the first token when there is nothing to look at, and its value is then small: a
head's attention is on it, its output is not from it. --contribution ranks by attention times the
value's norm instead, which is how much of a value reaches the output. The paper ranks by attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Heat, Panel, StandingBars
from lexray.result.format import show_percent
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.last_position import (
    OUTPUTS,
    Curves,
    Overlaps,
    at_last,
    curve,
    curves_table,
    heads_at_last,
    mean,
    outputs,
    owners,
    plain,
    require_lists,
    start_and_rest,
    with_outputs,
)
from lexray.studies.shared.lists import ListReader, PassVectors
from lexray.studies.shared.measures import overlap
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Done, Numbers, each_prompt
from lexray.studies.shared.study import VISIT, Study, option
from lexray.trace.read.vectors import Selection
from lexray.trace.trace import Trace

BEST = 3
RANKS = ("1st", "2nd", "3rd", "least")
COLOURS = (figures.OURS, figures.THIRD, figures.PUBLISHED, figures.MUTED)


@dataclass(frozen=True)
class Memories(Overlaps):
    contribution: bool = option(False, "Rank by attention times the value's norm.")


def run(model: Model, options: Memories) -> Outcome:
    require_lists(model, options.k)
    done = each_prompt("memories", model, options, lambda prompt: compare(model, prompt, options))
    table = scores_of(done, "head")
    curves = by_rank(table)
    against = {name: by_rank(scores_of(done, name)) for name in OUTPUTS}
    heads = table.nanmean(0)
    first = {
        "attention": sum(d.numbers["best_attention"] for d in done) / len(done),
        "first_token": sum(d.numbers["first_token"] for d in done) / len(done),
    }
    numbers: dict[str, Any] = {"k": options.k, "prompts": len(done), "by_rank": curves}
    of_heads = {rank: heads[..., i].tolist() for i, rank in enumerate(RANKS)}
    return Outcome(
        numbers | {"outputs": against, "by_head": of_heads, "best": first},
        (curves_table(curves, f"mean I_{options.k} of memory values with their head"),),
        tuple(findings(curves, heads, first, options)),
        lambda: draw(curves, heads, options),
        (f"{len(done)} prompts", f"ranked by {name_ranking(options)}"),
    )


def name_ranking(options: Memories) -> str:
    return "attention times norm" if options.contribution else "attention"


def compare(model: Model, prompt: Prompt, options: Memories) -> Numbers:
    """I_k of each layer's, head's and rank's value with the head, and with the three outputs."""
    trace = at_last(model, prompt, "residual", "heads", "attention")
    heads, chosen = heads_at_last(trace), choose_values(trace, options.contribution)
    layer, head, _ = chosen.at
    starts = torch.tensor([0, *(len(part) for part in heads)]).cumsum(0)
    tops = LISTS.tops(model, _parts(trace, heads, chosen), options.k)
    own = tops["heads"][(starts[layer] + head).to(tops["heads"].device)]
    scores = {"head": overlap(tops["values"], own)} | with_outputs(tops["values"], tops, layer)
    size = (len(heads), max(map(len, heads)), len(RANKS))
    table = torch.full(size, torch.nan, dtype=torch.float64)
    rows: Numbers = {name: plain(table.index_put(chosen.at, x)) for name, x in scores.items()}
    return rows | {"best_attention": chosen.attention, "first_token": chosen.first_token}


def gather(trace: Trace) -> dict[str, PassVectors]:
    """The outputs, the heads, and of each the values that stand out."""
    return _parts(trace, heads_at_last(trace), choose_values(trace, contribution=False))


def _parts(trace: Trace, heads: Sequence[Tensor], chosen: Values) -> dict[str, PassVectors]:
    ours = {
        "heads": PassVectors(torch.cat(list(heads)), owners(heads)),
        "values": PassVectors(chosen.vectors, chosen.at[0]),
    }
    return outputs(trace) | ours


LISTS = ListReader("memories", ("residual", "heads", "attention"), gather)


@dataclass(frozen=True)
class Values:
    """Some memory values through W_O."""

    vectors: Float[Tensor, "n d_model"]
    at: tuple[Int[Tensor, "n"], Int[Tensor, "n"], Int[Tensor, "n"]]
    """Layer, head and rank of each."""
    attention: float
    """How much attention the best get, on average."""
    first_token: float
    """In how many heads the best is the first token's."""


def choose_values(trace: Trace, contribution: bool) -> Values:
    """Of every head the three best values, and the last of those that it sees."""
    vectors, places, weights, firsts = [], [], [], []
    for index, layer in enumerate(trace.layers):
        lines = Selection(trace, (layer,), tuple(range(len(trace)))).lines(["values"])
        for h, line in enumerate(lines):
            attention = trace[layer].pattern[h, -1].float().to(line.vectors.device)
            size = attention * line.vectors.norm(dim=1) if contribution else attention
            order = rank_values(attention, size)
            vectors.append(line.vectors[order])
            ranks = [*range(BEST), BEST][: len(order)]
            places += [(index, h, rank) for rank in ranks]
            weights.append(float(attention[order[0]]))
            firsts.append(int(order[0]) == 0)
    layer_, head, rank = torch.tensor(places).unbind(1)
    n = len(weights)
    return Values(torch.cat(vectors), (layer_, head, rank), sum(weights) / n, sum(firsts) / n)


def rank_values(attention: Float[Tensor, "n"], size: Float[Tensor, "n"]) -> Int[Tensor, "few"]:
    """The places of the three largest, and of the smallest that has any attention."""
    order = size.argsort(descending=True, stable=True)
    order = order[attention[order] > 0]
    return order if len(order) <= BEST else torch.cat([order[:BEST], order[-1:]])


def scores_of(done: list[Done], name: str) -> Float[Tensor, "prompts layers heads ranks"]:
    rows = [_numbers(d.numbers[name]) for d in done]
    return torch.tensor(rows, dtype=torch.float64)


def _numbers(x: Any) -> Any:
    """Nested lists in which NaN stands for None."""
    return [_numbers(y) for y in x] if isinstance(x, list) else torch.nan if x is None else x


def by_rank(table: Float[Tensor, "prompts layers heads ranks"]) -> Curves:
    """For each rank a mean for each layer."""
    means = table.nanmean((0, 2))
    return {rank: means[:, i].tolist() for i, rank in enumerate(RANKS)}


def findings(
    curves: Curves,
    heads: Float[Tensor, "layers heads ranks"],
    best: dict[str, float],
    options: Memories,
) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    made = [_order(curves, best), _all_heads(heads), _start(curves)]
    if not options.contribution:
        return made
    ours = " (here attention times norm, which is not the paper's ranking)"
    return [replace(f, claim=f.claim.removesuffix(".") + f"{ours}.") for f in made]


def _order(curves: Curves, best: dict[str, float]) -> Finding:
    claim = "The more attention a memory value gets, the more tokens it shares with its head."
    rule = (
        "the mean over layers falls from the first value to the second, the third and the one with "
        "least attention, and in more than half of the layers the first is above the second"
    )
    means = [mean(curves[rank]) for rank in RANKS]
    if any(x != x for x in means):
        return finding(claim, rule, None, "no prompt has more than 3 tokens that a head sees")
    n = len(curves[RANKS[0]])
    won = sum(a > b for a, b in zip(curves[RANKS[0]], curves[RANKS[1]], strict=True))
    falling = all(a > b for a, b in pairwise(means))
    said = ", ".join(f"{rank} {x:.2f}" for rank, x in zip(RANKS, means, strict=True))
    where = (
        f"first above second in {won} of {n} layers; the first is the first token's in "
        f"{show_percent(best['first_token'], 0)} of heads"
    )
    return finding(claim, rule, falling and won > n / 2, f"{said}; {where}")


def _all_heads(heads: Float[Tensor, "layers heads ranks"]) -> Finding:
    claim = "That applies to all heads."
    rule = (
        "for every head index the mean over layers is higher for the first value than for the one "
        "with least attention, and so it is for more than three quarters of single heads"
    )
    gaps = heads[..., 0] - heads[..., -1]
    by_index, single = gaps.nanmean(0), gaps[~gaps.isnan()]
    if not len(single):
        return finding(claim, rule, None, "no prompt has more than 3 tokens that a head sees")
    won, share = int((by_index > 0).sum()), float((single > 0).double().mean())
    said = f"{won} of {len(by_index)} head indices, {show_percent(share, 0)} of {len(single)} heads"
    return finding(claim, rule, won == len(by_index) and share > 0.75, said)


def _start(curves: Curves) -> Finding:
    first, rest = start_and_rest(curves[RANKS[0]])
    return finding(
        "The first layers behave differently: their scores are low.",
        "the first value's score is lower in the first quarter of the layers than in the others",
        first < rest if first == first and rest == rest else None,
        f"first quarter {first:.2f}, others {rest:.2f}",
        "the first 4–6 of 24 layers (GPT-2 medium)",
    )


def draw(curves: Curves, heads: Float[Tensor, "layers heads ranks"], options: Memories) -> Panels:
    """By layer and rank, by head index and rank, and each head's first value."""
    by_index = heads.nanmean(0)
    lines, columns = [], []
    for i, (rank, colour) in enumerate(zip(RANKS, COLOURS, strict=True)):
        dash = "dot" if rank == RANKS[-1] else "solid"
        lines.append(curve(curves[rank], rank, colour, dash=dash))
        columns.append(StandingBars(range(len(by_index)), by_index[:, i].tolist(), rank, colour))
    head, height = Axis("head", whole=True), Axis(f"mean I_{options.k} with the head", zero=True)
    heat = Heat(heads[..., 0].T.tolist())
    return figures.panels(
        Panel(f"by layer and {name_ranking(options)}", tuple(lines), figures.LAYER, height),
        Panel("by head index", tuple(columns), head, height),
        Panel("first value, every head", (heat,), figures.LAYER, head),
    )


STUDY = Study(
    "memories",
    "Do heads say what the values say that they attend to?",
    VISIT,
    "Fig. 5, 16 and 17",
    __doc__,
    Memories,
    run,
    "both",
)
