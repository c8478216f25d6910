"""Do attention heads speak of what the model is about to say?

At the last position of each prompt, the intersection score I_k of every head with the output of its
attention, with the output of its block and with the final output; by layer, once as the head's
output stands before W_O and once as it is added to the residual stream, through W_O. Then the same
for the heads of each layer with the largest norm ‖A_j W_O‖.

Before W_O a head's output is a piece of a longer vector: as in the paper it is put into its place
among zeros. Where the heads together are wider than the residual stream, that cannot be done, and
the claim about it is not testable. Sub-blocks with a norm at their end: each head's part is taken
behind it. The paper's rules of thumb are made into rules that name no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Panel
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.last_position import (
    COLOURS,
    OUTPUTS,
    Curves,
    Overlaps,
    at_last,
    average,
    curve,
    curves_table,
    halves,
    heads_at_last,
    mean,
    outputs,
    owners,
    plain,
    require_lists,
    rises,
    with_outputs,
)
from lexray.studies.shared.lists import ListReader, PassVectors
from lexray.studies.shared.measures import n_tokens
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Numbers, each_prompt
from lexray.studies.shared.study import VISIT, Study
from lexray.trace.trace import Trace

LARGEST = 3
"""So many heads of each layer stand out by their norms in the paper."""
RANKS = ("largest", "second", "third", "others")
RANK_COLOURS = (figures.OURS, figures.THIRD, figures.PUBLISHED, figures.MUTED)
SLIGHT = 0.05
"""An overlap below this, beyond chance, counts as none."""


def run(model: Model, options: Overlaps) -> Outcome:
    require_lists(model, options.k)
    done = each_prompt("heads", model, options, lambda prompt: compare(model, prompt, options.k))
    with_W_O = {name: average([d.numbers["with"][name] for d in done]) for name in OUTPUTS}
    bare = done[0].numbers["without"] is not None
    without = (
        {name: average([d.numbers["without"][name] for d in done]) for name in OUTPUTS}
        if bare
        else {}
    )
    ranked = {
        name: {
            rank: average([d.numbers["ranked"][name][i] for d in done])
            for i, rank in enumerate(RANKS)
        }
        for name in OUTPUTS
    }
    chance = options.k / n_tokens(model)
    numbers = {"k": options.k, "prompts": len(done), "chance": chance, "layers": model.n_layers}
    return Outcome(
        numbers | {"with_W_O": with_W_O, "without_W_O": without, "by_norm": ranked},
        (
            curves_table(_name_curves(without, with_W_O), f"mean I_{options.k} of heads"),
            *(curves_table(ranked[o], f"by norm, with the {OUTPUTS[o]}") for o in OUTPUTS),
        ),
        tuple(findings(without, with_W_O, ranked, chance)),
        lambda: draw(without, with_W_O, ranked, options.k),
        (f"{len(done)} prompts",),
    )


def compare(model: Model, prompt: Prompt, k: int) -> Numbers:
    """Means over the heads of each layer, and by rank of their norms, for the three outputs."""
    trace = at_last(model, prompt, "residual", "heads")
    parts, written = gather(trace), heads_at_last(trace)
    tops, layers = LISTS.tops(model, parts, k), owners(written)
    bare, sizes = "without" in parts, [len(part) for part in written]
    scores = with_outputs(tops["with"], tops, layers)
    norms = [part.norm(dim=1).cpu() for part in written]
    return {
        "with": {name: by_layer(x, sizes) for name, x in scores.items()},
        "without": {
            name: by_layer(x, sizes)
            for name, x in with_outputs(tops["without"], tops, layers).items()
        }
        if bare
        else None,
        "ranked": {name: by_norm(torch.split(x, sizes), norms) for name, x in scores.items()},
    }


def gather(trace: Trace) -> dict[str, PassVectors]:
    """The outputs, and the heads through W_O and (where they fit) without it."""
    written, bare = heads_at_last(trace), bare_heads(trace)
    parts = outputs(trace) | {"with": PassVectors(torch.cat(written), owners(written))}
    return (
        parts if bare is None else parts | {"without": PassVectors(torch.cat(bare), owners(bare))}
    )


LISTS = ListReader("heads", ("residual", "heads"), gather)


def bare_heads(trace: Trace) -> list[Float[Tensor, "heads d_model"]] | None:
    """Each head's output before W_O, at its place among zeros; None if these are not as many."""
    bare = []
    for layer in trace.layers:
        z = trace[layer].z[-1]
        heads, width = z.shape
        if heads * width > trace.model.d_model:
            return None
        padded = z.new_zeros(heads, trace.model.d_model)
        for h in range(heads):
            padded[h, h * width : (h + 1) * width] = z[h]
        bare.append(padded)
    return bare


def by_layer(scores: Float[Tensor, "n"], sizes: Sequence[int]) -> list[float]:
    return [float(part.mean()) for part in torch.split(scores, list(sizes))]


def by_norm(
    scores: Sequence[Float[Tensor, "_"]], norms: Sequence[Float[Tensor, "_"]]
) -> list[list[float | None]]:
    """For each rank of the norms, and for the heads beyond, a number for each layer."""
    rows = torch.full((len(RANKS), len(scores)), torch.nan, dtype=torch.float64)
    for layer, (part, sizes) in enumerate(zip(scores, norms, strict=True)):
        ordered = part[sizes.argsort(descending=True, stable=True)]
        first = ordered[:LARGEST]
        rows[: len(first), layer] = first
        rows[LARGEST, layer] = ordered[LARGEST:].mean()
    means: list[list[float | None]] = plain(rows)
    return means


