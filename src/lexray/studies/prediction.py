"""From which layer on does the model know what it will say, if it is right and if it is wrong?

The probability that the residual stream after each block gives, at the last position, to the token
that the model predicts in the end: for prompts that it answers rightly, and for prompts that it
answers wrongly.

Prompts must have answers; others are left out. The right ones are the first --limit that the model
answers rightly, the wrong ones those that it answers wrongly among the first --limit of all, so
--right makes no difference. The layer in which a curve starts is ours: the first one with at least
half of the curve's highest value.
"""

from __future__ import annotations

from dataclasses import replace

from lexray.errors import LexrayError
from lexray.model.fold import at_least_float32
from lexray.model.model import Model
from lexray.result.charts.axes import Axis
from lexray.result.charts.panels import Panels
from lexray.result.charts.series import Panel
from lexray.studies.shared import figures
from lexray.studies.shared.finding import Finding, Outcome, finding
from lexray.studies.shared.last_position import (
    Curves,
    at_last,
    average,
    curve,
    curves_table,
    require_next_token,
    stack,
)
from lexray.studies.shared.prompts import Prompt, answers_rightly, read_prompts
from lexray.studies.shared.resume import Done, NoneRightError, Numbers, each_prompt
from lexray.studies.shared.study import VISIT, PromptOptions, Study
from lexray.trace.read.project import project

RIGHT, WRONG = "right answers", "wrong answers"
STYLES = {RIGHT: figures.OURS, WRONG: figures.CONTROL}
SOME = 5
"""Fewer prompts of a kind tell nothing."""


def run(model: Model, options: PromptOptions) -> Outcome:
    require_next_token(model)
    if all(prompt.answer is None for prompt in read_prompts(options.prompts)):
        raise LexrayError(
            "none of the prompts has an answer, so none is right or wrong; give a .jsonl with "
            "'prompt' and 'answer'"
        )
    done = choose(model, options)
    counts = {name: len(prompts) for name, prompts in done.items()}
    kinds = {name: prompts for name, prompts in done.items() if prompts}
    curves = {name: average([d.numbers["p"] for d in prompts]) for name, prompts in kinds.items()}
    return Outcome(
        {"prompts": counts, "probability": curves, "start": _starts(curves)},
        (curves_table(curves, "mean probability of the final prediction"),),
        tuple(findings(curves, counts)),
        lambda: draw(curves, counts),
        (", ".join(f"{n} {name}" for name, n in counts.items()),),
    )


def choose(model: Model, options: PromptOptions) -> dict[str, list[Done]]:
    """What was computed for prompts of both kinds."""

    def compute(prompt: Prompt) -> Numbers:
        return follow(model, prompt)

    every = each_prompt("prediction", model, replace(options, right=False), compute)
    try:
        right = each_prompt("prediction", model, replace(options, right=True), compute)
    except NoneRightError:
        right = []
    return {
        RIGHT: [d for d in right if d.numbers["right"]],
        WRONG: [d for d in every if d.numbers["right"] is False],
    }


def follow(model: Model, prompt: Prompt) -> Numbers:
    """The final prediction, its probability after each block, and whether it is right."""
    trace = at_last(model, prompt, "residual", "logits")
    predicted = int(trace.logits[-1].argmax())
    X = at_least_float32(stack(trace, "resid_post").to(model.device))
    projected = project(model, X, 1, [predicted])
    right = None if prompt.answer is None else answers_rightly(model, prompt)
    return {"token": predicted, "p": projected.target_probs[:, 0].tolist(), "right": right}


def start(values: list[float]) -> int:
    """The first layer with at least half of the highest value."""
    return next(i for i, p in enumerate(values) if p >= max(values) / 2)


def _starts(curves: Curves) -> dict[str, int]:
    return {name: start(values) for name, values in curves.items()}


def findings(curves: Curves, counts: dict[str, int]) -> list[Finding]:
    """The paper's claims, by rules that name no model."""
    few = [name for name, n in counts.items() if n < SOME]
    none = f"fewer than {SOME} {' and '.join(few)}"
    claims = {
        "Right answers get high probabilities, wrong ones moderate ones.": (
            "the highest mean probability of right answers is above that of wrong ones"
        ),
        "The probability of wrong answers starts to rise in earlier layers.": (
            "wrong answers reach half of their highest mean probability in an earlier layer"
        ),
        "The probability of right answers starts to rise around the middle layers.": (
            "right answers reach half of their highest mean probability in the middle third of "
            "the layers"
        ),
    }
    if few:
        return [finding(claim, rule, None, none) for claim, rule in claims.items()]
    n, starts = len(curves[RIGHT]), _starts(curves)
    right, wrong = max(curves[RIGHT]), max(curves[WRONG])
    layers = f"right: layer {starts[RIGHT]}, wrong: layer {starts[WRONG]}, of 0–{n - 1}"
    outcomes = [
        (right > wrong, f"right {right:.2f}, wrong {wrong:.2f}"),
        (starts[WRONG] < starts[RIGHT], layers),
        (n / 3 <= starts[RIGHT] + 0.5 <= 2 * n / 3, layers),
    ]
    return [
        finding(claim, rule, holds, said)
        for (claim, rule), (holds, said) in zip(claims.items(), outcomes, strict=True)
    ]


def draw(curves: Curves, counts: dict[str, int]) -> Panels:
    lines = [curve(y, f"{name} ({counts[name]})", STYLES[name]) for name, y in curves.items()]
    height = Axis("probability of the final prediction", zero=True)
    return figures.panels(Panel("", tuple(lines), figures.LAYER, height))


STUDY = Study(
    "prediction",
    "In which layers does the final prediction become probable?",
    VISIT,
    "Fig. 14",
    __doc__,
    PromptOptions,
    run,
    "none",
)
