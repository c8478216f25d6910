"""Does attention add what the residual stream already says, and what it said one layer before?

At the last position of each prompt, by layer: the intersection score I_k of the attention's output
with the residual stream before and after it is added, of that stream before and after, and of the
attention's output with that of the layer before. The control for the last is the attention of all
other layers that are not neighbours, which the paper does not have.

Parallel blocks never form the sum of stream and attention; here it is formed all the same.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Panel
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.last_position import (
    Curves,
    Overlaps,
    at_last,
    average,
    curve,
    curves_table,
    mean,
    plain,
    require_lists,
    stack,
    start_and_rest,
)
from lexray.studies.shared.lists import ListReader, PassVectors
from lexray.studies.shared.measures import overlap
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Numbers, each_prompt
from lexray.studies.shared.study import VISIT, Study
from lexray.trace.trace import Trace

BEFORE, AFTER = "residual before", "residual after"
CHANGE = "residual before and after"
PREVIOUS, DISTANT = "previous attention", "attention of distant layers"
STYLES = {
    BEFORE: (figures.MUTED, "solid"),
    AFTER: (figures.OURS, "solid"),
    CHANGE: (figures.THIRD, "dash"),
    PREVIOUS: (figures.CONTROL, "solid"),
    DISTANT: (figures.MUTED, "dot"),
}


def run(model: Model, options: Overlaps) -> Outcome:
    require_lists(model, options.k)
    done = each_prompt(
        "attention-output", model, options, lambda prompt: compare(model, prompt, options.k)
    )
    curves = {name: average([d.numbers[name] for d in done]) for name in STYLES}
    return Outcome(
        {"k": options.k, "prompts": len(done), "curves": curves},
        (curves_table(curves, f"mean I_{options.k} of the attention's output"),),
        tuple(findings(curves)),
        lambda: draw(curves, options.k),
        (f"{len(done)} prompts",),
    )


def compare(model: Model, prompt: Prompt, k: int) -> Numbers:
    """One prompt's scores, a number for each layer under each name."""
    trace = at_last(model, prompt, "residual")
    tops = LISTS.tops(model, gather(trace), k)
    attention = tops["attention"]
    scores = {name: overlap(attention, tops[name]) for name in (BEFORE, AFTER)}
    scores[CHANGE] = overlap(tops[BEFORE], tops[AFTER])
    among = each_other(attention)
    n = len(among)
    first = torch.full((1,), torch.nan, dtype=torch.float64)
    scores[PREVIOUS] = torch.cat([first, among.diagonal(-1)])
    at = torch.arange(n)
    distant = (at[:, None] - at).abs() > 1
    scores[DISTANT] = torch.where(distant, among, torch.nan).nanmean(1)
    return {name: plain(values) for name, values in scores.items()}


def gather(trace: Trace) -> dict[str, PassVectors]:
    names = {"attention": "attn_out", BEFORE: "resid_in", AFTER: "resid_mid"}
    return {name: PassVectors.by_layer(stack(trace, part)) for name, part in names.items()}


LISTS = ListReader("attention-output", ("residual",), gather)


def each_other(ids: Int[Tensor, "n k"]) -> Float[Tensor, "n n"]:
    """I_k of every list with every other."""
    n = len(ids)
    return overlap(ids.repeat_interleave(n, 0), ids.repeat(n, 1)).view(n, n)


def findings(curves: Curves) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    n = len(curves[AFTER])
    moved = sum(a > b for a, b in zip(curves[AFTER], curves[BEFORE], strict=True))
    before, after = mean(curves[BEFORE]), mean(curves[AFTER])
    return [
        finding(
            "The attention's updates change what the residual stream says, little by little.",
            "in more than half of the layers the attention's output shares more tokens with the "
            "residual stream after the sum than before; and on average stream before and after "
            "share more than half",
            moved > n / 2 and mean(curves[CHANGE]) > 0.5,
            f"attention with stream {before:.2f} before, {after:.2f} after, higher in {moved} of "
            f"{n} layers; stream before and after {mean(curves[CHANGE]):.2f}",
        ),
        _previous(curves),
        _start(curves),
    ]


def _previous(curves: Curves) -> Finding:
    claim = "Each attention output is close to that of the layer before."
    rule = "on average they share more tokens than layers that are not neighbours, at least twice"
    near, far = mean(curves[PREVIOUS]), mean(curves[DISTANT])
    if near != near or far != far:
        return finding(claim, rule, None, "there are too few layers")
    return finding(claim, rule, near >= 2 * far, f"neighbours {near:.2f}, others {far:.2f}")


def _start(curves: Curves) -> Finding:
    pairs = {name: start_and_rest(curves[name]) for name in (AFTER, PREVIOUS)}
    said = ", ".join(f"{name} {a:.2f} → {b:.2f}" for name, (a, b) in pairs.items())
    known = all(x == x for pair in pairs.values() for x in pair)
    return finding(
        "The first layers behave differently: their scores are low.",
        "both the score with the residual stream after the sum and that with the attention before "
        "are lower in the first quarter of the layers than in the others",
        all(a < b for a, b in pairs.values()) if known else None,
        f"first quarter → others: {said}" if known else "there are too few layers",
        "the first 4–6 of 24 layers (GPT-2 medium)",
    )


def draw(curves: Curves, k: int) -> Panels:
    apart = (PREVIOUS, DISTANT)
    lines = {
        name: curve(curves[name], name, colour, dash=dash)
        for name, (colour, dash) in STYLES.items()
    }
    height = Axis(f"mean I_{k}", zero=True)
    with_stream = tuple(line for name, line in lines.items() if name not in apart)
    return figures.panels(
        Panel("attention output and residual stream", with_stream, figures.LAYER, height),
        Panel(
            "attention and attention", tuple(lines[name] for name in apart), figures.LAYER, height
        ),
    )


STUDY = Study(
    "attention-output",
    "Does attention add what the residual stream already says?",
    VISIT,
    "Fig. 15",
    __doc__,
    Overlaps,
    run,
    "both",
)
