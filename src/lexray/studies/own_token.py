"""Does a memory value speak of the token that it was made from?

The probability of each input token in its own memory values, read through W_O, by layer: the mean
over all heads and over a seeded sample of each prompt's positions (--positions 0 takes all, like
the paper).

Besides the paper's control, a random token's probability of one in the vocabulary, there is a
harder one: the probability of another token of the same prompt. How often the token is among the
first k is in the numbers and in the figure; by the standard view, whose scores are no
probabilities, it is what the claims are about.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch

from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Level, Panel
from lexray.space.topk.vectors import members
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.last_position import (
    Curves,
    Overlaps,
    average,
    curve,
    curves_table,
    halves,
    mean,
    plain,
    require_lists,
    rises,
)
from lexray.studies.shared.lists import ListReader, PassVectors
from lexray.studies.shared.measures import n_tokens, sample, seed_generator
from lexray.studies.shared.prompts import Prompt
from lexray.studies.shared.resume import Numbers, each_prompt
from lexray.studies.shared.study import VISIT, Study, option
from lexray.trace.read.project import project
from lexray.trace.read.vectors import Selection
from lexray.trace.trace import Trace

OWN, OTHER = "own token", "another token of the prompt"
STYLES = {OWN: figures.OURS, OTHER: figures.CONTROL}


@dataclass(frozen=True)
class OwnToken(Overlaps):
    k: int = option(50, "Count how often the token is among so many.", min=1)
    positions: int = option(4, "How many positions of each prompt; 0 for all.", min=0)


def run(model: Model, options: OwnToken) -> Outcome:
    require_lists(model, options.k)
    done = each_prompt("own-token", model, options, lambda prompt: read(model, prompt, options))
    curves, listed = (
        {name: average([d.numbers[kind][name] for d in done]) for name in STYLES}
        for kind in ("probability", "listed")
    )
    random = 1 / n_tokens(model)
    standard = model.options.standardised
    told = (listed, options.k * random) if standard else (curves, random)
    what = f"share of lists of {options.k}" if standard else "mean probability"
    return Outcome(
        {
            "prompts": len(done),
            "random": random,
            "probability": curves,
            f"in_top_{options.k}": listed,
        },
        (curves_table(told[0], what),),
        tuple(findings(*told, what)),
        lambda: draw(curves, listed, random, options.k),
        (f"{len(done)} prompts",),
    )


def read(model: Model, prompt: Prompt, options: OwnToken) -> Numbers:
    """Probability of, and share of values that list, a position's token and another one."""
    trace = model.trace(prompt.text, what="attention")
    ids, n = trace.ids.tolist(), len(trace)
    generator = seed_generator(options.seed, prompt.text)
    positions = tuple(sample(options.positions or n, n, generator).tolist())
    others = another(ids, positions, options.seed)
    lines = Selection(trace, trace.layers, positions).lines(["values"])
    targets = torch.tensor([[ids[i], other] for i, other in zip(positions, others, strict=True)])
    projected = project(
        model,
        torch.cat([line.vectors for line in lines]),
        1,
        targets.repeat(len(lines), 1),
    )
    layers = torch.tensor([line.layer for line in lines]).repeat_interleave(len(positions))
    listed = projected.target_ranks < options.k
    if model.options.standardised:
        part = PassVectors(torch.cat([line.vectors for line in lines]), layers)
        tops = LISTS.tops(model, {"values": part}, options.k)["values"]
        listed = members(targets.repeat(len(lines), 1).to(tops), tops)
    results: Numbers = {}
    for kind, values in (("probability", projected.target_probs), ("listed", listed)):
        table = values.double().cpu()
        means = torch.stack([table[layers == layer].mean(0) for layer in trace.layers])
        if len(set(ids)) == 1:
            means[:, 1] = torch.nan
        results[kind] = {name: plain(means[:, i]) for i, name in enumerate(STYLES)}
    return results


def gather(trace: Trace) -> dict[str, PassVectors]:
    """The memory values of a text's last position."""
    lines = Selection(trace, trace.layers, (len(trace) - 1,)).lines(["values"])
    layers = torch.tensor([line.layer for line in lines])
    return {"values": PassVectors(torch.cat([line.vectors for line in lines]), layers)}


LISTS = ListReader("own-token", ("attention",), gather)


def another(ids: list[int], positions: tuple[int, ...], seed: int) -> list[int]:
    """For each position a token of the prompt that is not its own, if there is one."""
    random, known = Random(seed), sorted(set(ids))
    return [random.choice([i for i in known if i != ids[at]] or known) for at in positions]


def findings(curves: Curves, random: float, what: str = "mean probability") -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    own, other = mean(curves[OWN]), mean(curves[OTHER])
    n = len(curves[OWN])
    above = sum(p > random for p in curves[OWN])
    first, second = halves(curves[OWN])
    return [
        finding(
            "A token is more probable than a random one in the values made from it.",
            f"the {what} is above chance in more than three quarters of the layers, and ten times "
            "that on average",
            above > 0.75 * n and own > 10 * random,
            f"mean {own:.2g}, random {random:.2g}; above in {above} of {n} layers",
            "random is nearly 0 (GPT-2 medium)",
        ),
        finding(
            "It is more probable than other tokens of the prompt (our question, not the paper's).",
            f"the {what} is more than twice that of another token of the prompt",
            own > 2 * other if other == other else None,
            f"own {own:.2g}, another {other:.2g}",
        ),
        finding(
            "The probability is higher in later layers.",
            "the mean over the second half of the layers is above that over the first half",
            rises([curves[OWN]]),
            f"first half {first:.2g}, second half {second:.2g}",
        ),
    ]


def draw(curves: Curves, listed: Curves, random: float, k: int) -> Panels:
    first, second = (
        [curve(kind[name], name, colour) for name, colour in STYLES.items()]
        for kind in (curves, listed)
    )
    chance = Level(random, "chance", dash="dot")
    zero = Axis(zero=True)
    share = f"share of values with the token in their top {k}"
    return figures.panels(
        Panel("probability", (*first, chance), figures.LAYER, zero),
        Panel(share, tuple(second), figures.LAYER, zero),
    )


STUDY = Study(
    "own-token",
    "Does a memory value speak of its own token?",
    VISIT,
    "Fig. 18",
    __doc__,
    OwnToken,
    run,
    "both",
)