def findings(
    without: Curves, with_W_O: Curves, ranked: dict[str, Curves], chance: float
) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    return [
        _without(without, chance),
        _rise(with_W_O),
        _drop(with_W_O),
        _largest(ranked["attention"]),
        _effect(ranked),
    ]


def _without(without: Curves, chance: float) -> Finding:
    limit = SLIGHT + chance
    claim = "Before W_O, heads share no tokens with any of the outputs."
    rule = f"the mean over layers is below {SLIGHT} and chance (k / tokens) with all three outputs"
    if not without:
        told = "the heads together are wider than the residual stream: they cannot be read so"
        return finding(claim, rule, None, told)
    means = {name: mean(values) for name, values in without.items()}
    said = f"{_say(means)}; chance {chance:.3f}"
    return finding(claim, rule, max(means.values()) < limit, said)


def _rise(with_W_O: Curves) -> Finding:
    both = {name: halves(values) for name, values in with_W_O.items()}
    said = ", ".join(f"{OUTPUTS[name]} {a:.2f} → {b:.2f}" for name, (a, b) in both.items())
    return finding(
        "Through W_O, heads share tokens with the outputs, and the more so the deeper they are.",
        "with all three outputs the mean over the second half of the layers is above the first's",
        rises(list(with_W_O.values())),
        f"first half → second half: {said}",
    )


def _drop(with_W_O: Curves) -> Finding:
    n = len(with_W_O["final"])
    peaks = {name: max(range(n), key=values.__getitem__) for name, values in with_W_O.items()}
    said = ", ".join(
        f"{OUTPUTS[o]} {with_W_O[o][p]:.2f} in layer {p}, {with_W_O[o][-1]:.2f} in the last"
        for o, p in peaks.items()
    )
    return finding(
        "In the final layers that falls again.",
        "with all three outputs the highest layer is not the last one, but in the second half",
        all(n // 2 <= peak < n - 1 for peak in peaks.values()) if n > 3 else None,
        said,
    )


def _largest(ranks: Curves) -> Finding:
    means = [mean(ranks[rank]) for rank in RANKS]
    falling = all(a > b for a, b in pairwise(means))
    claim = "Only the few heads with the largest norm share tokens with their attention output."
    rule = (
        "the mean over layers falls from the largest norm to the second, the third and the others, "
        "and the largest has at least twice the others'"
    )
    if means[-1] != means[-1]:
        return finding(claim, rule, None, f"no layer has more than {LARGEST} heads")
    said = ", ".join(f"{rank} {value:.2f}" for rank, value in zip(RANKS, means, strict=True))
    return finding(claim, rule, falling and means[0] >= 2 * means[-1], said)


def _effect(ranked: dict[str, Curves]) -> Finding:
    claim = "These heads also have more in common with the block's output and the final output."
    rule = "with both outputs the mean of the three largest is above that of the other heads"
    pairs = {
        name: (mean([mean(ranked[name][r]) for r in RANKS[:-1]]), mean(ranked[name]["others"]))
        for name in ("block", "final")
    }
    if any(b != b for _, b in pairs.values()):
        return finding(claim, rule, None, f"no layer has more than {LARGEST} heads")
    said = ", ".join(f"{OUTPUTS[o]} {a:.3f} against {b:.3f}" for o, (a, b) in pairs.items())
    return finding(claim, rule, all(a > b for a, b in pairs.values()), said)


def _say(means: dict[str, float]) -> str:
    return ", ".join(f"{OUTPUTS[name]} {value:.3f}" for name, value in means.items())


def _name_curves(without: Curves, with_W_O: Curves) -> Curves:
    named = {f"{OUTPUTS[o]}, without W_O": values for o, values in without.items()}
    return named | {f"{OUTPUTS[o]}, with W_O": values for o, values in with_W_O.items()}


def draw(without: Curves, with_W_O: Curves, ranked: dict[str, Curves], k: int) -> Panels:
    """Fig. 2 above, Fig. 3 below."""
    height = Axis(f"mean I_{k}")
    panels = []
    for title, curves in (("heads without W_O", without), ("heads with W_O", with_W_O)):
        lines = [curve(values, OUTPUTS[name], COLOURS[name]) for name, values in curves.items()]
        panels.append(Panel(title, tuple(lines), figures.LAYER, height))
    for name in OUTPUTS:
        lines = [
            curve(
                ranked[name][rank],
                f"norm: {rank}",
                colour,
                dash="dot" if rank == RANKS[-1] else "solid",
            )
            for rank, colour in zip(RANKS, RANK_COLOURS, strict=True)
        ]
        panels.append(Panel(f"by norm: {OUTPUTS[name]}", tuple(lines), figures.LAYER, height))
    return figures.panels(*panels)


STUDY = Study(
    "heads",
    "Do attention heads share tokens with the outputs?",
    VISIT,
    "Fig. 2 and 3",
    __doc__,
    Overlaps,
    run,
    "both",
)
